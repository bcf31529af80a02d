"""Topics: who is sent a value, and when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from remote.agent import watch
from remote.agent.context import BoxContext
from remote.agent.outbox import Outbox
from remote.agent.watch import Watcher
from tests.support.agent import eventually


class RecordingOutbox(Outbox):
    def __init__(self) -> None:
        super().__init__(os.open(os.devnull, os.O_WRONLY))
        self.sent: list[int] = []

    def put_newest(self, frame: dict[str, Any]) -> None:
        self.sent.append(frame["id"])


def test_a_failed_read_forgets_no_subscriber(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [False]

    class Table:
        def __init__(self, box: BoxContext) -> None:
            pass

        def rows(self) -> list[dict[str, Any]]:
            if fails[0]:
                fails[0] = False
                raise OSError("the disk is away")
            return []

    monkeypatch.setattr(watch, "RunTable", Table)
    monkeypatch.setattr(watch, "RETRY_S", 0.01)
    outbox = RecordingOutbox()
    watcher = Watcher(BoxContext.from_settings({"root": str(root)}), outbox)
    watcher.add("runs", 1)
    eventually(lambda: outbox.sent == [1])
    fails[0] = True
    watcher.add("runs", 2)
    eventually(lambda: outbox.sent == [1, 2])
    outbox.broken.set()
