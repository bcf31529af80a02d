"""A look at a root that costs little: what is live there, and a signature of everything that a backup would take.

The signature has the size, times and inode of every file, and reads none. Of a checkpoint it has the directory alone:
that gets its name when it is complete, and does not change from then on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.manifest import STEP_NAME
from grpo_train.run_dir.rows import printable
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES
from grpo_train.run_dir.status import observe

KINDS = (
    "training_runs", "eval_runs", "sweeps", "rl_runs", "archive/completed_runs", "archive/important_checkpoints",
)  # fmt: skip
"""The directories of a root that are backed up, as in :mod:`grpo_train.backup.layout`."""
TRANSFERS = "transfers"


@dataclass(frozen=True)
class Look:
    signature: str
    live: tuple[dict[str, Any], ...]
    """ObstacleRow of each run, evaluation and transfer at work."""


def look_at(root: Path) -> Look:
    """Look at a root, and at the descriptions of its backups. A directory that cannot be read is part of the look."""
    digest = hashlib.sha256()
    live: list[dict[str, Any]] = []
    for kind in (*KINDS, TRANSFERS):
        for entry in _entries(root / kind, digest.update):
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            if (state := _live_state(kind, Path(entry.path))) is not None:
                live.append(_live_row(kind, entry.name, state))
            _add(digest.update, entry, kind != "eval_runs")
    for file in _descriptions():
        digest.update(_facts(str(file), file))
    return Look(digest.hexdigest(), tuple(live))


def _live_state(kind: str, folder: Path) -> str | None:
    """State of something at work; None for what is not, or cannot be read (the engine names that)."""
    try:
        if kind == "training_runs":
            observed = RunDir(folder).observed_state()
        else:
            row = read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True)
            observed = observe(row or {})
            if kind == TRANSFERS and observed.is_live:
                return printable(str((row or {}).get("command")))[:64]
    except (UserError, OSError):
        return None
    return printable(observed.state) if observed.is_live else None


def _live_row(kind: str, name: str, state: str) -> dict[str, Any]:
    shown = printable(name)
    if kind == TRANSFERS:
        return {
            "kind": kind, "name": shown.partition(".")[2] or shown, "code": "live", "reason": f"its {state} is at work",
            "command": "",
        }  # fmt: skip
    return {"kind": kind, "name": shown, "code": "live", "reason": f"it is {state}", "command": ""}


def _add(update: Callable[[bytes], object], entry: os.DirEntry[str], has_checkpoints: bool) -> None:
    """Add an entry and all below it to a digest."""
    update(_facts(entry.path, entry))
    if not entry.is_dir(follow_symlinks=False) or (has_checkpoints and STEP_NAME.fullmatch(entry.name)):
        return
    for each in _entries(Path(entry.path), update):
        _add(update, each, has_checkpoints)


def _entries(folder: Path, update: Callable[[bytes], object]) -> list[os.DirEntry[str]]:
    """The entries of a directory by name; [] for one that is missing or cannot be read, which is added."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        update(f"{folder}\0{error.errno}\0".encode(errors="surrogateescape"))
        return []


def _facts(name: str, file: os.DirEntry[str] | Path) -> bytes:
    try:
        facts = file.stat(follow_symlinks=False)
    except OSError as error:
        return f"{name}\0{error.errno}\0".encode(errors="surrogateescape")
    values = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
    return f"{name}\0{values}\0".encode(errors="surrogateescape")


def _descriptions() -> Iterator[Path]:
    """The files that describe where backups go, on this machine."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    yield Path(config).expanduser() / "grpo-tui" / "backup.yaml"
    yield Path("~/.lambda_s3.env").expanduser()
