"""What a run's note says of its backups, without asking a store. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.identity import NOTE
from grpo_train.run_dir.manifest import STEP_NAME
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES

# checkpoints that a backup holds ---------------------------------------------------------------------------


def steps_in_backup(run: Path) -> dict[int, str]:
    """Each removed step that is not here again, and the destination that has it. Raises OSError."""
    found = (read_json(run / NOTE, MAX_RUN_FILE_BYTES, finite=True) or {}).get("removed")
    steps = {int(step): name for step, name in (found if isinstance(found, dict) else {}).items() if _is_step(step)}
    here = run / "training_state"
    return {step: str(name)[:64] for step, name in steps.items() if not (here / f"step_{step}").exists()}


def digests_in_backup(run: Path) -> set[str]:
    """SHA-256 of the manifests of checkpoints in the newest snapshots of the run on other disks. Raises OSError."""
    stores = (read_json(run / NOTE, MAX_RUN_FILE_BYTES, finite=True) or {}).get("stores")
    found: set[str] = set()
    for row in stores.values() if isinstance(stores, dict) else ():
        latest = row.get("latest") if isinstance(row, dict) else None
        digests = row.get("steps") if isinstance(row, dict) else None
        if isinstance(latest, dict) and latest.get("same_disk") is False and isinstance(digests, list):
            found |= {digest for digest in digests if isinstance(digest, str)}
    return found


def restore_hint(run: Path, step: str) -> str:
    """ "; it is in backup: COMMAND" for a removed step, else ""."""
    name = steps_in_backup(run).get(int(step)) if _is_step(step) else None
    command = f"grpo-train restore --training-run {run.name} --steps {step} --from {name}"
    return f"; it is in backup: {command}" if name else ""


def _is_step(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


# how far a run is backed up --------------------------------------------------------------------------------

MAX_NAME = 64
_MOST = 2**53


@dataclass(frozen=True)
class LastBackup:
    """The newest snapshot of a run in one store."""

    destination: str
    same_disk: bool
    """The store is on the disk of the root: it is lost with the box."""
    step: int
    """Newest checkpoint in it; 0 = none."""
    log_step: int
    """Last training step in its log."""
    events_bytes: int
    """Length of its ``events.jsonl``: what is logged behind it happened since."""
    time: float
    """When it was made, by the store's clock."""


def parse_last_backup(row: object) -> LastBackup | None:
    """From JSON; None where anything is missing or has another type."""
    if not isinstance(row, dict):
        return None
    name, same_disk, time = row.get("destination"), row.get("same_disk"), row.get("time")
    step, log_step, events_bytes = (_count(row.get(key)) for key in ("step", "log_step", "events_bytes"))
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return None
    if not isinstance(same_disk, bool) or isinstance(time, bool) or not isinstance(time, int | float):
        return None
    if not 0 <= time <= _MOST or step is None or log_step is None or events_bytes is None:
        return None
    return LastBackup(name, same_disk, step, log_step, events_bytes, float(time))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def backup_state(run: Path, step: int, events: Iterable[tuple[int, dict[str, Any]]]) -> dict[str, Any] | None:
    """State of a run's backup as plain JSON; None without one.

    ``step``: last logged step of the run; ``events``: position and row of its events, read only if it has a backup. A
    backup on another disk comes before one on the same disk. Raises Unreadable, OSError.
    """
    stores = (read_json(run / NOTE, MAX_RUN_FILE_BYTES, finite=True) or {}).get("stores")
    rows = stores.values() if isinstance(stores, dict) else ()
    known = [found for row in rows if isinstance(row, dict) and (found := parse_last_backup(row.get("latest")))]
    if not known:
        return None
    last = max(known, key=lambda each: (not each.same_disk, each.log_step, each.time))
    resumed = [row.get("from_step") for at, row in events if at >= last.events_bytes and row.get("event") == "resumed"]
    common = min([last.log_step, *(each for each in resumed if type(each) is int and each >= 0)])
    # A resume from an earlier step since then superseded what the snapshot has of later steps.
    saved = min(last.step, common) if common < last.log_step else last.step
    return {
        "destination": last.destination,
        "same_disk": last.same_disk,
        "step": saved,
        "behind": max(0, step - common, _newest_checkpoint(run) - saved),
        "time": last.time,
    }


def _newest_checkpoint(run: Path) -> int:
    """Step of the newest checkpoint, by its name: a directory gets it when it is complete."""
    try:
        matches = [STEP_NAME.fullmatch(entry.name) for entry in (run / "training_state").iterdir()]
    except (FileNotFoundError, NotADirectoryError):  # removed in the meantime
        return 0
    return max((int(match[1]) for match in matches if match), default=0)
