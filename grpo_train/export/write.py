"""An export from its plan to its directory, which appears when it is complete."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from grpo_train.export.card import model_card
from grpo_train.export.chat_template import chat_template, different_prompts
from grpo_train.export.plan import ExportError, ExportPlan
from grpo_train.export.shape import common_shape, sample_problems
from grpo_train.run_dir import sha256
from grpo_train.run_dir.errors import UserError, code_of, disk_error, disk_fix, disk_reason, prefixed
from grpo_train.run_dir.files import atomic_write, fsync_path, read_json, remove_tree, to_json
from grpo_train.run_dir.processes import boot_id, is_alive, start_ticks
from grpo_train.run_dir.version import VERSION

RECORD = "export.json"
"""What an export was made from, and the checksums of its files."""


@dataclass(frozen=True)
class Exported:
    """A finished export."""

    folder: str
    files: dict[str, int]
    """Name to size in bytes."""
    notes: list[str]
    is_new: bool = True


def existing_export(plan: ExportPlan) -> Exported | None:
    """The export at the plan's destination if it is this one and intact; None if there is nothing.

    Raises ExportError (``exists``) for anything else there.
    """
    if not plan.to.exists() and not plan.to.is_symlink():
        return None
    record = read_json(plan.to / RECORD) or {} if plan.to.is_dir() else {}
    if any(record.get(key) != value for key, value in plan.identity.items()):
        raise ExportError(f"{plan.to} exists already; remove it or choose another --to", code="exists")
    files = record.get("files") or {}
    for name, digest in files.items():
        if not (plan.to / name).is_file() or sha256(plan.to / name) != digest:
            raise ExportError(
                f"{plan.to} is an export of this step, but {name} was changed since; remove it or choose another --to",
                code="exists",
            )
    sizes = {name: (plan.to / name).stat().st_size for name in files}
    return Exported(str(plan.to), sizes, list(record.get("notes") or []), is_new=False)


def write_export(plan: ExportPlan, price: float | None = None) -> Exported:
    """Write an export, after removing what killed exports to the same place left.

    Raises ExportError, PolicyError, TaskError (no prompt template), OSError; leaves nothing behind then.

    Args:
        price: dollars per hour, for the cost in the model card.
    """
    from grpo_train.export.weights import write_weights

    if existing_export(plan):
        raise ExportError(f"{plan.to} exists already; remove it or choose another --to", code="exists")
    remove_staging(plan.to)
    writer = f"{os.getpid()}-{start_ticks(os.getpid())}-{_boot()}"
    staging = plan.to.with_name(f".{plan.to.name}.{writer}{secrets.token_hex(4)}.tmp")
    try:
        staging.mkdir(parents=True)
        tokenizer = write_weights(plan, staging)
        notes = _write_tokenizer(plan, tokenizer, staging)
        atomic_write(staging / "README.md", model_card(plan, notes, price))
        sizes = {str(path.relative_to(staging)): path.stat().st_size for path in _files(staging)}
        digests = {name: sha256(staging / name) for name in sizes}
        record = {"format": 1, "version": VERSION, **plan.identity, "notes": notes, "files": digests}
        atomic_write(staging / RECORD, to_json(record) + "\n")
        for path in _files(staging):
            fsync_path(path)
        fsync_path(staging)
        if plan.to.exists():  # since the check
            raise ExportError(f"{plan.to} exists already; remove it or choose another --to", code="exists")
        staging.rename(plan.to)
        fsync_path(plan.to.parent)
    except BaseException as error:
        remove_tree(staging)
        if not isinstance(error, UserError) and (failure := disk_error(error)):
            message = f"cannot write {plan.to}: {disk_reason(failure)}; {disk_fix(failure)} and export again"
            raise ExportError(message, code=code_of(failure)) from error
        if isinstance(error, SafetensorError):
            raise ExportError(f"cannot write {plan.to}: {str(error).splitlines()[0]}", code="io") from error
        raise
    return Exported(str(plan.to), {**sizes, RECORD: (plan.to / RECORD).stat().st_size}, notes)


def remove_staging(to: Path) -> None:
    """Remove the staging directories of exports to ``to`` that were killed on this machine since it booted.

    Those of other machines or an earlier boot are left to ``grpo-train clean``: their process may be alive elsewhere.
    """
    for path in to.parent.glob(f".{glob.escape(to.name)}.*.tmp"):
        writer = re.fullmatch(r"(\d+)-(\d+)-([0-9a-f]{8})[0-9a-f]{8}", path.name[len(to.name) + 2 : -len(".tmp")])
        if not writer or writer[3] != _boot() or path.is_symlink() or not path.is_dir():
            continue
        if not is_alive(int(writer[1]), int(writer[2])):
            remove_tree(path)


def _boot() -> str:
    """Eight hexadecimal digits of this machine's boot; ``none`` where processes cannot be identified."""
    boot = boot_id()
    return hashlib.sha256(boot.encode()).hexdigest()[:8] if boot else "none"


def _write_tokenizer(plan: ExportPlan, tokenizer: Any, folder: Path) -> list[str]:
    """Write the tokenizer with the run's prompt template; returns what a user must know about it."""
    with prefixed(f"the prompt template of {plan.run.name} cannot be read: "):
        problems = sample_problems(plan.config)
        shape = common_shape(problems)
        tokenizer.chat_template = chat_template(shape, tokenizer)
        different = different_prompts(tokenizer.chat_template, problems, tokenizer)
    tokenizer.save_pretrained(folder)
    if not different:
        return []
    return [
        f"The chat template does not reproduce the prompts of task {plan.config.task.name} from the question alone: "
        "send the whole prompt as the user's message, or all messages before it."
    ]


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]
