"""What a directory of a root holds, as a backup sees it: complete checkpoints, append-only files, the rest, links."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_train.backup.snapshot import Omitted, SnapshotLink, check_path, digest_of_list, walk_files
from grpo_train.backup.store import StoreError, check_key
from grpo_train.run_dir.errors import prefixed
from grpo_train.run_dir.manifest import MANIFEST, STEP_NAME, problem_of, sha256
from grpo_train.run_dir.safe_json import MAX_FILE_BYTES, Unreadable, parse_object, read_bytes

NOT_KEPT = ("control/", "wandb/")
"""Requests to a live run, and what W&B made of the logs, which ``grpo-train track`` makes again."""


@dataclass(frozen=True)
class LocalFile:
    """A file of a checkpoint."""

    path: str
    """Relative to the checkpoint."""
    size: int
    mode: int
    sha256: str
    """As the checkpoint's manifest says; a file that differs is damaged."""


@dataclass(frozen=True)
class LocalStep:
    """A complete checkpoint: sizes match its manifest."""

    step: int
    path: str
    """Relative to the run."""
    digest: str
    files: tuple[LocalFile, ...]


@dataclass
class Collection:
    """Contents of a directory; paths are relative to it."""

    steps: list[LocalStep] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    """Append-only files."""
    files: list[str] = field(default_factory=list)
    links: list[SnapshotLink] = field(default_factory=list)
    omitted: list[Omitted] = field(default_factory=list)


def collect(kind: str, folder: Path) -> Collection:
    """List a directory. Lock files, leftovers of dead writers and NOT_KEPT are not part of it.

    Raises OSError for a directory that cannot be read.
    """
    os.scandir(folder).close()
    found = Collection()
    inside: set[str] = set()
    """Files of complete checkpoints, and the directories of others."""
    listed = {os.fspath(path.relative_to(folder)): path for path in step_folders(kind, folder)}
    for relative, path in listed.items():
        try:
            step = read_step(folder, relative, needs_manifest=kind != "rl_runs")
        except (Unreadable, OSError) as error:
            inside.add(relative + "/")
            if path.is_dir():  # otherwise it was removed or set aside in the meantime
                found.omitted.append(Omitted(relative, "damaged_here", _reason(error)))
            continue
        found.steps.append(step)
        inside.update(f"{relative}/{file.path}" for file in step.files)
    for path in walk_files(folder):
        relative = os.fspath(path.relative_to(folder))
        if relative in inside or relative.startswith(NOT_KEPT) or _is_below(relative, inside):
            continue
        if relative.startswith("training_state/") and _is_of_new_step(relative, listed):
            continue  # the checkpoint appeared in the meantime: the next snapshot has it, whole
        try:
            _add(found, kind, folder, relative)
        except (StoreError, OSError) as error:  # a name that no store takes; another account's; a failing disk
            if os.path.lexists(path):
                shown = relative.encode(errors="backslashreplace").decode()
                found.omitted.append(Omitted(shown, "unreadable", _reason(error)))
    return found


def _is_of_new_step(relative: str, listed: Container[str]) -> bool:
    """Whether a file is below a ``step_N`` that was not there when the checkpoints were listed."""
    parts = relative.split("/")
    depth = 4 if parts[1] == "superseded" else 2
    return len(parts) > depth and bool(STEP_NAME.fullmatch(parts[depth - 1])) and "/".join(parts[:depth]) not in listed


def local_steps(kind: str, folder: Path) -> list[LocalStep]:
    """The complete checkpoints of a directory. Raises OSError."""
    found = []
    for path in step_folders(kind, folder):
        try:
            relative = os.fspath(path.relative_to(folder))
            found.append(read_step(folder, relative, needs_manifest=kind != "rl_runs"))
        except Unreadable:
            continue
    return found


def step_folders(kind: str, folder: Path) -> list[Path]:
    """Every ``step_N`` of a run, those in ``superseded/`` too, whether complete or not; none for evaluations."""
    if kind in ("eval_runs", "sweeps"):
        return []
    places = [folder / "training_state", *sorted(folder.glob("training_state/superseded/*"))]
    if not (folder / "training_state").is_dir():
        places = [folder]  # the older layout
    found = []
    for place in places:
        if place.is_dir() and not place.is_symlink():
            steps = [path for path in place.iterdir() if STEP_NAME.fullmatch(path.name)]
            found += sorted(path for path in steps if path.is_dir() and not path.is_symlink())
    return found


def read_step(folder: Path, relative: str, *, needs_manifest: bool = True) -> LocalStep:
    """A checkpoint by its manifest, sizes checked. Raises Unreadable with the defect, and OSError."""
    path = folder / relative
    match = STEP_NAME.fullmatch(path.name)
    number = int(match[1]) if match else 0
    data = read_bytes(path / MANIFEST, MAX_FILE_BYTES)
    if data is None:
        if needs_manifest:
            raise Unreadable(f"{MANIFEST} is missing")
        files = [_plain_file(path, file) for file in walk_files(path)]
        digest = digest_of_list({file.path: (file.size, file.sha256) for file in files})
        return LocalStep(number, relative, digest, tuple(files))
    if problem := problem_of(path):
        raise Unreadable(problem)
    mode = stat.S_IMODE((path / MANIFEST).stat().st_mode) & 0o777
    own = LocalFile(MANIFEST, len(data), mode, hashlib.sha256(data).hexdigest())
    listed = parse_object(data).get("files")
    files = [_listed_file(path, name, facts) for name, facts in (listed if isinstance(listed, dict) else {}).items()]
    return LocalStep(number, relative, own.sha256, (*files, own))


def is_unchanged(folder: Path, step: LocalStep) -> bool:
    """Whether a checkpoint is what it was: after a resume from an earlier step another one may have its name."""
    path = folder / step.path
    try:
        data = read_bytes(path / MANIFEST, MAX_FILE_BYTES)
    except (Unreadable, OSError):  # a failing disk
        return False
    if data is None:
        return path.is_dir() and MANIFEST not in {file.path for file in step.files}
    return hashlib.sha256(data).hexdigest() == step.digest


def last_step(line: bytes) -> int:
    """Step of a log line; 0 for a line without one."""
    try:
        step = parse_object(line).get("step")
    except Unreadable:
        return 0
    return step if type(step) is int and 0 <= step < 10**18 else 0


def _add(found: Collection, kind: str, folder: Path, relative: str) -> None:
    """Sort a file or link into a collection. Raises StoreError for a name that a store cannot hold, and OSError."""
    check_key(relative)
    path = folder / relative
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        target = os.readlink(path)
        try:
            check_key(target)
        except StoreError:
            reason = f"a link out of its directory, to {target}"
            found.omitted.append(Omitted(relative, "outside", reason.encode(errors="backslashreplace").decode()))
            return
        found.links.append(SnapshotLink(relative, target))
    elif not stat.S_ISREG(mode):
        found.omitted.append(Omitted(relative, "unreadable", "not a regular file"))
    elif not os.access(path, os.R_OK):
        found.omitted.append(Omitted(relative, "unreadable", "permission denied"))
    elif "_runs" in kind and kind != "eval_runs" and relative.startswith(("logs/", "tensorboard/")):
        found.logs.append(relative)
    else:
        found.files.append(relative)


def _is_below(relative: str, inside: set[str]) -> bool:
    return any(entry.endswith("/") and relative.startswith(entry) for entry in inside)


def _listed_file(path: Path, name: str, facts: Any) -> LocalFile:
    """A file of a checkpoint's manifest. Raises Unreadable for an impossible entry, which problem_of accepts."""
    with prefixed(f"{MANIFEST} is damaged: "):
        check_path(name)
    size, digest = facts["size"], facts["sha256"]
    if type(size) is not int or not isinstance(digest, str) or len(digest) != 64:
        raise Unreadable(f"{MANIFEST} is damaged: {json.dumps(name)}")
    return LocalFile(name, size, stat.S_IMODE((path / name).stat().st_mode) & 0o777, digest)


def _plain_file(path: Path, file: Path) -> LocalFile:
    """A file of a checkpoint of the older layout, which has no manifest."""
    facts = file.stat()
    name = check_key(os.fspath(file.relative_to(path)))
    return LocalFile(name, facts.st_size, stat.S_IMODE(facts.st_mode) & 0o777, sha256(file))


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
