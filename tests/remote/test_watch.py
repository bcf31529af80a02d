"""Topics: who is sent a value or an error, and when."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import StatusWriter, create_run
from remote.agent import topics as watch
from remote.agent.box import BoxContext
from remote.agent.outbox import Outbox
from remote.agent.sessions import Sessions
from remote.agent.topics import Watcher
from tests.support.agent import RawAgent, eventually
from tests.support.clock import TestClock


class RecordingOutbox(Outbox):
    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self.clock = TestClock()
        super().__init__(writer, self.clock)
        self.frames: list[dict[str, Any]] = []

    def end(self) -> None:
        """End the thread, as a client does that no longer reads."""
        os.close(self._reader)
        self.put({})
        self.broken.wait()
        os.close(self._descriptor)

    def settle(self, topics: int) -> None:
        """Wait until this number of topics waits for the next read."""
        self.clock.wait_for_threads(topics + 2)
        self.clock.settle()

    def put_newest(self, frame: dict[str, Any]) -> None:
        self.frames.append(frame)

    def of(self, subscription: int) -> list[str]:
        """The error message or ``value`` of each update so far."""
        frames = [frame for frame in self.frames if frame["id"] == subscription]
        return [frame["error"]["message"] if "error" in frame else "value" for frame in frames]


@contextmanager
def watching(root: Path, **settings: Any) -> Iterator[tuple[Watcher, RecordingOutbox]]:
    outbox = RecordingOutbox()
    watcher = Watcher(BoxContext.from_settings({"root": str(root), **settings}, outbox.clock), outbox)
    try:
        yield watcher, outbox
    finally:
        outbox.end()
        watcher.refresh("runs", "sessions", "gpu")


def test_unreadable_root_is_reported_once_then_cleared(root: Path) -> None:
    create_run(root, {}, "one")
    runs, away = root / "training_runs", root / "away"
    with watching(root) as (watcher, outbox):
        watcher.add("runs", 1)
        outbox.settle(topics=1)
        assert outbox.of(1) == ["value"]
        outbox.clock.advance(60)
        assert outbox.of(1) == ["value"], "nothing has changed"
        runs.rename(away)
        runs.write_text("")
        outbox.clock.advance(watch.EVERY_S["runs"])
        first = f"{runs} is not a directory"
        assert outbox.of(1) == ["value", first]
        watcher.add("runs", 2)
        outbox.clock.advance(60)
        assert (outbox.of(1), outbox.of(2)) == (["value", first], [first])
        runs.unlink()
        away.rename(runs)
        outbox.clock.advance(watch.RETRY_S)
        assert (outbox.of(1), outbox.of(2)) == (["value", first, "value"], [first, "value"])
        assert outbox.frames[-1]["value"] == outbox.frames[0]["value"]


def test_times_alone_are_passed_on_now_and_then(root: Path) -> None:
    writer = StatusWriter(create_run(root, {}, "one").path)
    writer.update(state="running")
    with watching(root) as (watcher, outbox):
        watcher.add("runs", 1)
        outbox.settle(topics=1)
        assert outbox.of(1) == ["value"]
        for _ in range(20):
            writer.update()
            outbox.clock.advance(1)
        assert outbox.of(1) == ["value", "value", "value"]
    writer.close()


def test_changed_error_is_sent_again(root: Path) -> None:
    with watching(root) as (watcher, outbox):
        root.rmdir()
        root.write_text("")
        watcher.add("runs", 1)
        first = f"{root} is not a directory"
        outbox.settle(topics=1)
        assert outbox.of(1) == [first]
        root.unlink()
        root.symlink_to(root)
        outbox.clock.advance(watch.RETRY_S)
        assert outbox.of(1)[1] == f"{root / 'training_runs'}: Too many levels of symbolic links"


def test_root_that_does_not_exist_has_no_runs(root: Path) -> None:
    with watching(root / "later") as (watcher, outbox):
        watcher.add("runs", 1)
        eventually(lambda: outbox.frames)
        assert outbox.frames[0]["value"] == {"runs": []}


def test_defect_of_the_agent_does_not_end_a_topic(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails: list[Exception] = [ValueError("a defect"), RecursionError("too deep")]

    def read() -> dict[str, Any]:
        if fails:
            raise fails.pop(0)
        return {"gpus": [], "note": ""}

    monkeypatch.setattr(watch, "gpu_value", read)
    with watching(root) as (watcher, outbox):
        watcher.add("gpu", 1)
        failed = ["the agent failed: ValueError: a defect", "the agent failed: RecursionError: too deep"]
        outbox.settle(topics=1)
        assert outbox.of(1) == failed, "a new subscription is read for twice"
        outbox.clock.advance(watch.RETRY_S)
        assert outbox.of(1) == [*failed, "value"]


def test_tmux_that_hangs_is_reported_and_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = threading.Event(), threading.Event()
    answers.set()

    def rows(sessions: Sessions) -> list[dict[str, Any]]:
        asked.set()
        answers.wait()
        return []

    monkeypatch.setattr(Sessions, "rows", rows)
    late = "tmux has not answered for 10 s"
    with watching(root) as (watcher, outbox):
        clock = outbox.clock
        watcher.add("sessions", 1)
        outbox.settle(topics=1)
        assert outbox.of(1) == ["value"]
        answers.clear()
        asked.clear()
        watcher.refresh("sessions")
        asked.wait()
        with clock.without("watch-sessions"):
            clock.advance(9)
            assert outbox.of(1) == ["value"]
            clock.advance(3)
            assert outbox.of(1) == ["value", late]
            watcher.add("sessions", 2)
            watcher.add("gpu", 3)
            eventually(lambda: outbox.of(3) == ["value"])  # the other topics are alive
            clock.advance(60)
            assert (outbox.of(1), outbox.of(2)) == (["value", late], [late])
            answers.set()
        clock.settle()
        assert (outbox.of(1), outbox.of(2)) == (["value", late, "value"], [late, "value"])


def test_agent_sends_the_error_of_a_topic(root: Path) -> None:
    (root / "training_runs").write_text("")
    agent = RawAgent(root)
    agent.send({"type": "subscribe", "id": 1, "topic": "runs"})
    update = agent.until(lambda frame: frame["type"] == "update")
    assert set(update) == {"type", "id", "error"}
    assert update["error"] == {
        "code": "bad_root",
        "message": f"{root / 'training_runs'} is not a directory",
        "hint": "mount it, or correct 'root' in boxes.yaml",
    }
    agent.close()
