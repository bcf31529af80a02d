"""Checkpoints on disk: listing them and verifying them. Standard library only.

A directory ``step_N`` exists only when complete. Its ``MANIFEST.json`` lists the size and SHA-256 of every file, so
later damage is detected too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import atomic_write, read_json
from grpo_train.run_dir.signs import sign_of_life

MANIFEST = "MANIFEST.json"
STEP_NAME = re.compile(r"step_([0-9]{1,18})")
PIECE = 2**26
"""Bytes that are hashed and written at once."""


@dataclass(frozen=True)
class Checkpoint:
    """One ``training_state/step_N``."""

    step: int
    path: Path
    problem: str = ""
    """Empty when complete; otherwise the file that is missing or has the wrong size."""


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Every ``step_N`` directory of a folder, by N; symbolic links and other names are skipped."""
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        match = STEP_NAME.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            problem = problem_of(path)
            if not problem or path.is_dir():  # otherwise it was pruned in the meantime
                found.append(Checkpoint(int(match[1]), path, problem))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


class HashedFile:
    """A new file that is hashed while it is written, and durable once closed.

    A context manager: an error leaves a partial file. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._digest = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                sign_of_life("save")

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append to the file; returns the number of bytes. Shows progress to the watchdog."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            self._digest.update(piece)
            self._file.write(piece)
            if len(piece) == PIECE:
                sign_of_life("save")
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        """For writers that expect it."""

    @property
    def facts(self) -> dict[str, Any]:
        """The file's entry in a manifest."""
        return {"size": self._size, "sha256": self._digest.hexdigest()}


def write_manifest(folder: Path, known: Mapping[str, Mapping[str, Any]] | None = None, **facts: Any) -> None:
    """Write ``MANIFEST.json``, the last file of a checkpoint: size and SHA-256 of every file below ``folder``.

    Files that are not among the ``known`` (:attr:`HashedFile.facts` by relative path) are read.
    """
    known = known or {}
    names = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())
    files = {
        name: known.get(name) or {"size": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
        for name in names
        if Path(name).name != MANIFEST
    }
    atomic_write(folder / MANIFEST, json.dumps({**facts, "files": files}, indent=1) + "\n")


def problem_of(folder: Path, *, deep: bool = False) -> str:
    """First defect of a checkpoint: a missing file, a wrong size or (``deep``) a wrong checksum; "" if complete."""
    files = (read_json(folder / MANIFEST, finite=True) or {}).get("files")
    if not isinstance(files, dict):
        return f"{MANIFEST} is {'damaged' if (folder / MANIFEST).exists() else 'missing'}"
    for name, facts in files.items():
        path = folder / name
        if not (isinstance(facts, dict) and "size" in facts and "sha256" in facts):
            return f"{MANIFEST} is damaged"
        try:
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != facts["size"]:
                return f"{name} has {path.stat().st_size} bytes instead of {facts['size']}"
            if deep and sha256(path) != facts["sha256"]:
                return f"{name} has the wrong checksum"
        except OSError as error:  # a failing disk, or a checkpoint that is being pruned
            return f"{name} cannot be read: {error.strerror or error}"
    return ""


def newest_complete(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Newest checkpoint with correct checksums, searched from the newest down."""
    for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True):
        if not checkpoint.problem and not problem_of(checkpoint.path, deep=True):
            return checkpoint
    return None


def weights_problem(folder: Path) -> str:
    """Why weights must not be loaded from a directory, with the newest complete step beside it; "" if they may.

    Every size and checksum is verified. A model without a manifest comes from elsewhere and is accepted; a ``step_N``
    in a run's ``training_state`` without one is damaged, and so is a link to a missing step.
    """
    real = folder.resolve()
    if folder.is_symlink() and not folder.exists():
        problem = f"it points to {os.readlink(folder)}, which does not exist"
    elif (folder / MANIFEST).exists() or (STEP_NAME.fullmatch(real.name) and "training_state" in real.parts):
        problem = problem_of(folder, deep=True)
    else:
        return ""
    if not problem:
        return ""
    home = (folder.parent / os.readlink(folder)).parent if folder.is_symlink() else folder.parent
    newest = newest_complete(c for c in list_checkpoints(home) if c.path.resolve() != real)
    return f"{problem} (newest complete: {newest.path})" if newest else problem


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
