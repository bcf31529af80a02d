"""The newest held-out accuracy of each run, from one reading of ``eval_runs``; unchanged tables are not read again."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.evaluations import TABLE, read_table
from grpo_train.run_dir.files import read_json, to_float
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES

EVERY_S = 5.0
"""An evaluation takes minutes; on a slow disk a reading takes long."""


class HeldOutResults:
    """Run name to ``{"accuracy", "dataset", "step"}`` of its last evaluated checkpoint."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._folder, self._clock = root / "eval_runs", clock
        self._known: dict[str, tuple[object, str, dict[str, Any] | None]] = {}
        """Folder to (signature, run, result)."""
        self._results: dict[str, dict[str, Any]] = {}
        self._read_at: float | None = None

    def results(self) -> dict[str, dict[str, Any]]:
        """Of several datasets, the one whose checkpoint is the newest, then the first by name."""
        now = self._clock.monotonic()
        if self._read_at is not None and now - self._read_at < EVERY_S:
            return self._results
        known: dict[str, tuple[object, str, dict[str, Any] | None]] = {}
        results: dict[str, dict[str, Any]] = {}
        for name in self._folders():
            folder = self._folder / name
            signature = _signature(folder)
            entry = self._known.get(name)
            if entry is None or entry[0] != signature:
                entry = (signature, *_result(folder))
            known[name] = entry
            _, run, result = entry
            if result is not None and (run not in results or result["step"] > results[run]["step"]):
                results[run] = result
        self._known, self._results, self._read_at = known, results, self._clock.monotonic()
        return results

    def _folders(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        except OSError:
            return []


def _signature(folder: Path) -> object:
    found: list[object] = []
    for path in (folder / "status.json", folder / TABLE):
        try:
            facts = path.stat()
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def _result(folder: Path) -> tuple[str, dict[str, Any] | None]:
    """The run of an evaluation, and its result at the highest step; no result where nothing can be read."""
    try:
        status = read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True) or {}
        rows = read_table(folder)
    except OSError:
        return "", None
    run = status.get("training_run")
    if not isinstance(run, str):
        return "", None
    best: dict[str, Any] | None = None
    dataset = folder.name.removeprefix(f"{run}_")[:255]
    for row in rows:
        accuracy = _number(row.get("accuracy"))
        step = int(row["step"]) if len(row["step"]) <= 15 else None
        if accuracy is not None and step is not None and (best is None or step >= best["step"]):
            best = {"accuracy": accuracy, "dataset": dataset, "step": step}
    return run, best


def _number(text: object) -> float | None:
    try:
        value = to_float(float(str(text)))
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None
