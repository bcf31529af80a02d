"""Backing up and restoring training runs with their evaluations, and everything below a root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.backup.restore import RestoreResult, find_home, restore_folder
from grpo_train.backup.snapshot import KINDS, RUNS, Home, Omitted
from grpo_train.backup.snapshots import stored_evaluations
from grpo_train.backup.take import BackupResult, back_up
from grpo_train.run_dir import RunDirError, list_evaluations
from grpo_train.run_dir.errors import UserError, code_of, nearest

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination


@dataclass(frozen=True)
class BackupFailure:
    """A directory that could not be backed up."""

    kind: str
    name: str
    code: str
    reason: str


def locate_folder(root: Path, given: str) -> tuple[str, str]:
    """(kind, name) of a directory of a root: a run's name or path, or ``KIND/NAME``.

    Raises RunDirError (``no_run``) with the nearest name.
    """
    path = Path(os.path.abspath(Path(given).expanduser())) if "/" in given else None
    for kind in KINDS:
        for candidate in (root / kind / given, root / given):
            if candidate.parent == root / kind and candidate.is_dir():
                return kind, candidate.name
        if path and path.is_dir() and os.path.realpath(path.parent) == os.path.realpath(root / kind):
            return kind, path.name
    names = [name for _, name in everything(root)]
    near = nearest(given.rpartition("/")[2], names)
    raise RunDirError(f"no run '{given}' under {root}" + (f"; did you mean {near}?" if near else ""), code="no_run")


def everything(root: Path) -> Iterator[tuple[str, str]]:
    """(kind, name) of every directory of a root that is backed up; evaluations before the runs that name them."""
    for kind in sorted(KINDS, key=lambda kind: kind in RUNS):
        folder = root / kind
        if folder.is_dir():
            names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
            yield from ((kind, name) for name in names if not name.startswith("."))


def back_up_run(root: Path, kind: str, name: str, to: Destination, **options: Any) -> BackupResult:
    """:func:`back_up`, for a training run after its evaluations. Raises as that."""
    evaluations = []
    if kind in RUNS:
        others = {key: value for key, value in options.items() if key != "steps"}
        names = [row["name"] for row in list_evaluations(root, name)]
        evaluations = [back_up(root, "eval_runs", each, to, **others) for each in names]
    return back_up(root, kind, name, to, evaluations=evaluations, **options)


def back_up_all(
    root: Path, to: Destination, *, then: Callable[[BackupResult], object] = lambda _: None, **options: Any
) -> tuple[list[BackupResult], list[BackupFailure]]:
    """Back up everything below a root; one that fails costs none of the others. ``then`` is called after each one.

    Raises StoreError where no other would succeed: a destination that cannot be used. Raises RunDirError (``bad_root``)
    where there is nothing to back up and nothing was ever launched.
    """
    found = list(everything(root))
    if not found and not (root / "training_runs").is_dir():
        reason = "nothing was launched here, or the disk of the root is not mounted"
        raise RunDirError(f"{root} has no training_runs: {reason}; or choose another --root", code="bad_root")
    done: list[BackupResult] = []
    failed: list[BackupFailure] = []
    for kind, name in found:
        try:
            runs = {(row["name"]) for row in list_evaluations(root, name)} if kind in RUNS else set()
            evaluations = [each for each in done if each.kind == "eval_runs" and each.name in runs]
            done.append(back_up(root, kind, name, to, evaluations=evaluations, **options))
            then(done[-1])
        except (UserError, OSError) as error:
            if code_of(error) in ("refused", "no_bucket", "wrong_region", "clock", "full", "unreachable"):
                raise
            failed.append(BackupFailure(kind, name, code_of(error), str(error)))
    return done, failed


def restore_run(
    root: Path,
    given: str,
    source: Destination,
    *,
    number: int | None = None,
    as_name: str | None = None,
    **options: Any,
) -> RestoreResult:
    """:func:`restore_folder` of a run by name, with its evaluations unless it gets another name. Raises as that."""
    kinds: tuple[str, ...] = KINDS
    name = given
    for kind in KINDS:
        if given.startswith(f"{kind}/"):
            kinds, name = (kind,), given.removeprefix(f"{kind}/")
    home = _preferred(source, name, kinds)
    done = restore_folder(root, home, source, number=number, as_name=as_name, **options)
    if home.kind not in RUNS or as_name:
        return done
    others = {key: value for key, value in options.items() if key in ("transfers", "show")}
    evaluations, omitted = [], list(done.omitted)
    for other in stored_evaluations(source.store, home, number):
        try:
            added = restore_folder(root, other, source, **others)
        except RunDirError as error:  # another evaluation of this name, or one at work
            if error.code == "disk_full":
                raise
            omitted.append(Omitted(f"eval_runs/{other.name}", error.code, str(error)))
            continue
        if added.is_new or added.bytes or added.omitted:
            evaluations.append(added)
    return replace(done, evaluations=tuple(evaluations), omitted=tuple(omitted))


def _preferred(source: Destination, name: str, kinds: tuple[str, ...]) -> Home:
    """Training runs first: a sweep or an archived run may have the same name. Raises RunDirError."""
    try:
        return find_home(source.store, name, tuple(kind for kind in kinds if kind == "training_runs"))
    except RunDirError as error:
        if error.code != "no_backup":
            raise
    return find_home(source.store, name, kinds)
