"""Checkpoints that a backup holds, as the run's note says. Standard library only."""

from __future__ import annotations

from pathlib import Path

from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.identity import NOTE
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES


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
