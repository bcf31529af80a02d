"""A supervisor in a thread of the test, by a clock that the test advances; its stages are real processes without torch.

    with supervised(run, config, {"train": [["train:2", "killed"], ["train:4"]]}) as it:
        it.waits_for("restarted")
        it.clock.advance(10)
        assert it.ended() == 0

The clock does not know the processes: wait for what they do before the time is advanced.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import kill_all, run_id_of
from grpo_train.supervisor.save_backups import SaveBackups
from grpo_train.supervisor.stages import Stage
from grpo_train.supervisor.supervisor import Supervisor
from tests.support.clock import TestClock
from tests.support.engine import events, wait_for
from tests.support.patience import PATIENCE

Attempts = Sequence[Sequence[str]]
"""The words of :mod:`tests.support.fake_stage`, one list for each start of a stage; the last one is repeated."""


def fake_command(run: RunDir, *words: str) -> list[str]:
    """A stage that does what the words of :mod:`tests.support.fake_stage` say."""
    return [sys.executable, str(Path(__file__).with_name("fake_stage.py")), str(run.path), *words]


class Supervised:
    """What a test does with its supervisor."""

    def __init__(self, run: RunDir, config: Config, clock: TestClock, **options: Any) -> None:
        self.run, self.clock = run, clock
        self.supervisor = Supervisor(run, config, clock=clock, **options)
        self.starts: list[Stage] = []
        """The stages, as often as they were started."""
        self._code: int | None = None
        self.thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def _supervise(self) -> None:
        self._code = self.supervisor.run(owns_process=False)

    @property
    def status(self) -> dict[str, Any]:
        return self.run.read_status() or {}

    @property
    def console(self) -> str:
        """What the supervisor and its stages have printed."""
        file = self.run.logs / "console.log"
        return file.read_text() if file.exists() else ""

    def waits_for(self, event: str, times: int = 1) -> None:
        """Wait for an event of the run, and until the supervisor waits again."""
        wait_for(lambda: events(self.run).count(event) >= times, f"{event} in {events(self.run)}")
        self.clock.settle()

    def prints(self, text: str, times: int = 1) -> None:
        """Wait for a text on the console."""
        wait_for(lambda: self.console.count(text) >= times, f"{text!r} on the console")

    def ended(self) -> int:
        """Wait for the end of the run, which needs no time of the clock any more; its exit code."""
        self.thread.join(PATIENCE * 60)
        assert self._code is not None, self.console
        return self._code


@contextmanager
def supervised(
    run: RunDir,
    config: Config,
    stages: Mapping[str, Attempts] | None = None,
    **options: Any,
) -> Iterator[Supervised]:
    """Supervise a run. ``stages``: what is started, by the kind of a stage; None = the real commands."""
    it = Supervised(run, config, TestClock(), **options)
    real = Stage.command

    def command(stage: Stage, *arguments: Any) -> list[str]:
        it.starts.append(stage)
        if stages is None:
            return real(stage, *arguments)
        attempts = stages[stage.kind]
        so_far = sum(each.kind == stage.kind for each in it.starts)
        return fake_command(run, *attempts[min(so_far, len(attempts)) - 1])

    with patch.object(Stage, "command", command), patch.object(SaveBackups, "last", lambda _: True):
        it.thread.start()
        try:
            yield it
        finally:
            it.supervisor.stops.killing = True
            while it.thread.is_alive():
                kill_all(run_id_of(run.path))
                it.clock.advance(1)
            it.thread.join()
