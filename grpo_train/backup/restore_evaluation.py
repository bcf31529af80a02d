"""Completing an evaluation that is here with results of its backup.

Intact results and samples that are here stay as they are. The results of a step appear by one rename, after which the
table and the comparisons, which are functions of the results, are written again.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

from grpo_train.backup.job import CommandProgress
from grpo_train.backup.snapshot import Snapshot, StoredFile
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.backup.transfer import Wanted, check_space, download
from grpo_train.evaluation.results.stored import SUPERSEDED, name_and_step, restore_torn, results_problem
from grpo_train.run_dir import TABLE, StatusWriter
from grpo_train.run_dir.files import fsync_path, read_json, remove_tree, sync_tree
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES


def complete_evaluation(
    folder: Path, snapshot: Snapshot, store: ObjectStore, job: CommandProgress, transfers: int
) -> tuple[list[int], dict[str, StoreError]]:
    """Add the results that an evaluation lacks; returns their steps, and what is damaged in the store.

    Raises RunDirError if the evaluation is at work, StoreError, OSError.
    """
    from grpo_train.evaluation.report.table import consolidate, unfinished_steps  # imports numpy

    with closing(StatusWriter(folder)):
        restore_torn(folder)
        groups, loose = _missing(folder, snapshot)
        files = [Wanted(folder / file.path, file, file.path) for file in loose]
        for name, members in groups.items():
            hidden = _hidden(folder / name)
            files += [Wanted(hidden / file.path.removeprefix(f"{name}/"), file, name) for file in members]
        if not files:
            return [], {}
        check_space(folder, sum(wanted.file.size for wanted in files))
        failed = download(store, files, job, transfers)
        shown = [name for name in groups if _show(folder / name, is_damaged=name in failed)]
        label = (read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True) or {}).get("dataset")
        if not isinstance(label, str):
            return [], failed
        consolidate(folder, label, [each for each in unfinished_steps(folder) if f"{each.name}_{label}" not in shown])
        return sorted(name_and_step(folder / name, label)[1] for name in shown if "/" not in name), failed


def _missing(folder: Path, snapshot: Snapshot) -> tuple[dict[str, list[StoredFile]], list[StoredFile]]:
    """Directories of which nothing intact is here, with their files; single files that are not here."""
    groups: dict[str, list[StoredFile]] = {}
    loose = []
    for file in snapshot.files:
        if name := _group(file.path):
            groups.setdefault(name, []).append(file)
        elif file.path != TABLE and not (folder / file.path).exists():
            loose.append(file)
    return {name: files for name, files in groups.items() if not _is_intact(folder / name)}, loose


def _group(path: str) -> str:
    """The directory that a file is restored with: results of a step, or those set aside; "" for a single file."""
    parts = path.split("/")
    return "/".join(parts[: 2 if parts[0] == SUPERSEDED else 1]) if len(parts) > (parts[0] == SUPERSEDED) + 1 else ""


def _is_intact(place: Path) -> bool:
    if place.parent.name == SUPERSEDED:
        return place.exists()
    return (place / "summary.json").exists() and not results_problem(place)


def _hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}.restore")


def _show(place: Path, *, is_damaged: bool) -> bool:
    """Replace what is damaged or unfinished here; a kill between the renames is repaired by ``restore_torn``."""
    hidden = _hidden(place)
    if is_damaged:
        remove_tree(hidden)
        return False
    sync_tree(hidden)
    old = place.with_name(f".{place.name}.{secrets.token_hex(4)}.old")
    if place.exists():
        place.rename(old)
    hidden.rename(place)
    fsync_path(place.parent)
    remove_tree(old)
    return True
