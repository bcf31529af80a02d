"""What a supervisor writes about its run: ``status.json``, events, and lines for the console. Torch-free.

A disk that takes nothing must not end the run, so no method here raises OSError.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from typing import IO, Any

from grpo_train.run_dir import RunDir, StatusWriter
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.display import duration
from grpo_train.run_dir.files import open_for_writing, to_float
from grpo_train.supervisor.failure import MAX_LINE

# a status line that stays below the log lines of a run on a terminal ---------------------------------------

CLEAR_LINE = b"\r\x1b[K"
BAR_WIDTH = 24


class ProgressLine:
    """Writes log lines to stdout with a progress line (bar, percent, ETA) below them. Thread-safe."""

    def __init__(self, shown: bool) -> None:
        """``shown=False`` passes log lines through unchanged."""
        self._shown = shown
        self._text = b""
        self._lock = threading.Lock()

    def write(self, line: bytes) -> None:
        """Write one log line, which ends in a newline, above the progress line."""
        with self._lock:
            sys.stdout.buffer.write((CLEAR_LINE if self._text else b"") + line + self._text)
            sys.stdout.buffer.flush()

    def update(self, step: int, total: int, step_seconds: float | None) -> None:
        """Redraw the progress line."""
        if not self._shown or not total:
            return
        filled = BAR_WIDTH * min(step, total) // total
        eta = f"  ETA {duration(max(0, total - step) * step_seconds)}" if step_seconds else ""
        text = f"{'━' * filled}{'─' * (BAR_WIDTH - filled)}  {step}/{total}  {100 * step // total}%{eta}"
        self._draw(text)

    def clear(self) -> None:
        """Remove the progress line."""
        self._draw("")

    def _draw(self, text: str) -> None:
        with self._lock:
            line = text[: shutil.get_terminal_size().columns - 1].encode() if text else b""
            if line != self._text:
                sys.stdout.buffer.write(CLEAR_LINE + line)
                sys.stdout.buffer.flush()
                self._text = line


TAIL_LINES = 60
"""Console lines kept for an error: enough for every rank's message and the steps before it."""


class Journal:
    """The run's status, events and console. One per run: it holds the status lock."""

    def __init__(self, run: RunDir, terminal: ProgressLine, clock: Clock = CLOCK) -> None:
        """Take the run's status lock. Raises RunDirError if the run is live."""
        self.run, self.terminal = run, terminal
        self.clock = clock
        """What everything that supervises this run waits by."""
        self.status = StatusWriter(run.path)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """Last lines that the stage printed."""
        self.printed = 0
        """Number of lines that stages have printed."""
        self._began = clock.monotonic()
        self._seconds_before = to_float(self.status.fields.get("run_seconds")) or 0.0

    @property
    def run_seconds(self) -> float:
        """Time that the run has been supervised, over all its starts."""
        return self._seconds_before + self.clock.monotonic() - self._began

    def write(self, **fields: Any) -> None:
        """Update ``status.json``."""
        with self.writing("status.json"):
            self.status.update(run_seconds=round(self.run_seconds, 1), **fields)

    def event(self, event: str, **fields: Any) -> None:
        """Append to ``events.jsonl``."""
        with self.writing("events.jsonl"):
            self.run.log_event(event, **fields)

    @contextmanager
    def writing(self, file: object, then: str = "") -> Iterator[None]:
        """Say what cannot be written, and ``then``: a full disk must not end the run."""
        try:
            yield
        except OSError as error:
            self.say(f"cannot write {file}: {error.strerror}{then}")

    def say(self, text: str) -> None:
        """Print a line, on the terminal and to ``console.log``."""
        line = f"grpo-train: {text}\n".encode(errors="backslashreplace")
        with suppress(OSError), self.console_log() as log:  # a full disk
            log.write(line)
        with suppress(OSError, ValueError, RuntimeError):  # a closed terminal, or a signal while a line was written
            self.terminal.write(line)

    def copy_output(self, stream: IO[bytes]) -> None:
        """Copy the output of a stage to ``logs/console.log`` and to the terminal, to its end."""
        with ExitStack() as stack:
            writes: list[Callable[[bytes], object]] = [self.terminal.write]
            with self.writing(self.run.logs / "console.log"):
                writes.append(stack.enter_context(self.console_log()).write)
            for line in iter(stream.readline, b""):
                self.printed += 1
                self.tail.append(line.decode(errors="replace").rstrip("\n")[:MAX_LINE])
                for write in writes:
                    with suppress(OSError):  # neither a full disk nor a closed terminal may end the run
                        write(line)

    def console_log(self) -> FileIO:
        """``logs/console.log``, to append to. Raises OSError."""
        return os.fdopen(open_for_writing(self.run.logs / "console.log"), "ab", buffering=0)

    def close(self) -> None:
        """Release the status lock."""
        self.status.close()
        self.terminal.clear()
