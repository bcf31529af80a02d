"""Configuration and last metrics of many runs, and the held-out accuracy in the list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_train.config.loading import dump_config, load_config
from grpo_train.run_dir import create_run
from grpo_train.run_dir.configs import MAX_TEXT, config_values
from grpo_train.run_dir.files import to_json
from grpo_train.run_dir.identity import NOTE_FILE
from remote.agent import checkpoints
from remote.agent.box import BoxContext
from remote.agent.operations import HANDLERS
from remote.agent.topics import RunTable, run_facts
from remote.gate import reply
from remote.protocol import Settings
from remote.protocol.runs import NoteRequest, RunFactsRequest, RunSummary
from tests.support.clock import TestClock
from tests.support.histories import make_run

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9), st.text(max_size=30),
    st.text("a :#-'\"\n", max_size=12),
)  # fmt: skip
keys = st.from_regex(r"[a-z][a-z_0-9]{0,10}", fullmatch=True)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(keys, scalars, max_size=2))


@settings(max_examples=60)
@example({"a": {"a": "\n- 0"}})
@given(st.dictionaries(keys, st.dictionaries(keys, values, max_size=5), max_size=4))
def test_what_is_read_is_what_yaml_reads(config: dict[str, dict[str, Any]]) -> None:
    """Values may be left out, but none is wrong."""
    found = config_values(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    for name, value in found.items():
        parts, inside = name.split("."), config
        for part in parts:
            inside = inside[part]
        if isinstance(inside, list):
            assert value == ", ".join(str(item) for item in inside)[:MAX_TEXT]
        else:
            assert value == (inside[:MAX_TEXT] if isinstance(inside, str) else "" if inside == {} else inside)


def test_every_value_of_a_real_config_is_read() -> None:
    text = dump_config(load_config("optimizer: {learning_rate: 2.0e-6}\neval: {datasets: [gsm8k, addition]}\n"))
    found = config_values(text)
    assert found["optimizer.learning_rate"] == 2e-6
    assert found["eval.datasets"] == "gsm8k, addition"
    written = {f"{section}.{key}" for section, keys in yaml.safe_load(text).items() for key in keys}
    assert written == set(found)


@pytest.fixture
def box(tmp_path: Path) -> BoxContext:
    return BoxContext(Settings(), tmp_path, None)


def test_facts_of_runs(box: BoxContext) -> None:
    for name, rate in (("a", 1e-6), ("b", 2e-6)):
        run = create_run(box.root, {"config_text": ""}, name)
        run.config_file.write_text(f"run:\n  seed: 1\noptimizer:\n  learning_rate: {rate:.1e}\n")
        run.logs.mkdir(exist_ok=True)
        (run.logs / "train_log.jsonl").write_text(
            to_json({"step": 1, "kl": rate, "loss": float("nan"), "x": "y"}) + "\n"
        )
    found = run_facts(box, RunFactsRequest(["a", "gone", "b"], ["kl", "loss", "x"]))
    admitted = reply("run_facts", {"ok": True, "result": found})
    assert admitted["same"] == {"run.seed": 1}
    assert admitted["facts"] == [
        {"run": name, "config": {"optimizer.learning_rate": rate}, "metrics": {"kl": rate, "loss": "NaN"}}
        for name, rate in (("a", 1e-6), ("b", 2e-6))
    ]


def test_the_list_has_the_newest_held_out_accuracy(box: BoxContext) -> None:
    clock = TestClock()
    box = replace(box, clock=clock)
    create_run(box.root, {"config_text": ""}, "a")
    table = RunTable(box)
    assert "held_out" not in table.rows()[0]
    folder = box.root / "eval_runs" / "a_gsm8k"
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(to_json({"training_run": "a", "state": "finished"}))
    lines = "step,name,status,accuracy\n10,step_10,ok,0.8\n20,step_20,ok,0.75\n30,step_30,failed,\n"
    (folder / checkpoints.TABLE).write_text(lines)
    assert "held_out" not in table.rows()[0], "looked for a moment ago"
    clock.advance(checkpoints.EVERY_S)
    found = {"accuracy": 0.75, "dataset": "gsm8k", "step": 20, "best": 0.8, "best_step": 10}
    assert table.rows()[0]["held_out"] == found
    (folder / checkpoints.TABLE).write_text("rubbish")
    clock.advance(checkpoints.EVERY_S)
    assert "held_out" not in table.rows()[0]


def test_notes_and_alarms_are_in_the_list(box: BoxContext) -> None:
    run = create_run(box.root, {"config_text": ""}, "a")
    note, table = HANDLERS["note"], RunTable(box)
    assert table.rows()[0]["note"] == ""
    assert note(box, NoteRequest("a", "  best\nso far ", idempotency_key="k")) == {
        "run": "a",
        "note": "best so far",
    }
    assert table.rows()[0]["note"] == "best so far"
    assert note(box, NoteRequest("a", "again", idempotency_key="k"))["note"] == "best so far", "one key, one change"
    (run.path / NOTE_FILE).write_bytes(b"\xff" * 4_000)
    assert table.rows()[0]["note"] == "", "too long for a note: the run is read all the same"
    note(box, NoteRequest("a"))
    assert not (run.path / NOTE_FILE).exists()
    run.logs.mkdir(exist_ok=True)
    health = [
        {"level": "warning", "message": "w"},
        {"level": "alarm", "message": 3},
        {"level": "alarm", "message": "no"},
    ]
    (run.logs / "train_log.jsonl").write_text(to_json({"step": 1, "health": health}) + "\n")
    assert table.rows()[0]["alarm"] == "no"


def test_the_row_of_a_run_takes_the_keys_of_its_summary(tmp_path: Path) -> None:
    """The gate drops a key that the row does not have, so a new column needs it in both; some are for a shell."""
    summary = make_run(tmp_path, "one", accuracy=(0.5,)).summary()
    assert set(summary) - RunSummary.__required_keys__ - RunSummary.__optional_keys__ == {"exit_code", "owner"}
