"""Progress of a command: a bar on a terminal, one line a step elsewhere (what the TUI reads)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_printer() -> Iterator[Callable[[float, str], None]]:
    """Yields ``show(fraction, message)``; without a terminal it prints ``progress 0.37 message`` a percent."""
    if sys.stdout.isatty():
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns) as progress:
            task = progress.add_task("starting", total=1.0)
            yield lambda fraction, message: progress.update(task, completed=fraction, description=message)
        return
    last = -1

    def show(fraction: float, message: str) -> None:
        nonlocal last
        if (percent := int(fraction * 100)) > last:
            last = percent
            print(f"progress {fraction:.2f} {message}", flush=True)

    yield show
