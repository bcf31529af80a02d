"""Checkpoints and starting weights on this box: room, what nothing needs, held-out results. Read on request only.

Sizes come from the manifests, each read once: a complete checkpoint does not change. A request reads for
:data:`BUDGET_S` at most; the next one continues where it ended.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir, list_evaluations, utc_from
from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.configs import config_values
from grpo_train.run_dir.display import fraction
from grpo_train.run_dir.evaluations import TABLE, read_table
from grpo_train.run_dir.files import read_json, to_float
from grpo_train.run_dir.keeping import accuracies_of, checkpoint_size, links_of, paths_in_use, reasons_to_keep
from grpo_train.run_dir.manifest import MANIFEST, STEP_NAME, problem_of
from grpo_train.run_dir.root import is_run
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes
from remote.agent.box import BoxContext
from remote.protocol import RemoteError
from remote.protocol.backups import (
    MAX_SIZES,
    MAX_SPARE,
    CheckpointSizesReply,
    CheckpointSizesRequest,
    SpareCheckpointsReply,
    SpareCheckpointsRequest,
)
from remote.protocol.check import Row
from remote.protocol.jobs import CheckWeightsReply, CheckWeightsRequest, ListWeightsReply
from remote.protocol.operations import NoParameters

EVERY_S = 5.0
"""An evaluation takes minutes; on a slow disk a reading takes long."""


class HeldOutResults:
    """Run name to ``{"accuracy", "dataset", "step", "best", "best_step"}``: its last evaluated checkpoint, and the best
    one on that dataset."""

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
    """The run of an evaluation, and its results at the highest step and at the best one; none where nothing can be
    read."""
    try:
        status = read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True) or {}
        rows = read_table(folder)
    except OSError:
        return "", None
    run = status.get("training_run")
    if not isinstance(run, str):
        return "", None
    found: dict[int, float] = {}
    for row in rows:
        accuracy = _number(row.get("accuracy"))
        step = int(row["step"]) if len(row["step"]) <= 15 else None
        if accuracy is not None and step is not None:
            found[step] = accuracy
    if not found:
        return run, None
    last, best = max(found), max(sorted(found), key=found.__getitem__)
    dataset = folder.name.removeprefix(f"{run}_")[:255]
    return run, {
        "accuracy": found[last], "dataset": dataset, "step": last, "best": found[best], "best_step": best,
    }  # fmt: skip


def _number(text: object) -> float | None:
    try:
        value = to_float(float(str(text)))
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


FOLDERS = ("checkpoints", "lora_checkpoints", "models")
"""Directories of the root that are searched."""
MAX_DEPTH = 3
"""``models/OWNER/NAME``, ``lora_checkpoints/RUN/step_N``."""
MAX_WEIGHTS = 1_000
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin")


def list_weights(box: BoxContext, request: NoParameters) -> ListWeightsReply:
    """Adapter and model directories under :data:`FOLDERS`, newest first."""
    found: list[tuple[float, Row]] = []
    for folder in FOLDERS:
        for path in _search(box.root / folder, MAX_DEPTH):
            modified = path.stat().st_mtime
            name = path.relative_to(box.root / folder).as_posix()
            row = {
                "name": name,
                "path": path.relative_to(box.root).as_posix(),
                "kind": weights_kind(path),
                "modified": utc_from(modified),
            }
            found.append((modified, row))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return {"weights": [row for _, row in found[:MAX_WEIGHTS]]}


def check_weights(box: BoxContext, request: CheckWeightsRequest) -> CheckWeightsReply:
    """Whether a directory can start a run. Sizes are compared with its manifest; checksums are left to the engine."""
    path = box.root / Path(request.path).expanduser()
    kind, problem = weights_kind(path), ""
    checkpoint = path.parent if path.name == "model" else path
    if not path.is_dir():
        problem = "not a directory on this box"
    elif not kind:
        problem = "neither an adapter (adapter_config.json) nor a model (config.json), with weights"
    elif (checkpoint / MANIFEST).exists():
        problem = problem_of(checkpoint)
    return {"path": box.relative(path), "kind": "" if problem else kind, "problem": problem}


def weights_kind(path: Path) -> str:
    """``adapter`` or ``model`` for a directory with weights, or with a ``model/`` that has them; else ""."""
    for folder in (path, path / "model"):
        if any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
            if (folder / "adapter_config.json").is_file():
                return "adapter"
            if (folder / "config.json").is_file():
                return "model"
    return ""


def _search(folder: Path, depth: int) -> list[Path]:
    """Directories with weights below a folder; what is inside one of them is not searched."""
    try:
        with os.scandir(folder) as entries:
            paths = [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    found = []
    for path in sorted(paths):
        if weights_kind(path):
            found.append(path)
        elif depth > 1:
            found += _search(path, depth - 1)
    return found


BUDGET_S = 1.0
DAY_S = 86_400
MAX_KEPT = 200_000
"""Checkpoints whose sizes are remembered."""

Identity = tuple[int, int, int]


class Sizes:
    """What was measured so far; one measures at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._checkpoints: dict[str, tuple[Identity, int]] = {}
        self._runs: dict[str, tuple[int, int, int]] = {}
        """Path of a run to the count and bytes of its checkpoints, and the bytes of those of the last day."""
        self._next = 0

    def measure(self, folder: Path, budget_s: float) -> CheckpointSizesReply:
        """Measure for a while, beginning after the run at which the last request ended; the caller holds the lock."""
        paths = _run_folders(folder)
        known = self._runs = {path: self._runs[path] for path in map(str, paths) if path in self._runs}
        until = time.monotonic() + budget_s
        for path in paths[self._next % max(1, len(paths)) :] + paths[: self._next % max(1, len(paths))]:
            found = self._run(path / "training_state", until)
            if found is None:
                break
            known[str(path)] = found
            self._next += 1
            if time.monotonic() > until:
                break
        rows = [{"run": Path(path).name, "count": count, "bytes": size} for path, (count, size, _) in known.items()]
        rows = sorted((row for row in rows if row["count"]), key=lambda row: (-row["bytes"], row["run"]))  # type: ignore[operator]
        return {
            "sizes": rows[:MAX_SIZES],
            "runs": len(rows),
            "checkpoints": sum(count for count, *_ in known.values()),
            "bytes": sum(size for _, size, _ in known.values()),
            "day_bytes": sum(of_day for *_, of_day in known.values()),
            "unmeasured": len(paths) - len(known),
        }

    def _run(self, folder: Path, until: float) -> tuple[int, int, int] | None:
        """Count, bytes, and bytes of the last day of the checkpoints in a ``training_state``; None if the time ended
        before all of their manifests were read."""
        count = total = of_day = 0
        day = (time.time() - DAY_S) * 1e9
        is_late = False
        for path in _steps(folder):
            if is_late:
                return None
            known = self._checkpoints.get(str(path))
            size = self.size(path)
            if size is not None:
                entry = self._checkpoints[str(path)]
                count, total = count + 1, total + size
                of_day += size if entry[0][2] > day else 0
                is_late = entry is not known and time.monotonic() > until
        return count, total, of_day

    def size(self, path: Path) -> int | None:
        """Bytes of a checkpoint; None for one that is gone."""
        try:
            facts = os.stat(path)
            identity = (facts.st_dev, facts.st_ino, facts.st_mtime_ns)
            entry = self._checkpoints.get(str(path))
            if entry is None or entry[0] != identity:
                if len(self._checkpoints) >= MAX_KEPT:
                    self._checkpoints.clear()
                entry = self._checkpoints[str(path)] = (identity, checkpoint_size(path))
            return entry[1]
        except OSError:
            return None


_sizes = Sizes()


def checkpoint_sizes(box: BoxContext, request: CheckpointSizesRequest) -> CheckpointSizesReply:
    """Bytes of the checkpoints of each run, as far as they are measured."""
    if not _sizes.lock.acquire(blocking=False):
        raise RemoteError("busy", "the checkpoints are being measured")
    try:
        return _sizes.measure(box.root / "training_runs", BUDGET_S)
    finally:
        _sizes.lock.release()


def spare_checkpoints(box: BoxContext, request: SpareCheckpointsRequest) -> SpareCheckpointsReply:
    """The complete checkpoints that nothing needs, run by run."""
    spare: list[dict[str, Any]] = []
    problems: list[str] = []
    try:
        in_use = paths_in_use(box.root, _backbone)
    except (OSError, Unreadable, ValueError) as error:
        return {"spare": [], "more": 0, "problems": [f"what is in use is not known: {error}"]}
    for path in _run_folders(box.root / "training_runs"):
        try:
            spare += _spare_of(RunDir(path), in_use)
        except (OSError, Unreadable, ValueError) as error:
            problems.append(f"{path.name}: {error}")
    return {"spare": spare[:MAX_SPARE], "more": max(0, len(spare) - MAX_SPARE), "problems": problems[:20]}


def _spare_of(run: RunDir, in_use: list[str]) -> list[dict[str, Any]]:
    if not any(True for _ in _steps(run.training_state)):
        return []
    complete = {checkpoint.step: checkpoint.path for checkpoint in run.checkpoints() if not checkpoint.problem}
    accuracies = {
        evaluation["name"].removeprefix(f"{run.name}_"): accuracies_of(evaluation["metrics"])
        for evaluation in list_evaluations(run.root, run.name)
    }
    values = config_values((read_bytes(run.config_file, MAX_RUN_FILE_BYTES) or b"").decode(errors="replace"))
    every = values.get("run.keep_every") if values.get("run.keep_last") else 0
    every = every if type(every) is int else 0
    kept = reasons_to_keep(complete, links_of(run.training_state), accuracies, keep_every=every)
    rows = []
    for step in sorted(set(complete) - set(kept)):
        folder = os.path.realpath(complete[step])
        size = _sizes.size(complete[step])
        if size is None or any(path == folder or path.startswith(folder + os.sep) for path in in_use):
            continue
        words = [f"{fraction(of[step])} {name}" for name, of in sorted(accuracies.items()) if step in of]
        saved_at = utc_from(complete[step].stat().st_mtime)
        rows.append(
            {"run": run.name, "step": step, "bytes": size, "saved_at": saved_at, "evaluated": ", ".join(words)[:200]}
        )
    return rows


def _backbone(text: str) -> str:
    """``model.backbone`` of a config. Raises ValueError: an unknown one may be a checkpoint."""
    value = config_values(text).get("model.backbone")
    if not isinstance(value, str):
        raise ValueError("model.backbone cannot be read")
    return value


def _run_folders(folder: Path) -> list[Path]:
    """The runs of a root; none if it has none yet. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            paths = [Path(entry.path) for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
    return sorted(path for path in paths if is_run(path))


def _steps(folder: Path) -> Iterator[Path]:
    """The ``step_N`` of a ``training_state``."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if STEP_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)
    except OSError:
        return
