"""The commands at work on the backups of runs, from ``transfers/training_runs.NAME`` (:mod:`grpo_train.backup.job`)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import last_jsonl, read_json, to_float
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES
from grpo_train.run_dir.status import observe

EVERY_S = 1.0
"""A command writes its progress once a second."""
KIND = "training_runs."
MAX_BYTES = 1e15
_TEXTS, _NUMBERS = ("command", "phase", "destination"), ("bytes", "bytes_total", "proven", "seconds")


class Transfers:
    """Run name to the progress of the command that is at work on it."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "transfers"
        self._ended: dict[str, object] = {}
        """Folder to the signature of a status that is not live."""
        self._found: dict[str, dict[str, Any]] = {}
        self._read_at: float | None = None

    def results(self) -> dict[str, dict[str, Any]]:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= EVERY_S:
            found = {name.removeprefix(KIND): self._progress(name) for name in self._folders()}
            self._found, self._read_at = {run: row for run, row in found.items() if row}, time.monotonic()
        return self._found

    def _folders(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.startswith(KIND)]
        except OSError:
            return []

    def _progress(self, name: str) -> dict[str, Any]:
        """{} without a command at work, or where it cannot be read."""
        folder = self._folder / name
        try:
            facts = (folder / "status.json").stat()
            signature = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if self._ended.get(name) == signature:
                return {}
            status = read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True)
            if status is None or not observe(status).is_live:
                self._ended[name] = signature
                return {}
            row = last_jsonl(folder / "progress.jsonl") or {}
        except OSError:
            return {}
        numbers = {key: to_float(row.get(key)) or 0.0 for key in _NUMBERS}
        texts = {key: row.get(key) for key in _TEXTS}
        return {
            **{key: text[:64] if isinstance(text, str) and text.isprintable() else "" for key, text in texts.items()},
            **{key: min(max(number, 0.0), MAX_BYTES) for key, number in numbers.items()},
        }
