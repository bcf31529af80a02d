"""The commands at work on the backups of runs, and those that failed: ``transfers/training_runs.NAME``.

See :mod:`grpo_train.backup.job`. A failed command is reported until another one of the same run is done.
"""

from __future__ import annotations

import os
import shlex
from collections import deque
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.files import last_jsonl, to_float
from grpo_train.run_dir.rows import printable
from grpo_train.run_dir.status import read_state

EVERY_S = 1.0
"""A command writes its progress once a second."""
RATE_S = 20.0
"""The rate is that of the last seconds."""
KIND = "training_runs."
MAX_BYTES = 1e15
MAX_TEXT = 500
KILLED = "it was killed, or this box was restarted"
_LABELS, _TEXTS = ("command", "phase", "destination"), ("what", "error")
_NUMBERS = ("bytes", "bytes_total", "proven", "files", "files_total", "seconds")


class Transfers:
    """Run name to the progress of the command that is at work on it, or that failed last."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._folder, self._clock = root / "transfers", clock
        self._ended: dict[str, tuple[object, dict[str, Any]]] = {}
        """Folder to the signature of a status that is not live, and its row."""
        self._rates: dict[str, _Rate] = {}
        self._found: dict[str, dict[str, Any]] = {}
        self._read_at: float | None = None

    def results(self) -> dict[str, dict[str, Any]]:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= EVERY_S:
            found = {name.removeprefix(KIND): self._progress(name) for name in self._folders()}
            self._found, self._read_at = {run: row for run, row in found.items() if row}, self._clock.monotonic()
        return self._found

    def _folders(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.startswith(KIND)]
        except OSError:
            return []

    def _progress(self, name: str) -> dict[str, Any]:
        """{} where the last command is done, or where it cannot be read."""
        folder = self._folder / name
        try:
            facts = (folder / "status.json").stat()
            signature = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            known, row = self._ended.get(name, (None, {}))
            if known == signature:
                return row
            status, state = read_state(folder)
            if status is None or state.state == "finished":
                row = {}
            else:
                row = _row(status, last_jsonl(folder / "progress.jsonl") or {}, failed=not state.is_live)
        except OSError:
            return {}
        if not state.is_live:
            self._rates.pop(name, None)
            self._ended[name] = signature, row
            return row
        rate = self._rates.setdefault(name, _Rate())
        return {**row, "rate": rate.after(row)}


class _Rate:
    """Bytes per second of late, in the present phase of a command."""

    def __init__(self) -> None:
        self._phase = ""
        self._points: deque[tuple[float, float]] = deque()
        """Seconds since the start of the command, and bytes by then."""

    def after(self, row: dict[str, Any]) -> float:
        seconds, moved = row["seconds"], row["proven" if row["phase"] == "proving" else "bytes"]
        points = self._points
        if row["phase"] != self._phase or (points and (seconds < points[-1][0] or moved < points[-1][1])):
            points.clear()
            self._phase = row["phase"]
        if not points or seconds > points[-1][0]:
            points.append((seconds, moved))
        while seconds - points[0][0] > RATE_S and len(points) > 2:
            points.popleft()
        passed = points[-1][0] - points[0][0]
        return (points[-1][1] - points[0][1]) / passed if passed > 0 else 0.0


def _row(status: dict[str, Any], progress: dict[str, Any], *, failed: bool) -> dict[str, Any]:
    """See :class:`remote.protocol.run_rows.Transfer`."""
    row = {**{key: status.get(key) for key in ("command", "destination")}, **progress}
    numbers = {key: min(max(to_float(row.get(key)) or 0.0, 0.0), MAX_BYTES) for key in _NUMBERS}
    labels = {key: _text(row.get(key), 64) for key in _LABELS}
    texts = {key: _text(row.get(key), MAX_TEXT) for key in _TEXTS}
    if failed:
        labels["phase"], texts["error"] = "failed", texts["error"] or KILLED
    argv = status.get("argv")
    words = [word for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    return {**numbers, **labels, **texts, "rate": 0.0, "again": _text(shlex.join(words), MAX_TEXT)}


def _text(value: object, limit: int) -> str:
    return printable(value[:limit]) if isinstance(value, str) else ""
