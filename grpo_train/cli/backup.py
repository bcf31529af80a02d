"""``grpo-train backup``, ``backup-all``, ``list-backups``, ``verify-backup`` and ``restore``.

Exit codes: 0 done, 1 failed (rerun to continue), 2 usage error, 3 done except for what is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_train.backup.cleanup import CleanupResult
from grpo_train.backup.overview import BackupRow, list_backups
from grpo_train.backup.restore import RestoreResult
from grpo_train.backup.runs import back_up_all, back_up_run, locate_folder, restore_run
from grpo_train.backup.snapshots import homes, homes_named, stored_evaluations
from grpo_train.backup.store import StoreError
from grpo_train.backup.take import BackupResult
from grpo_train.backup.transfer import TRANSFERS
from grpo_train.backup.verify import VerifyResult, verify
from grpo_train.cli.options import AsJson, Root, TrainingRun
from grpo_train.cli.output import table
from grpo_train.cli.tidy import Keep, KeepLatest, clean_and_note, how_many
from grpo_train.cli.transfer import (
    DONE,
    PARTLY,
    From,
    Limit,
    To,
    Transfers,
    age_text,
    failing,
    opened,
    print_json,
    print_omitted,
    progress_shown,
    size_text,
)
from grpo_train.run_dir import RunDir, RunDirError, existing_root, resolve_root
from grpo_train.run_dir.files import number_in
from grpo_train.run_dir.root import list_runs


def trains(run: RunDir) -> bool:
    """Whether a run trains or evaluates now; not while its workflow waits for a backup."""
    return run.observed_state().is_live and (run.read_status() or {}).get("stage") in ("train", "eval")


def any_trains(root: Path) -> bool:
    """Whether any run of a root trains or evaluates now: a backup of another one takes its time, too."""
    return any(trains(run) for run in list_runs(root))


def backup(
    training_run: TrainingRun,
    steps: Annotated[str, typer.Option(help="Checkpoints: all, latest, final, or steps such as 10,20.")] = "all",
    to: To = None,
    transfers: Transfers = TRANSFERS,
    limit: Limit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent.")] = False,
    cleanup: Annotated[
        bool, typer.Option("--cleanup", help="Then remove backed-up checkpoints, as grpo-train cleanup --yes.")
    ] = False,
    keep_latest: KeepLatest = False,
    keep: Keep = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Back up a run and its evaluations. The run may be training.

    Only what is new is sent, and every byte is proven to be in the store before the snapshot counts as complete. Rerun
    the command to continue after a failure.
    """
    folder = resolve_root(root)
    with failing(as_json), progress_shown() as show:
        number = _checkpoints_to_keep(cleanup, keep_latest, keep)
        kind, name = locate_folder(folder, training_run)
        destination = opened(to, folder, limit=limit, transfers=transfers, is_training=any_trains(folder))
        options = {"steps": steps, "transfers": transfers, "dry_run": dry_run, "show": show}
        result = back_up_run(folder, kind, name, destination, **options)
        everything = [*result.evaluations, result]
        if not as_json:
            _show_backups(everything, dry_run=dry_run)
        cleaned = None
        if number and kind == "training_runs" and not dry_run:
            run = RunDir(folder / kind / name)
            cleaned = clean_and_note(run, destination, number, transfers, show)
    if as_json:
        removed = [asdict(each) for each in cleaned.removed] if cleaned else []
        print(json.dumps({**asdict(result), **({"removed": removed} if cleanup else {})}, indent=1))
    elif cleaned:
        _show_cleaned(cleaned)
    raise typer.Exit(PARTLY if any(each.omitted for each in everything) else DONE)


def _checkpoints_to_keep(cleanup: bool, keep_latest: bool, keep: int | None) -> int:
    """How many a cleanup after the backup keeps; 0 without one. Raises RunDirError."""
    if not cleanup and (keep_latest or keep):
        raise RunDirError("--keep-latest and --keep need --cleanup", code="bad_option")
    return how_many(keep_latest, keep) if cleanup else 0


def _show_cleaned(result: CleanupResult) -> None:
    print(f"{result.run}: removed {len(result.removed)} checkpoints, {size_text(result.bytes)}")


def backup_all(
    to: To = None,
    transfers: Transfers = TRANSFERS,
    limit: Limit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent.")] = False,
    cleanup: Annotated[
        bool,
        typer.Option("--cleanup", help="After each run, remove its backed-up checkpoints as cleanup --yes."),
    ] = False,
    keep_latest: KeepLatest = False,
    keep: Keep = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Back up every run, evaluation and sweep of a root. One that fails does not stop the others."""
    with failing(as_json), progress_shown() as show:
        number = _checkpoints_to_keep(cleanup, keep_latest, keep)
        folder = existing_root(root)
        destination = opened(to, folder, limit=limit, transfers=transfers, is_training=any_trains(folder))
        cleaned: list[CleanupResult] = []

        def clean(result: BackupResult) -> None:
            if number and result.kind == "training_runs" and not dry_run:
                run = RunDir(folder / result.kind / result.name)
                cleaned.append(clean_and_note(run, destination, number, transfers, show))

        options = {"transfers": transfers, "dry_run": dry_run, "show": show}
        done, failed = back_up_all(folder, destination, then=clean, **options)
    if as_json:
        results: dict[str, Sequence[Any]] = {"done": done, "failed": failed}
        if cleanup:
            results["cleaned"] = cleaned
        print(json.dumps({name: [asdict(each) for each in rows] for name, rows in results.items()}))
    else:
        _show_backups(done, dry_run=dry_run)
        for each in cleaned:
            _show_cleaned(each)
        if not done and not failed:
            print(f"nothing to back up under {folder}")
    for failure in failed:
        print(f"error: {failure.kind}/{failure.name}: {failure.reason}", file=sys.stderr)
    raise typer.Exit(PARTLY if failed or any(each.omitted for each in done) else DONE)


def list_(
    training_run: Annotated[str | None, typer.Option(help="Show the snapshots of one run.")] = None,
    source: From = None,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Read the runs of this root to compare them.")
    ] = True,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """List the backups in a destination, and how far the runs of this root are ahead of them."""
    folder = resolve_root(root)
    with failing(as_json):
        try:
            destination, tried = opened(source, folder), True
        except StoreError as error:
            if error.code != "refused":
                raise
            destination, tried = opened(source, folder, write=False), False
        rows = list(list_backups(folder, destination, training_run, tried=tried, compare=compare))
    if as_json:
        print_json(rows)
    elif not rows:
        print("no backups" + (f" of {training_run}" if training_run else ""))
    elif training_run:
        for row in rows:
            _show_snapshots(row)
    else:
        _show_runs(rows)


def verify_backup(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run name (default: every run).")] = None,
    sample: Annotated[str, typer.Option(help="Share of the objects to read, such as 5%.")] = "100%",
    only_unread: Annotated[
        bool, typer.Option("--unread", help="Read only what the newest snapshot has and was never read back.")
    ] = False,
    to: To = None,
    transfers: Transfers = TRANSFERS,
    limit: Limit = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Read backups back and hash them, those of a run with its evaluations.

    Damaged objects are listed with the files they spoil, and stored again if the file is still here.
    """
    folder = resolve_root(root)
    with failing(as_json), progress_shown() as show:
        share = _share(sample)
        destination = opened(to, folder, limit=limit, transfers=transfers)
        found = homes_named(destination.store, run) if run else homes(destination.store)
        if run and not found:
            raise RunDirError(f"no backup of '{run}' in {destination.store.url}", code="no_backup")
        if run:
            evaluations = [each for home in found for each in stored_evaluations(destination.store, home)]
            found = list(dict.fromkeys([*found, *evaluations]))
        options = {"sample": share, "only_unread": only_unread, "transfers": transfers, "show": show}
        results = [verify(folder, home, destination, **options) for home in found]  # type: ignore[arg-type]
    if as_json:
        print_json(results)
    else:
        for result in results:
            _show_verified(result)
        if not results:
            print(f"no backups in {destination.store.url}")
    raise typer.Exit(DONE if all(result.is_sound for result in results) else PARTLY)


def restore(
    training_run: Annotated[str, typer.Option(help="Run name, or NAME--IDENTITY (see grpo-train list-backups).")],
    snapshot: Annotated[int | None, typer.Option(min=1, help="Number of the snapshot (default: the newest).")] = None,
    steps: Annotated[str, typer.Option(help="Checkpoints: all, latest, logs (none), or steps such as 10,20.")] = "all",
    as_: Annotated[str | None, typer.Option("--as", help="Restore under another name, as a separate run.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Then resume it, unless it was training elsewhere minutes ago.")
    ] = False,
    source: From = None,
    transfers: Transfers = TRANSFERS,
    limit: Limit = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Restore a run and its evaluations from a backup, every byte hashed.

    Missing checkpoints are added to a run that is already here. Rerun the command to continue after a failure.
    """
    folder = resolve_root(root)
    with failing(as_json), progress_shown() as show:
        destination = opened(source, folder, write=False, limit=limit, transfers=transfers)
        result = restore_run(
            folder, training_run, destination,
            number=snapshot, steps=steps, as_name=as_, must_be_idle=resume, transfers=transfers, show=show,
        )  # fmt: skip
    everything = [*result.evaluations, result]
    if as_json:
        print_json(result)
    else:
        for each in everything:
            _show_restored(each)
    for each in everything:
        print_omitted(each.omitted)
    if resume:
        from grpo_train.cli import train  # with the schema of configs

        train.resume(
            result.path, from_step="latest", additional_steps=None, nproc=None, set_=None, no_torchrun=False, root=root
        )
    raise typer.Exit(PARTLY if any(each.omitted for each in everything) else DONE)


def _share(text: str) -> float:
    """A share from ``5%``. Raises RunDirError."""
    share = (number_in(text.removesuffix("%")) or 0.0) / 100
    if not 0 < share <= 1:
        raise RunDirError(f"--sample {text}: use a percentage such as 5%", code="bad_option")
    return share


def _show_backups(results: Sequence[BackupResult], *, dry_run: bool) -> None:
    for each in results:
        where = f"{each.kind}/{each.name}"
        sent = f"{size_text(each.bytes_sent)} in {each.objects_sent:,} objects"
        if dry_run:
            print(f"{where}: would send {sent} to {each.destination}")
            continue
        number = f"snapshot {each.snapshot} in {each.destination}"
        state = f"{number}, sent {sent}" if each.is_new else f"unchanged since {number}"
        if each.ahead:
            state += f"; snapshot {each.ahead} is newer, by another copy of this run"
        if each.parent:
            state += f"; now a separate run ({each.identity}): another copy of {each.parent} has continued"
        print(f"{where}: {state}, {size_text(each.size)} in all")
    for each in results:
        print_omitted(each.omitted)


def _show_runs(rows: Sequence[BackupRow]) -> None:
    cells = []
    for row in rows:
        newest = next((each for each in row.snapshots if each.state in ("complete", "marked")), None)
        cells.append(
            [
                f"{row.kind}/{row.name}",
                str(newest.number) if newest else "-",
                newest.state if newest else row.snapshots[0].state if row.snapshots else "none",
                str(newest.steps[-1]) if newest and newest.steps else "-",
                size_text(newest.bytes) if newest else "-",
                age_text(newest.age_s) if newest else "-",
                _here_text(row) + (", same disk" if row.same_disk else ""),
            ]
        )
    table(("run", "snapshot", "state", "step", "size", "age", "this root"), cells)
    for row in rows:
        for each in row.snapshots:
            if each.state == "damaged":
                print(f"{row.kind}/{row.name}: snapshot {each.number} is damaged: {each.reason}")
        if row.error:
            print(f"{row.kind}/{row.name}: not compared: {row.error}")


def _show_snapshots(row: BackupRow) -> None:
    parent = f", copied from {row.parent}" if row.parent else ""
    print(f"{row.kind}/{row.name}--{row.identity} in {row.destination}{parent}: {row.error or _here_text(row)}")
    cells = [
        [
            str(each.number), each.state, ",".join(map(str, each.steps)) or "-", size_text(each.bytes),
            age_text(each.age_s), each.run_state, each.reason,
        ]
        for each in row.snapshots
    ]  # fmt: skip
    table(("snapshot", "state", "steps", "size", "age", "run", "reason"), cells)


def _here_text(row: BackupRow) -> str:
    lag = row.lag
    if row.error:
        return "not compared"
    if lag is None:
        return "here" if row.here else "not here"
    if lag.is_none:
        return "up to date"
    parts = [f"steps {', '.join(map(str, lag.steps))}"] if lag.steps else []
    parts += [f"{lag.log_steps} logged steps"] if lag.log_steps else []
    parts += [f"{size_text(lag.log_bytes)} of logs"] if lag.log_bytes and not lag.log_steps else []
    parts += [f"{lag.files} files"] if lag.files else []
    return "behind: " + ", ".join(parts)


def _show_verified(result: VerifyResult) -> None:
    read = f"read {result.objects:,} of {result.objects_total:,} objects, {size_text(result.bytes)}"
    print(f"{result.kind}/{result.name}: {read}; {len(result.damaged)} damaged")
    for damage in result.damaged:
        ending = "stored again from this root" if damage.repaired else f"spoils {', '.join(damage.spoils)}"
        print(f"  {damage.reason}; {ending}")
    for number, reason in result.unreadable:
        print(f"  snapshot {number}: {reason}")


def _show_restored(result: RestoreResult) -> None:
    steps = f"steps {', '.join(map(str, result.steps))}" if result.steps else "no checkpoints"
    verb = "restored" if result.is_new else "completed"
    print(f"{result.path}: {verb} from snapshot {result.snapshot}, {steps}, {size_text(result.bytes)}")
    for source, path in result.weights:
        print(f"  starting weights of {source} are in {path}")
    for name in result.hub:
        print(f"  needs {name} from the Hugging Face hub")
    for path in result.data:
        print(f"  needs data that is missing here: {path}")
