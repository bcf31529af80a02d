"""Console output of an evaluation. Torch-free."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TextIO


class EvaluationOutput:
    """Prints plain lines and no progress. A closed terminal or pipe does not stop the evaluation."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """``stream`` defaults to stdout."""
        self._stream = stream

    def line(self, text: str) -> None:
        """Print a line."""
        with suppress(OSError):  # a closed terminal
            print(text, file=self._stream or sys.stdout, flush=True)

    def progress(self, name: str, done: int, total: int) -> None:
        """Report samples finished and requested in this round; ``name`` is the step in progress."""


class TerminalOutput(EvaluationOutput):
    """Prints lines above a progress line with the estimated time left; a context manager."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__()
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("samples  ETA"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(*columns, transient=True)
        self._task = self._progress.add_task("", total=None, visible=False)

    def line(self, text: str) -> None:
        with suppress(OSError):  # a closed terminal
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, name: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=name, completed=done, total=total, visible=True)

    def __enter__(self) -> TerminalOutput:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
