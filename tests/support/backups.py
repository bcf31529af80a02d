"""Helpers of the tests of backups: runs made without training, destinations, and comparisons of directories."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from grpo_train.backup.destinations import Destination
from grpo_train.backup.folder import FolderStore
from grpo_train.backup.record import read_record
from grpo_train.backup.snapshot import Home, Snapshot
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import Trust
from grpo_train.backup.take import BackupResult, back_up
from grpo_train.run_dir import RunDir, create_run, write_manifest
from grpo_train.run_dir.files import append_jsonl, atomic_symlink, atomic_write, utc_now
from tests.support.stores import whole

CONFIG = "run: {total_steps: 100, keep_every: 0}\nmodel: {backbone: Qwen/Qwen2.5-0.5B}\ntask: {name: addition}\n"


def folder_destination(path: Path, *, same_disk: bool = False) -> Destination:
    """A directory as a destination. Tests have one disk, so what it can be trusted with is given."""
    path.mkdir(parents=True, exist_ok=True)
    return Destination("disk", FolderStore(path), Trust("store-1", False, False, same_disk), None)


def backup(run: RunDir, to: Destination, **options: Any) -> BackupResult:
    """Take a snapshot of a training run."""
    return back_up(run.root, "training_runs", run.name, to, **options)


def home_of(run: RunDir) -> Home:
    """Where a training run is in every store."""
    return Home("training_runs", run.name, read_record(run.path).identity)


def newest(run: RunDir, to: Destination) -> Snapshot:
    """The manifest of the newest complete snapshot."""
    found = StoredRun(to.store, home_of(run)).newest()
    assert found is not None
    assert found.manifest is not None
    return found.manifest


def make_run(root: Path, name: str = "one", *steps: int) -> RunDir:
    """A stopped run with checkpoints at these steps."""
    run = create_run(root, {"argv": ["grpo-train", "train", name]}, name)
    atomic_write(run.config_file, CONFIG)
    set_state(run, "stopped")
    for step in steps:
        train_to(run, step)
        save(run, step)
    return run


def set_state(run: RunDir, state: str, **fields: Any) -> None:
    atomic_write(run.status_file, json.dumps({"state": state, "total_steps": 100, **fields}) + "\n")


def train_to(run: RunDir, step: int, salt: str = "") -> None:
    """Log the steps after the last logged one, up to ``step``."""
    last = int(run.last_step_row().get("step", 0))
    for each in range(last + 1, step + 1):
        append_jsonl(run.logs / "train_log.jsonl", {"step": each, "reward": each / 100, "salt": salt})
        append_jsonl(run.logs / "rollouts.jsonl", {"step": each, "completion": f"{salt}{each} " * 5})


def save(run: RunDir, step: int, salt: str = "", *, latest: bool = True) -> Path:
    """A complete checkpoint of three files of a few bytes."""
    folder = run.training_state / f"step_{step}"
    staging = folder.with_name(f".step_{step}.{os.getpid()}-new.tmp")
    (staging / "model").mkdir(parents=True)
    (staging / "model" / "weights.safetensors").write_bytes(f"{salt}weights {step} ".encode() * 20)
    (staging / "optimizer.pt").write_bytes(f"{salt}optimizer {step}".encode() * 9)
    (staging / "training_info.json").write_text(json.dumps({"step": step, "time": utc_now(), "salt": salt}))
    write_manifest(staging, format=1, step=step)
    staging.rename(folder)
    if latest:
        atomic_symlink(run.training_state / "step_latest", folder.name)
    run.log_event("saved", step=step)
    return folder


def rewind(run: RunDir, step: int) -> None:
    """What a resume from an earlier step changes."""
    moved = run.rewind(step)
    run.log_event("resumed", step=step, from_step=step, superseded=run.supersede_after(step), moved=moved)


def make_evaluation(root: Path, run: str, dataset: str = "addition", *steps: int) -> Path:
    folder = root / "eval_runs" / f"{run}_{dataset}"
    folder.mkdir(parents=True)
    (folder / "eval_config.yaml").write_text(f"run: {run}\ndataset: {dataset}\n")
    (folder / "status.json").write_text(json.dumps({"state": "finished", "training_run": run}))
    rows = ["step,name,status,accuracy", *(f"{step},step_{step},ok,0.{step}" for step in steps)]
    (folder / "consolidated_metrics.csv").write_text("\n".join(rows) + "\n")
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Path to mode and hash, or link target, of everything in a directory but locks and notes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if any(part.startswith(".") for part in path.relative_to(folder).parts) or name.startswith("control"):
            continue
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            mode = stat.S_IMODE(path.stat().st_mode)
            found[name] = f"{mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found


def bytes_of(folder: Path) -> dict[str, str]:
    """:func:`contents` without modes: a command gives new files the modes of its umask."""
    return {name: value.rpartition(" ")[2] for name, value in contents(folder).items()}


def objects(destination: Destination) -> dict[str, bytes]:
    """Every object of a small store but those of snapshots."""
    entries = destination.store.entries("")
    keys = [entry.key for entry in entries if "/snapshots/" not in entry.key]
    return {key: whole(destination.store, key) for key in keys}


def object_files(destination: Destination) -> list[Path]:
    """The files of a folder store that hold objects."""
    base = Path(destination.store.url)
    return sorted(path for path in base.rglob("*") if path.is_file() and not path.name.startswith("."))
