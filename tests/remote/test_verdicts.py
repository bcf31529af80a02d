"""The verdict on a run in the list of runs, in the facts of one run, and for a shell."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.verdict import RunVerdict
from grpo_train.run_dir.verdict_rules import verdict_of
from remote.agent import index
from remote.agent.verdicts import LIVE_EVERY_S, Verdicts
from remote.index import answers
from remote.protocol import RemoteError
from tests.support.agent import RawAgent
from tests.support.clock import TestClock
from tests.support.histories import make_run
from tests.support.index import Box
from tests.support.patience import PATIENCE

CHANGES = {"optimizer.learning_rate": [1e-4, 2e-3]}


def log(run: RunDir, first: int, last: int, reward: float) -> None:
    for step in range(first, last + 1):
        noise = 0.03 * math.sin(17 * step)
        append_jsonl(run.logs / "train_log.jsonl", {"step": step, "reward": reward + noise, "loss": 0.1})


@pytest.fixture
def collapsed(root: Path) -> RunDir:
    """A run that fell to nothing 3 steps after it was resumed at a higher learning rate."""
    run = make_run(root, "fallen", steps=1)
    (run.logs / "train_log.jsonl").unlink()
    log(run, 1, 42, 1.8)
    append_jsonl(run.events_file, {"step": 40, "event": "resumed", "changes": CHANGES})
    log(run, 43, 60, 0.0)
    return run


def verdicts(agent: RawAgent, **request: Any) -> dict[str, dict[str, Any] | None]:
    rows = agent.request("list_runs", **request)["result"]["runs"]
    return {row["run"]: row.get("verdict") for row in rows}


def test_the_list_has_the_verdict_once_it_is_known(root: Path, collapsed: RunDir) -> None:
    make_run(root, "young", steps=3)
    agent = RawAgent(root)
    agent.send({"type": "subscribe", "id": 1, "topic": "runs"})

    def told(frame: dict[str, Any]) -> bool:
        rows = frame["value"]["runs"] if frame.get("id") == 1 and "value" in frame else []
        return any((row.get("verdict") or {}).get("word") == "collapsed" for row in rows)

    rows = {row["run"]: row for row in agent.until(told)["value"]["runs"]}
    assert "verdict" not in rows["young"]
    found = RunVerdict.from_json(rows["fallen"]["verdict"])
    assert found == verdict_of(collapsed)
    assert found is not None
    assert (found.since, found.cause, found.cause_step) == (43, "learning_rate 1e-4→2e-3", 40)
    log(collapsed, 61, 100, 1.8)  # it came back
    assert agent.until(lambda frame: frame.get("id") == 1 and not told(frame))
    agent.close()


def test_a_shell_waits_for_verdicts(root: Path, collapsed: RunDir) -> None:
    agent = RawAgent(root)
    found = verdicts(agent, verdicts=True)["fallen"]
    assert found is not None
    assert found["word"] == "collapsed"
    assert agent.request("verdict", run="fallen")["result"] == {"run": "fallen", "is_known": True, "verdict": found}
    shown = agent.request("show_run", run="fallen", verdict=True)["result"]["summary"]
    assert shown["verdict"] == found
    assert "verdict" not in agent.request("show_run", run="fallen")["result"]["summary"]
    agent.close()


def test_a_live_run_is_judged_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, clock = [], TestClock()

    def answer(box: Any, op: str, run: str, params: dict[str, Any]) -> dict[str, Any]:
        asked.append(run)
        return {"is_known": True, "verdict": None}

    monkeypatch.setattr(index, "request", answer)
    found = Verdicts(SimpleNamespace(clock=clock))  # type: ignore[arg-type]
    for step, pause, times in ((1, 0.0, 1), (2, 0.0, 1), (3, LIVE_EVERY_S - 1, 1), (4, 1.0, 2), (4, LIVE_EVERY_S, 2)):
        clock.advance(pause)
        found.results([{"run": "one", "layout": "run", "state": "running", "step": step}])
        found.join(60 * PATIENCE)
        assert len(asked) == times, f"step {step}"


def test_verdicts_wait_for_an_index_in_progress(
    root: Path, collapsed: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be waiting for its curves."""
    row = b'{"step": 1, "reward": 1.0, "text": "' + b"x" * 100 + b'"}\n'
    (make_run(root, "long", steps=1).logs / "train_log.jsonl").write_bytes(row * 10_000)
    monkeypatch.setattr(answers, "BUDGET_S", 0.0)
    box = Box(root, tmp_path / "cache")
    assert box.ask("metrics", "long")["state"] == "coarse"
    assert box.ask("verdict", "fallen") == {"run": "fallen", "is_known": False, "verdict": None}
    assert not box.ask("verdict", "long")["is_known"], "which extends its index"
    while box.answers.is_busy:
        box.answers.work(lambda: True)
    assert box.ask("verdict", "fallen")["verdict"]["word"] == "collapsed"


def test_a_log_that_cannot_be_indexed_leaves_the_list_whole(
    root: Path, collapsed: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise RemoteError("no_index", "no folder accepts the index")

    monkeypatch.setattr(index, "request", refuse)
    agent = RawAgent(root)
    assert verdicts(agent, verdicts=True) == {"fallen": None}
    assert agent.request("show_run", run="fallen", verdict=True)["ok"]
    agent.close()


def test_a_verdict_of_a_later_version_is_none() -> None:
    known = RunVerdict("collapsed", 3, 9, "reward", 1.0, 0.0).to_json()
    assert RunVerdict.from_json(known) == RunVerdict("collapsed", 3, 9, "reward", 1.0, 0.0)
    assert RunVerdict.from_json({**known, "colour": "red"}) is not None
    assert RunVerdict.from_json({**known, "word": "bewitched"}) is None
    assert RunVerdict.from_json(None) is None
