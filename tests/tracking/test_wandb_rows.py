"""Which rows become which W&B run, and what is sent of them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import load_config
from grpo_train.config.loading import dump_config
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.installation import install_command
from grpo_train.tracking.wandb import settings
from grpo_train.tracking.wandb.rows import (
    COLUMNS,
    ROLLOUTS,
    Generation,
    completions_of,
    entry_of,
    evaluations_after,
    generations,
    last_evaluated,
    rows_after,
)
from tests.run_dir.helpers import log
from tests.support.histories import make_run


def rewound(start: int, end: int) -> dict[str, Any]:
    return {"event": "resumed", "superseded": {"train_log.jsonl": [start, end]}}


def test_each_rewind_begins_a_generation() -> None:
    events = [{"event": "launched"}, rewound(10, 20), {"event": "resumed", "superseded": {}}, rewound(30, 45)]
    assert generations(events) == [
        Generation(0, (), 20), Generation(1, ((10, 20),), 45), Generation(2, ((10, 20), (30, 45)), None),
    ]  # fmt: skip
    assert [one.id_of("ab") for one in generations(events)] == ["ab", "ab-r1", "ab-r2"]


@pytest.mark.parametrize("pair", [[1], ["a", 2], [20, 20], None, {"a": 1}])
def test_a_malformed_rewind_is_none(pair: Any) -> None:
    assert generations([{"event": "resumed", "superseded": {"train_log.jsonl": pair}}]) == [Generation(0)]


def test_rows_belong_to_their_generation(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", steps=4)
    run.log_event("resumed", step=2, from_step=2, superseded=run.supersede_after(2))
    log(run, 3, 4, 5)
    first, second = generations(event for _, event in run.events())
    assert [row["step"] for _, row in rows_after(run, first, 0)] == [1, 2, 3, 4]
    assert [row["step"] for _, row in rows_after(run, second, 0)] == [1, 2, 3, 4, 5]
    ends = [end for end, _ in rows_after(run, second, 0)]
    assert [row["step"] for _, row in rows_after(run, second, ends[2])] == [4, 5]


def test_completions_belong_to_their_generation(tmp_path: Path) -> None:
    """Those of a step are the first that it learns from; a step that learns from an earlier one's has none."""

    def complete(step: int, *texts: str, **fields: Any) -> None:
        for text in texts:
            append_jsonl(run.logs / "rollouts.jsonl", {"step": step, "completion": text, **fields})

    run = make_run(tmp_path, "a", steps=4)
    complete(1, "a", "b", "c", prompt=[{"role": "user"}], gold=3)
    complete(3, "lost", discarded="surplus")
    complete(3, "d")
    run.log_event("resumed", step=2, from_step=2, superseded=run.supersede_after(2))
    log(run, 3, 4)
    complete(3, "torn")
    run.log_event(
        "resumed", step=2, from_step=2, superseded={"rollouts.jsonl": run.supersede_after(2)["rollouts.jsonl"]}
    )
    complete(3, "e")
    first, second = generations((event for _, event in run.events()), ROLLOUTS)

    def tables(generation: Generation) -> list[list[str]]:
        found, offset = [], 0
        for step in (1, 2, 3, 4):
            offset, rows = completions_of(run, generation, offset, step, 2)
            found.append([row[COLUMNS.index("completion")] for row in rows])
        return found

    assert tables(first) == [["a", "b"], [], ["d"], []]
    assert tables(second) == [["a", "b"], [], ["e"], []]
    assert completions_of(run, first, 0, 1, 1)[1] == [
        [1, None, None, '[{"role": "user"}]', "a", None, None, None, None, 3]
    ]


def test_half_a_line_waits(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", steps=2)
    with (run.logs / "train_log.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    assert [row["step"] for _, row in rows_after(run, Generation(0), 0)] == [1, 2]


def test_keys_are_those_of_the_field() -> None:
    row = {
        "step": 3, "time": "2026-01-01T00:00:00Z", "reward": 0.5, "completions/mean_length": 7, "loss": "NaN",
        "health": [{"code": "x"}], "note": "text", "ok": True,
    }  # fmt: skip
    entry = entry_of(row)
    assert entry is not None
    assert math.isnan(entry.pop("train/loss"))
    assert entry == {
        "train/global_step": 3, "train/step": 3, "train/reward": 0.5, "reward/mean": 0.5, "completions/mean_length": 7,
    }  # fmt: skip
    assert entry_of({"reward": 1}) is None


def test_evaluations_are_sent_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", accuracy=(0.4, 0.5))
    append_jsonl(run.logs / "eval_log.jsonl", {"step": 10, "gsm8k_eval/pass_rate": 0.5, "other_eval/pass_rate": 1.0})
    first, second = evaluations_after(run, {})
    assert (first["train/global_step"], second["eval/gsm8k/accuracy"]) == (0, 0.5)
    assert {key for key in (*first, *second) if "pass_rate" in key} == {"gsm8k_eval/pass_rate"}
    assert last_evaluated(second) == {"gsm8k": 10}
    assert evaluations_after(run, last_evaluated(first)) == [second]
    assert evaluations_after(run, last_evaluated(second)) == []


def test_unset_keys_come_from_the_environment() -> None:
    config = load_config("tracking: {wandb: online, wandb_project: mine}")
    environment = {"WANDB_PROJECT": "other", "WANDB_ENTITY": "team", "WANDB_TAGS": "a, b", "WANDB_RUN_GROUP": "g"}
    found = settings.settings_of(config, "run", environment)
    assert (found.project, found.entity, found.tags, found.group) == ("mine", "team", ["a", "b"], "g")
    found = settings.settings_of(config, "run", {})
    assert (found.project, found.entity, found.tags, found.group) == ("mine", None, [], "run")


def test_unquoted_off_is_off() -> None:
    config = load_config("tracking: {wandb: off}")
    assert config.tracking.wandb == "off"
    assert load_config(dump_config(config)).tracking.wandb == "off"
    assert load_config("{}", ["tracking.wandb=off"]).tracking.wandb == "off"


def test_auto_depends_on_key_and_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        reachable = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert settings.resolve_mode("auto", {"WANDB_BASE_URL": reachable}) == "off"
        assert settings.resolve_mode("auto", {"WANDB_BASE_URL": reachable, "WANDB_API_KEY": "k"}) == "online"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens there, and nothing else can
        unreachable = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert settings.resolve_mode("auto", {"WANDB_BASE_URL": unreachable, "WANDB_API_KEY": "k"}) == "offline"
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password k\n")
        (tmp_path / ".netrc").chmod(0o600)
        assert settings.resolve_mode("auto", {"WANDB_BASE_URL": unreachable}) == "offline"
    monkeypatch.setattr(settings, "is_installed", lambda: False)
    assert settings.resolve_mode("auto", {"WANDB_API_KEY": "k"}) == "off"
    with pytest.raises(UserError, match=re.escape(install_command("wandb"))):
        settings.check("online")


def test_settings_that_wandb_would_ignore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    settings.check("offline")
    (tmp_path / "settings").mkdir()
    with pytest.raises(settings.WandbError, match="settings is not a file"):
        settings.check("offline")
    settings.check("off")
