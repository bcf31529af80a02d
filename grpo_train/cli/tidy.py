"""``grpo-train cleanup``, ``archive``, ``prune-backups``, ``safe-to-terminate`` and ``fetch``.

Exit codes as in :mod:`grpo_train.cli.backup`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.backup.archive import archive_checkpoint, archive_run
from grpo_train.backup.backup_yaml import Bucket, DestinationError
from grpo_train.backup.cleanup import CleanupPlan, CleanupResult, clean_up, plan_cleanup
from grpo_train.backup.destinations import Destination, find_destination
from grpo_train.backup.fetch import fetch, store_of_url
from grpo_train.backup.job import OnProgress
from grpo_train.backup.prune import PruneResult, prune
from grpo_train.backup.runs import back_up_run
from grpo_train.backup.snapshot import ARCHIVED_RUNS
from grpo_train.backup.snapshots import homes, homes_named
from grpo_train.backup.store import RateLimit
from grpo_train.backup.terminate import safe_to_terminate
from grpo_train.backup.transfer import TRANSFERS
from grpo_train.cli.options import AsJson, Root, RunArgument, TrainingRun
from grpo_train.cli.transfer import (
    DONE,
    FAILED,
    PARTLY,
    Limit,
    To,
    Transfers,
    Yes,
    age_text,
    confirm,
    failing,
    opened,
    parse_limit,
    print_json,
    print_omitted,
    progress_shown,
    size_text,
)
from grpo_train.run_dir import RunDir, RunDirError, open_run, resolve_root

KeepLatest = Annotated[bool, typer.Option("--keep-latest", help="Keep the newest checkpoint only.")]
Keep = Annotated[int | None, typer.Option(min=1, help="Keep the newest N checkpoints.")]


def cleanup(
    training_run: TrainingRun,
    keep_latest: KeepLatest = False,
    keep: Keep = None,
    to: To = None,
    transfers: Transfers = TRANSFERS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Remove checkpoints of a run that its backup holds; grpo-train restore brings them back.

    Each is read back from the backup and hashed before it is removed. Links, milestones, the best evaluated steps, and
    whatever an evaluation or another run needs stay. Logs, configs and evaluations are never removed.
    """
    with failing(as_json), progress_shown() as show:
        number = how_many(keep_latest, keep)
        run = open_run(resolve_root(root), training_run)
        destination = opened(to, run.root)
        plan = plan_cleanup(run, destination, number)
        if not as_json:
            _show_plan(plan)
        if dry_run or not plan.spare:
            if as_json:  # what was removed is a list in any case
                unchanged = CleanupResult(plan.run, plan.destination, plan.snapshot, (), plan.kept)
                print_json(plan if dry_run else unchanged)
            raise typer.Exit(DONE)
        confirm(yes, f"Remove {len(plan.spare)} checkpoints ({size_text(plan.bytes)}) from this disk?")
        result = clean_and_note(run, destination, number, transfers, show)
    if as_json:
        print_json(result)
    else:
        print(f"{result.run}: removed {len(result.removed)} checkpoints, {size_text(result.bytes)}")
    missed = {each.path for each in plan.spare} - {each.path for each in result.removed}
    for each in result.kept:
        if each.path in missed:
            print(f"warning: {each.path}: {each.reason}", file=sys.stderr)
    raise typer.Exit(PARTLY if missed else DONE)


def how_many(keep_latest: bool, keep: int | None) -> int:
    """The number of checkpoints to keep. Raises RunDirError."""
    if keep_latest == (keep is not None):
        raise RunDirError("choose --keep-latest or --keep N", code="bad_option")
    return keep or 1


def clean_and_note(run: RunDir, to: Destination, keep: int, transfers: int, show: OnProgress | None) -> CleanupResult:
    """Clean up, then back up what that changed: the event in the log, and which steps are on the box."""
    result = clean_up(run, to, keep, transfers=transfers, show=show)
    if result.removed:
        back_up_run(run.root, "training_runs", run.name, to, transfers=transfers, show=show)
    return result


def archive(
    run: RunArgument,
    step: Annotated[int | None, typer.Option(min=0, help="Archive a copy of this checkpoint only.")] = None,
    note: Annotated[str, typer.Option(help="Note to keep with it.")] = "",
    to: To = None,
    transfers: Transfers = TRANSFERS,
    limit: Limit = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Archive a finished run, or one checkpoint, after it was backed up and read back.

    The run moves to archive/completed_runs; a checkpoint is copied to archive/important_checkpoints/RUN_step_N.
    """
    with failing(as_json), progress_shown() as show:
        folder = resolve_root(root)
        was_moved = (folder / ARCHIVED_RUNS / run).is_dir() and not (folder / "training_runs" / run).exists()
        found = RunDir(folder / "training_runs" / run) if was_moved and step is None else open_run(folder, run)
        destination = opened(to, found.root, limit=limit, transfers=transfers)
        if step is None:
            result = archive_run(found, destination, note=note, transfers=transfers, show=show)
        else:
            result = archive_checkpoint(found, step, destination, note=note, transfers=transfers, show=show)
    if as_json:
        print_json(result)
    else:
        objects = f"{result.verified.objects:,} objects read back"
        print(f"{result.path}: archived, snapshot {result.backup.snapshot} in {destination.name}, {objects}")
    print_omitted(result.backup.omitted)
    raise typer.Exit(DONE if result.is_whole else PARTLY)


def prune_backups(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run name (default: every run).")] = None,
    keep_last: Annotated[int, typer.Option(min=1, help="Number of complete snapshots to keep.")] = 3,
    drop_steps: Annotated[
        str | None, typer.Option(help="Checkpoints of RUN to take out of the backups, such as 10,20.")
    ] = None,
    to: To = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be marked and removed.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Remove snapshots that newer complete ones contain.

    A snapshot is marked first and removed by a prune at least 24 hours later. A checkpoint is removed from the backups
    only by name (--drop-steps).
    """
    with failing(as_json), progress_shown() as show:
        folder = resolve_root(root)
        steps = _steps(drop_steps, run)
        destination = opened(to, folder)
        found = homes_named(destination.store, run) if run else homes(destination.store)
        if run and not found:
            raise RunDirError(f"no backup of '{run}' in {destination.store.url}", code="no_backup")
        if steps and len(found) > 1:
            raise RunDirError(f"'{run}' names several runs; name one as NAME--IDENTITY", code="ambiguous")
        options = {"keep_last": keep_last, "drop_steps": steps, "show": show}
        plan = [prune(folder, home, destination, dry_run=True, **options) for home in found]  # type: ignore[arg-type]
        if dry_run or not any(each.changes for each in plan):
            _show_all_pruned(plan, as_json, dry_run=True)
            if not found and not as_json:
                print(f"no backups in {destination.store.url}")
            raise typer.Exit(DONE)
        if not as_json:
            _show_all_pruned(plan, as_json, dry_run=True)
        confirm(yes, _prune_question(plan, destination))
        results = [prune(folder, home, destination, **options) for home in found]  # type: ignore[arg-type]
    _show_all_pruned(results, as_json, dry_run=False)


def safe(
    to: To = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="The disk of the root outlives this box.")] = False,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Report whether this box can be terminated: exit code 0, or 1 with what would be lost."""
    folder = resolve_root(root)
    with failing(as_json):
        try:
            destination = opened(to, folder)
        except DestinationError as error:  # a box that has none: then everything on it would be lost
            if error.code != "no_destination" or to:
                raise
            destination = None
        verdict = safe_to_terminate(folder, destination, persistent=persistent)
    if as_json:
        print_json(verdict)
    else:
        for each in verdict.obstacles:
            command = f"; {each.command}" if each.command else ""
            print(f"{each.kind}/{each.name}: {each.reason}{command}")
        kept = " (kept on the mount only, no second copy)" if verdict.kept == "mount" else ""
        print(f"safe to terminate{kept}" if verdict.safe else "not safe to terminate")
    raise typer.Exit(DONE if verdict.safe else FAILED)


def _steps(text: str | None, run: str | None) -> list[int]:
    """The steps of ``--drop-steps``. Raises RunDirError."""
    words = text.split(",") if text is not None else []
    if words and (run is None or not all(word.isascii() and word.isdecimal() for word in words)):
        raise RunDirError("--drop-steps takes steps such as 10,20, with the name of a run", code="bad_option")
    return [int(word) for word in words]


def _show_plan(plan: CleanupPlan) -> None:
    print(f"{plan.run} on {plan.host}: snapshot {plan.snapshot} in {plan.destination} ({plan.store})")
    age = "" if plan.read_back_age_s is None else f" (age: {age_text(plan.read_back_age_s)})"
    read_back = f"snapshot {plan.read_back}{age}" if plan.read_back else "no snapshot"
    print(f"  read back in whole: {read_back}; each checkpoint is read back again before it is removed")
    for spare in plan.spare:
        print(f"  remove  {spare.path}  {size_text(spare.bytes)}")
    for kept in plan.kept:
        print(f"  keep    {kept.path}  {kept.reason}")
    print(f"  {len(plan.spare)} checkpoints, {size_text(plan.bytes)}")


def _prune_question(plan: Sequence[PruneResult], to: Destination) -> str:
    """What a prune asks for: snapshots and objects to delete, and steps by name."""
    removed = sum(len(each.removed) for each in plan)
    marked = sum(len(each.marked) for each in plan)
    size = size_text(sum(each.bytes for each in plan))
    dropped = sorted({step for each in plan for step in each.dropped_steps})
    drop = f"Take steps {', '.join(map(str, dropped))} out of the backups, remove" if dropped else "Remove"
    objects = sum(each.objects for each in plan)
    return f"{drop} {removed} snapshots and {objects:,} objects ({size}), and mark {marked}, in {to.store.url}?"


def _show_all_pruned(results: Sequence[PruneResult], as_json: bool, *, dry_run: bool) -> None:
    if as_json:
        print_json(results)
        return
    for result in results:
        _show_pruned(result, dry_run=dry_run)


def _show_pruned(result: PruneResult, *, dry_run: bool) -> None:
    def numbers(found: tuple[int, ...]) -> str:
        return ", ".join(map(str, found)) or "none"

    will = "would be " if dry_run else ""
    dropped = f", steps {numbers(result.dropped_steps)} {will}dropped" if result.dropped_steps else ""
    print(
        f"{result.kind}/{result.name}: {will}removed {numbers(result.removed)}, {will}marked {numbers(result.marked)}"
        f"{dropped}, {result.objects:,} objects ({size_text(result.bytes)}) deleted"
    )
    for stays in result.stays:
        print(f"  snapshot {stays.snapshot} stays: {stays.reason}")


def fetch_(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://BUCKET/PREFIX/, or a directory.")],
    to: Annotated[Path, typer.Option(help="Directory to create, such as ROOT/checkpoints/NAME.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Destination whose endpoint and credentials are used.")
    ] = None,
    transfers: Transfers = TRANSFERS,
    limit: Limit = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Fetch starting weights into a new directory, checked by their manifest or their headers."""
    with failing(as_json), progress_shown() as show:
        described = find_destination(source) if source else None
        rate = RateLimit(parse_limit(limit)) if limit else None
        store, prefix = store_of_url(url, described if isinstance(described, Bucket) else None, rate)
        result = fetch(resolve_root(root), store, prefix, to.expanduser().absolute(), transfers=transfers, show=show)
    if as_json:
        print_json(result)
    else:
        by = "every SHA-256 in MANIFEST.json" if result.checked == "manifest" else "sizes and safetensors headers"
        print(f"{result.path}: {result.files:,} files, {size_text(result.bytes)}, checked by {by}")
