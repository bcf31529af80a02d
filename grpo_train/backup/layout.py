"""Where everything lies in a store, and what identifies a run there.

    PREFIX/KIND/NAME--IDENTITY/training_state/step_40--DIGEST/…            files of a checkpoint, as on disk
    PREFIX/KIND/NAME--IDENTITY/logs/rollouts.jsonl/START-END-DIGEST        parts of an append-only file, in order
    PREFIX/KIND/NAME--IDENTITY/files/DIGEST-config.yaml                    every other file
    PREFIX/KIND/NAME--IDENTITY/snapshots/000007/{manifest.json, COMPLETE, READ_BACK}
    PREFIX/weights/NAME--DIGEST/…                                          starting weights, shared by runs

Every key but those of ``snapshots/`` names its content, so an object is never replaced by a different one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_train.backup.store import check_key
from grpo_train.run_dir import identity
from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.safe_json import MAX_FILE_BYTES, open_regular

ARCHIVED_RUNS, ARCHIVED_CHECKPOINTS = "archive/completed_runs", "archive/important_checkpoints"
KINDS = (
    "training_runs", "eval_runs", "sweeps", "rl_runs", ARCHIVED_RUNS, ARCHIVED_CHECKPOINTS,
)  # fmt: skip
"""Folders of the root, and of a store, whose directories are backed up."""
RUNS = (ARCHIVED_RUNS, "training_runs")
"""Those of training runs, which have evaluations. An archived run is newer than what it was before."""
SNAPSHOTS, MANIFEST_NAME, COMPLETE, CLAIM = "snapshots", "manifest.json", "COMPLETE", "claim-"
READ_BACK = "READ_BACK"
MARK, PRUNING = "PRUNE", "PRUNING"

_SOURCES = ("launch.json", "eval_config.yaml", "sweep.json")
"""Files that are written once and identify a directory; the first that exists counts."""
_HOME = re.compile(r"(?s)(.+)--([0-9a-f]{16})")
_UNSAFE = re.compile(r"[^A-Za-z0-9._ +=@()-]")


@dataclass(frozen=True)
class Home:
    """The place of one directory of a root in every store."""

    kind: str
    """One of KINDS."""
    name: str
    identity: str
    """16 hex digits."""

    @property
    def prefix(self) -> str:
        """``KIND/NAME--IDENTITY/``."""
        return f"{self.kind}/{self.name}--{self.identity}/"

    @property
    def snapshots(self) -> str:
        return f"{self.prefix}{SNAPSHOTS}/"

    @property
    def twin(self) -> Home | None:
        """Of an archived run: its home before, whose objects it shares."""
        return Home("training_runs", self.name, self.identity) if self.kind == ARCHIVED_RUNS else None

    def snapshot(self, number: int, file: str = "") -> str:
        """Key of a file of a snapshot, or the start of their keys."""
        return f"{self.snapshots}{number:06d}/{file}"


def home_of(kind: str, folder: str) -> Home | None:
    """The home with this folder name in a store; None for a name of another form."""
    match = _HOME.fullmatch(folder)
    hidden = folder.startswith(".") or not folder.isprintable()
    return Home(kind, match[1], match[2]) if match and not hidden else None


def step_key(home: Home, step: int, digest: str, path: str) -> str:
    """Key of a file of a checkpoint; ``digest`` is the SHA-256 of what identifies the checkpoint."""
    return check_key(f"{home.prefix}training_state/step_{step}--{digest[:8]}/{path}")


def segment_key(home: Home, path: str, start: int, end: int, digest: str) -> str:
    """Key of bytes ``start`` to ``end`` of an append-only file. Numbers are padded, so a sorted list is in order."""
    return check_key(f"{home.prefix}{path}/{start:012d}-{end:012d}-{digest[:8]}")


def file_key(home: Home, path: str, digest: str) -> str:
    """Key of any other file; the name at its end is for people."""
    name = _UNSAFE.sub("_", path.rpartition("/")[2])[-128:]
    return check_key(f"{home.prefix}files/{digest[:16]}-{name}")


def weights_prefix(name: str, digest: str) -> str:
    """Start of the keys of starting weights."""
    return check_key(f"weights/{_UNSAFE.sub('_', name)[-128:]}--{digest[:16]}") + "/"


def folder_identity(folder: Path) -> str:
    """Identity of a run, evaluation or sweep: the start of the SHA-256 of its ``launch.json``, ``eval_config.yaml`` or
    ``sweep.json``, else of the sorted list of its paths, sizes and hashes. Raises OSError, Unreadable."""
    for name in _SOURCES:
        try:
            with open_regular(folder / name) as file:
                return identity.identity_of(file.read(MAX_FILE_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return digest_of_list(_listed(folder))[:16]


def digest_of_list(files: Mapping[str, tuple[int, str]]) -> str:
    """SHA-256 of paths with their sizes and hashes, in any order."""
    text = json.dumps(sorted((path, size, digest) for path, (size, digest) in files.items()))
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def _listed(folder: Path) -> dict[str, tuple[int, str]]:
    found = {}
    for path in walk_files(folder):
        if path.is_file() and not path.is_symlink():
            found[os.fspath(path.relative_to(folder))] = (path.stat().st_size, sha256(path))
    return found


def walk_files(folder: Path) -> Iterable[Path]:
    """Every file and link below a directory in a fixed order, without hidden names (what is being written)."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in links)
        yield from (Path(parent, name) for name in sorted([*names, *links]) if not name.startswith("."))
