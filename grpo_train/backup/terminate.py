"""Whether this box can be terminated without losing anything: what forbids it, each with the command that ends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.backup.job import FOLDER, NAMES
from grpo_train.backup.overview import lag_of
from grpo_train.backup.record import read_record
from grpo_train.backup.runs import everything
from grpo_train.backup.snapshot import Home
from grpo_train.backup.snapshots import StoredRun, unread
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.errors import UserError, code_of
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.machine import mount_of
from grpo_train.run_dir.processes import run_id_in, start_ticks
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES
from grpo_train.run_dir.status import observe

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.s3fs", "fuse.gcsfuse"})


@dataclass(frozen=True)
class Obstacle:
    """Something that would be lost, or cut off."""

    kind: str
    name: str
    code: str
    """``live``, ``no_backup``, ``behind``, ``never_read_back``, ``same_disk``, ``no_destination``, ``unreadable`` or
    ``no_runs``."""
    reason: str
    command: str
    """What ends it."""


@dataclass(frozen=True)
class SafetyVerdict:
    safe: bool
    kept: str
    """``backup`` (a second copy), ``mount`` (kept on the mount only, no second copy), or "" where it is not safe."""
    obstacles: tuple[Obstacle, ...]
    """What forbids termination; with ``mount`` also what has no second copy."""


def safe_to_terminate(root: Path, to: Destination | None, *, persistent: bool = False) -> SafetyVerdict:
    """Look at every run, evaluation and sweep of a root, and at live processes.

    ``to``: None where no destination is described. ``persistent``: the user confirms that the root's disk outlives the
    box; a network mount does. Raises StoreError.
    """
    found = list(_live(root))
    if not found and not (root / "training_runs").is_dir():
        reason = "it does not exist: nothing was launched here, or the disk of the root is not mounted"
        return SafetyVerdict(False, "", (Obstacle(str(root), "training_runs", "no_runs", reason, ""),))
    live = [each for each in found if each.code == "live"]
    behind = [*(each for each in found if each not in live), *_behind(root, to)]
    if live:
        return SafetyVerdict(False, "", (*live, *behind))
    if not behind:
        return SafetyVerdict(True, "backup", ())
    mount = mount_of(root)
    outlives = persistent or (mount is not None and mount.kind in NETWORK_FILE_SYSTEMS)
    return SafetyVerdict(outlives, "mount" if outlives else "", tuple(behind))


def _live(root: Path) -> Iterator[Obstacle]:
    """Runs, evaluations and transfers at work; one that is killed in between shows as its processes."""
    stop = "grpo-train stop --training-run {}"
    seen: set[str] = set()
    for kind, name in everything(root):
        folder = root / kind / name
        try:
            if kind == "training_runs":
                state = RunDir(folder).observed_state()
            else:
                state = observe(read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True) or {})
        except (UserError, OSError) as error:  # another account's; a failing disk
            yield Obstacle(kind, name, "unreadable", str(error), "")
            continue
        if state.is_live:
            seen.add(os.path.realpath(folder))
            command = stop.format(name) if kind == "training_runs" else f"tmux attach -t '{name}'"
            yield Obstacle(kind, name, "live", f"it is {state.state}", command)
    for status in sorted(root.glob(f"{FOLDER}/*/status.json")):
        row = read_json(status, MAX_RUN_FILE_BYTES, finite=True) or {}
        if observe(row).is_live and row.get("pid") != os.getpid():
            command = str(row.get("command"))
            reason = f"grpo-train {NAMES.get(command, command)} is at work"
            yield Obstacle(FOLDER, status.parent.name, "live", reason, "")
    for pid, run_id in _processes(os.path.realpath(root)):
        if run_id not in seen:
            seen.add(run_id)
            name = os.path.basename(run_id)
            yield Obstacle("training_runs", name, "live", f"process {pid} is running", f"{stop.format(name)} --now")


def _processes(root: str) -> Iterator[tuple[int, str]]:
    """(pid, run ID) of live processes of this root's runs."""
    for entry in sorted(Path("/proc").iterdir()) if Path("/proc").is_dir() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            run_id = run_id_in(int(entry.name))
            if run_id.startswith(root + os.sep) and start_ticks(int(entry.name)) is not None:
                yield int(entry.name), run_id


def _behind(root: Path, to: Destination | None) -> Iterator[Obstacle]:
    for kind, name in everything(root):
        option = name if kind == "training_runs" else f"'{kind}/{name}'"
        backup = f"grpo-train backup --training-run {option}"
        if to is None:
            yield Obstacle(kind, name, "no_destination", "no destination for backups is described", "")
            continue
        try:
            yield from _lags(root / kind / name, kind, name, to, backup)
        except (UserError, OSError) as error:  # of one run; of the store for all others
            if code_of(error) in ("refused", "no_bucket", "wrong_region", "clock", "unreachable"):
                raise
            yield Obstacle(kind, name, "unreadable", str(error), backup)


def _lags(folder: Path, kind: str, name: str, to: Destination, backup: str) -> Iterator[Obstacle]:
    if to.trust.same_disk:
        yield Obstacle(kind, name, "same_disk", f"{to.name} is on the same disk: no second copy", "")
        return
    record = read_record(folder)
    stored = StoredRun(to.store, Home(kind, name, record.identity))
    newest = stored.newest()
    if newest is None or newest.manifest is None:
        yield Obstacle(kind, name, "no_backup", f"it has no complete snapshot in {to.name}", backup)
        return
    lag = lag_of(folder, newest.manifest, newest.home)
    if not lag.is_none:
        parts = [f"steps {', '.join(map(str, lag.steps))}"] if lag.steps else []
        parts += [f"{lag.log_bytes:,} bytes of logs"] if lag.log_bytes else []
        parts += [f"{lag.files} files"] if lag.files else []
        yield Obstacle(kind, name, "behind", f"not in snapshot {newest.number}: {', '.join(parts)}", backup)
    if left := unread(stored, newest.manifest):
        bytes_ = sum(part.size for part in left)
        reason = f"{len(left):,} objects of snapshot {newest.number} ({bytes_:,} bytes) were never read back"
        yield Obstacle(kind, name, "never_read_back", reason, f"grpo-train verify-backup {name} --unread")
