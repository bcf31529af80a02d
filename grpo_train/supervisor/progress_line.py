"""A status line that stays below the log lines of a run on a terminal."""

from __future__ import annotations

import shutil
import sys
import threading

from grpo_train.run_dir.display import duration

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
