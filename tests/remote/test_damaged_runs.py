"""One damaged run among others: its row says why, and the others stay live."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.run_dir import RunDir, StatusWriter, create_run
from remote.agent import topics
from remote.agent.box import BoxContext
from remote.agent.operations import show_run
from remote.agent.topics import RunTable
from remote.protocol import encode_parts
from remote.protocol.check import mismatch
from remote.protocol.runs import ShowRunReply, ShowRunRequest
from tests.support.agent import RawAgent
from tests.support.damage import CONTENTS, FILES, NOT_FILES, arbitrary_json
from tests.support.patience import PATIENCE


def rows(root: Path) -> dict[str, dict[str, Any]]:
    found = RunTable(BoxContext.from_settings({"root": str(root)})).rows()
    encode_parts({"type": "update", "id": 1, "value": {"runs": found}})
    json.dumps(found, allow_nan=False)
    return {row["run"]: row for row in found}


def make_live(root: Path, name: str) -> StatusWriter:
    run = create_run(root, {}, name)
    writer = StatusWriter(run.path)
    writer.update(state="running", total_steps=10)
    return writer


def test_every_damage_at_once_leaves_the_others_live(root: Path) -> None:
    live = [make_live(root, name) for name in ("alive", "well")]
    damaged = []
    for file in FILES:
        for kind, make in NOT_FILES.items():
            damaged.append(create_run(root, {}, f"{kind}-{file.replace('/', '-')}"))
            path = damaged[-1].path / file
            path.unlink(missing_ok=True)
            make(path)
    for index, content in enumerate(CONTENTS):
        for file in ("launch.json", "status.json"):
            damaged.append(create_run(root, {}, f"content-{index}-{file}"))
            (damaged[-1].path / file).write_bytes(content)
    damaged.append(create_run(root, {}, "huge"))
    with damaged[-1].status_file.open("wb") as file:
        file.truncate(1 << 30)
    began = time.monotonic()
    agent = RawAgent(root)
    agent.send({"type": "subscribe", "id": 1, "topic": "runs"})
    update = agent.until(lambda frame: frame["type"] == "update")
    assert time.monotonic() - began < PATIENCE * 30
    states = {row["run"]: row["state"] for row in update["value"]["runs"]}
    assert states == {**{run.name: "unreadable" for run in damaged}, "alive": "running", "well": "running"}
    assert agent.request("list_runs")["ok"]
    for run in damaged:
        shown = agent.request("show_run", run=run.name)
        assert shown["ok"], shown
        assert shown["result"]["summary"]["state"] == "unreadable"
    live[0].update(state="finished")
    agent.until(lambda f: f["type"] == "update" and {"finished", "running"} <= {r["state"] for r in f["value"]["runs"]})
    agent.close()
    for writer in live:
        writer.close()


def test_repaired_run_is_readable_again(root: Path) -> None:
    run = create_run(root, {}, "one")
    table = RunTable(BoxContext.from_settings({"root": str(root)}))
    for path in (run.launch_file, run.status_file, run.events_file):
        good = path.read_bytes() if path.exists() else b'{"state": "finished"}'
        path.write_bytes(b"[" * 100_000 + b"\n")
        assert table.rows()[0]["state"] == "unreadable"
        path.write_bytes(good)
        assert table.rows()[0]["state"] in ("starting", "finished")


@pytest.mark.parametrize("name", [b"\x1b]0;owned\x07", b"\xff\xfe", "a\u202eb".encode(), b"c\x9bd"])
def test_unprintable_name_is_an_unreadable_row(root: Path, name: bytes) -> None:
    make_live(root, "alive").close()
    run = create_run(root, {}, "other")
    run.path.rename(run.path.with_name(os.fsdecode(name)))
    (root / "rl_runs" / os.fsdecode(name)).mkdir(parents=True)
    states = {shown: row["state"] for shown, row in rows(root).items()}
    assert states.pop("alive") == "running"
    assert [*states.values()] in (["unreadable"], ["old layout"])  # both have the same escaped name
    assert all(shown.isprintable() and shown.encode() for shown in states)


def test_a_defect_costs_one_row(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_run(root, {}, "bad")
    create_run(root, {}, "good")
    summary = RunDir.summary

    def broken(run: RunDir) -> dict[str, Any]:
        if run.name == "bad":
            raise KeyError("a defect")
        return summary(run)

    monkeypatch.setattr(RunDir, "summary", broken)
    found = rows(root)
    assert found["good"]["state"] == "starting"
    assert found["bad"]["error"] == {"code": "unreadable", "summary": "KeyError: 'a defect'"}


def test_long_errors_do_not_exceed_a_frame(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_ERROR_CHARACTERS", 30_000)
    for index in range(4):
        run = create_run(root, {}, f"run{index}")
        error = {"code": "internal", "summary": "boom", "console_tail": ["x" * 10_000]}
        run.status_file.write_text(json.dumps({"state": "crashed", "error": error}))
    found = rows(root)
    assert sum("console_tail" in row["error"] for row in found.values()) == 2
    assert {row["error"]["summary"] for row in found.values()} == {"boom"}


_FOLDERS = ("training_state", "training_state/step_1", "training_state/step_99999999999999999999")


@settings(max_examples=60)
@given(data=st.data())
def test_any_json_anywhere_gives_rows_and_a_reply(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("any")
    run = create_run(root, {}, "one")
    evaluation = root / "eval_runs" / "one_gsm8k"
    evaluation.mkdir(parents=True)
    for folder in _FOLDERS:
        (run.path / folder).mkdir(exist_ok=True)
        (run.path / folder / "MANIFEST.json").write_bytes(data.draw(arbitrary_json()))
    for name in FILES:
        (run.path / name).write_bytes(data.draw(arbitrary_json()) + b"\n")
    (evaluation / "status.json").write_bytes(data.draw(arbitrary_json() | st.just(b'{"training_run": "one"}')))
    (evaluation / "consolidated_metrics.csv").write_bytes(data.draw(st.binary(max_size=60)))
    create_run(root, {}, "two")
    found = rows(root)
    assert found["two"]["state"] == "starting"
    assert isinstance(found["one"]["state"], str)
    reply = show_run(BoxContext.from_settings({"root": str(root)}), ShowRunRequest("one"))
    assert mismatch(reply, ShowRunReply) == ""
    encode_parts({"type": "response", "id": 1, "ok": True, "result": reply})
    json.dumps(reply, allow_nan=False)


def test_a_config_that_is_no_text_has_its_reason(tmp_path: Path) -> None:
    run = create_run(tmp_path, {}, "one")
    run.config_file.write_bytes(b"\xff\xfe\x00")
    reply = show_run(BoxContext.from_settings({"root": str(tmp_path)}), ShowRunRequest("one"))
    assert reply["config_text"] == ""
    assert reply["config_problem"].startswith("config.yaml: not UTF-8 text")
