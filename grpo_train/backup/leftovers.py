"""What killed commands left below a root: hidden staging directories, ``.tmp`` files, records of transfers, self-tests.

Only names that this program gives are looked at, and only those of this account. A leftover is one whose writer is
known to be dead: its process is gone, or nothing below it has changed for a day by the clock of the disk. Samples of an
unfinished evaluation, and results that wait for a repair, are not leftovers.

A self-test with ``--to`` notes the destination in its directory; what it backed up is erased there, too: only objects
of runs that its own root has, proven by their identity. No command erases other backups:
:mod:`~grpo_train.backup.prune` removes what newer snapshots contain.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_train.backup.job import FOLDER
from grpo_train.backup.record import home_here
from grpo_train.backup.snapshot import COMPLETE, KINDS, Home, Snapshot
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.backup.terminate import NETWORK_FILE_SYSTEMS
from grpo_train.run_dir.files import atomic_write, read_json, remove_tree
from grpo_train.run_dir.machine import mount_of
from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.processes import RUN_ID_VARIABLE, is_alive, start_ticks, variable_in
from grpo_train.run_dir.root import ROOT_VARIABLE
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, read_bytes
from grpo_train.run_dir.status import observe

AGE_S = 86_400.0
_DEPTH = 6
"""Directories below the root that are looked into: training_runs/RUN/training_state/superseded/DIGEST/step_N."""
SELFTEST = "a self-test"
_BY_PROCESS = (
    (re.compile(r"\.selftest-(\d+)-(\d+)-.+"), SELFTEST),
    (re.compile(r"\.step_\d+\.(\d+)-(\d+)-[0-9a-f]+\.tmp"), "a checkpoint that was being written or removed"),
    (re.compile(r"\..+\.(\d+)-(\d+)-[0-9a-f]{16}\.tmp"), "an export that was being written"),
    (re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\.tmp"), "a file that was being written"),
)
_BY_TRANSFER = (
    (re.compile(r"\.restore-.+-[0-9a-f]{16}-\d+"), "an unfinished restore"),
    (re.compile(r"\..+\.restore(-[0-9a-f]{16})?"), "an unfinished restore"),
    (re.compile(r"\.fetch-.+"), "an unfinished fetch"),
)
_BY_AGE = ((re.compile(r"\..+\.[0-9a-f]{8}\.tmp"), "a directory or link that was being made"),)
SOURCES = {"training_runs": "launch.json", "eval_runs": "eval_config.yaml"}
"""Kinds that are erased, and the file that identifies one: written once, and hashed to its identity."""
ROOT = "root"
"""In the directory of a self-test: the root that it backs up."""
_NOTE = "destination"


@dataclass(frozen=True)
class Leftover:
    """Something that a dead process left."""

    path: str
    """Relative to the root."""
    what: str
    bytes: int
    destination: str = ""
    """Where a self-test may have backed up; "" for none but the directory itself."""


def find_leftovers(root: Path) -> list[Leftover]:
    """Everything below a root that no process works on and no reader needs. Raises OSError."""
    at_work = {path.parent.name for path in root.glob(f"{FOLDER}/*/status.json") if _is_live(path)}
    mount = mount_of(root)
    is_shared = mount is None or mount.kind in NETWORK_FILE_SYSTEMS
    now = _now(root)
    found = []
    for path in _candidates(root, _DEPTH):
        what = _why(path, root, at_work, now, is_shared=is_shared)
        if what and path.lstat().st_uid == os.geteuid():
            to = noted_destination(path) if what == SELFTEST else ""
            found.append(Leftover(os.fspath(path.relative_to(root)), what, _size(path), to))
    return found


def remove_leftovers(root: Path, chosen: Iterable[Leftover]) -> list[Leftover]:
    """Remove leftovers that still are some; returns those that are gone. Raises OSError."""
    still = {each.path for each in find_leftovers(root)}
    removed = []
    for each in chosen:
        path = root / each.path
        if each.path in still:
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            removed.append(each)
    return removed


def _why(path: Path, root: Path, at_work: set[str], now: float, *, is_shared: bool) -> str:
    """What a path is a leftover of; "" where it is none, or that is not known."""
    is_old = now - _changed(path) >= AGE_S
    if path.parent == root / FOLDER:
        is_left = is_old and path.name not in at_work and _is_of_nothing(path.name, root)
        return "the record of a transfer" if is_left else ""
    for pattern, what in _BY_PROCESS:
        if match := pattern.fullmatch(path.name):
            ticks = int(match[2]) if pattern.groups > 1 else start_ticks(int(match[1]))
            is_dead = ticks is None or not is_alive(int(match[1]), ticks)
            is_left = is_dead and (is_old or not is_shared) and not _is_in_use(path)
            return what if is_left else ""
    for pattern, what in _BY_TRANSFER:
        if pattern.fullmatch(path.name):
            return what if path.is_dir() and not at_work and (is_old or not is_shared) else ""
    if path.name.startswith(".new-") and os.fspath(path.parent.relative_to(root)) in KINDS:
        return "a directory that was being made" if is_old else ""
    for pattern, what in _BY_AGE:
        if pattern.fullmatch(path.name):
            return what if is_old else ""
    return ""


def _is_of_nothing(record: str, root: Path) -> bool:
    """Whether the record of a transfer is of a fetch, or of a directory that is gone."""
    for kind in KINDS:
        start = f"{kind.replace('/', '.')}."
        if record.startswith(start):
            return not (root / kind / record.removeprefix(start)).exists()
    return record.startswith("fetch.")


def _candidates(folder: Path, depth: int) -> Iterator[Path]:
    """Hidden paths below a directory, without what is below them, and the records of transfers."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # removed in the meantime; another account's
        return
    for entry in entries:
        if entry.name.startswith(".") or (folder.name == FOLDER and entry.is_dir(follow_symlinks=False)):
            yield Path(entry.path)
        elif depth > 0 and entry.is_dir(follow_symlinks=False):
            yield from _candidates(Path(entry.path), depth - 1)


def _is_live(status: Path) -> bool:
    row = read_json(status, MAX_RUN_FILE_BYTES, finite=True)
    return row is None or observe(row).is_live  # one that cannot be read may be


def _is_in_use(folder: Path) -> bool:
    """Whether a process works below a directory: it is there, or a run or the root that it belongs to is."""
    real = os.path.realpath(folder) + os.sep
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            try:
                here = os.readlink(entry / "cwd") + os.sep
            except OSError:
                here = ""
            known = (variable_in(int(entry.name), name) for name in (RUN_ID_VARIABLE, ROOT_VARIABLE))
            if here.startswith(real) or any(value.startswith(real) for value in known):
                return True
    return False


def _changed(path: Path) -> float:
    """When something at or below a path last changed, by the disk's clock. It cannot be set back."""
    newest = path.lstat().st_ctime
    for parent, folders, names in os.walk(path):
        for name in (*folders, *names):
            try:
                newest = max(newest, os.lstat(os.path.join(parent, name)).st_ctime)
            except FileNotFoundError:  # removed in the meantime
                continue
    return newest


def _size(path: Path) -> int:
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    files = (Path(parent, name) for parent, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files)


def _now(root: Path) -> float:
    """The clock of the disk. Raises OSError."""
    with tempfile.TemporaryFile(dir=root) as probe:
        return os.fstat(probe.fileno()).st_mtime


@dataclass(frozen=True)
class Erased:
    """What was removed from a store, and what stays."""

    prefixes: list[str]
    """Folders of the runs and evaluations that were removed."""
    objects: int
    shared: list[str]
    """Folders of starting weights, which stay: other runs may share them."""


def note_destination(selftest: Path, name: str) -> None:
    """Record where a self-test backs up, before it does. Raises OSError."""
    atomic_write(selftest / _NOTE, name)


def noted_destination(selftest: Path) -> str:
    """The name that :func:`note_destination` recorded; "" without one. Raises OSError, Unreadable."""
    return (read_bytes(selftest / _NOTE, 4096) or b"").decode(errors="replace")


def homes_of(root: Path) -> list[tuple[Home, Path]]:
    """Where the runs and evaluations of a root are in every store, with the file that identifies each.

    Raises OSError, Unreadable.
    """
    sources = [file for kind, name in SOURCES.items() for file in sorted((root / kind).glob(f"[!.]*/{name}"))]
    return [(home_here(file.parent.parent.name, file.parent), file) for file in sources]


def erase(store: ObjectStore, root: Path) -> Erased:
    """Remove every object of the runs and evaluations of a root from a store.

    Nothing is removed unless each snapshot with a readable manifest names the identity and the very bytes of the file
    here. Raises StoreError (``not_ours`` for other bytes), OSError, Unreadable.
    """
    found = []
    shared: set[str] = set()
    for home, file in homes_of(root):
        stored = StoredRun(store, home)
        for manifest in (each.manifest for each in stored.snapshots() if each.manifest is not None):
            _prove(manifest, home, file)
            parts = (part for weights in manifest.weights for each in weights.files for part in each.parts)
            shared.update("/".join(part.key.split("/")[:2]) + "/" for part in parts)
        found.append(stored)
    prefixes, count = [], 0
    for stored in found:
        keys = sorted(key for key in stored.objects if key.startswith(stored.home.prefix))
        if keys:
            store.delete([key for key in keys if key.endswith(f"/{COMPLETE}")])  # from here on it is not complete
            store.delete([key for key in keys if not key.endswith(f"/{COMPLETE}")])
            prefixes.append(stored.home.prefix)
            count += len(keys)
        store.abort_stale_uploads(stored.home.prefix, 0.0)
    return Erased(prefixes, count, sorted(shared))


def _prove(manifest: Snapshot, home: Home, file: Path) -> None:
    here = sha256(file)
    there = [part.sha256 for each in manifest.files if each.path == file.name for part in each.parts]
    if manifest.identity != home.identity or there not in ([here], []):
        raise StoreError(f"{home.snapshot(manifest.number)} is not of {file.parent}", code="not_ours")
