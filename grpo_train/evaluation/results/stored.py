"""A checkpoint's stored results: reading them, detecting damage, setting them aside. Torch-free.

Results replaced by results of other settings are kept in ``superseded/`` of the tree, named by the key of their
samples, and restored when those settings are requested again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import fsync_path, read_json, remove_tree
from grpo_train.run_dir.formats import current_row
from grpo_train.run_dir.safe_json import Unreadable, parse_object

GRADER_ERROR = "grader_error"
"""Reason of an attempt whose grader failed; counted separately, and judged again by the next evaluation."""
SUPERSEDED = "superseded"
RERUN_HINT = "evaluate the step again (grpo-train eval)"
ROW_KEYS = frozenset({"index", "correct"})
"""Keys that every line of completions.jsonl has in every format."""

COMPLETION_FIELDS = ("seed", "completion", "length", "truncated")
"""Keys of a line of completions.jsonl that were generated, not judged. A prompt that ends in ``</think>`` adds
``thoughts_closed``."""


def generated(row: Mapping[str, Any]) -> dict[str, Any]:
    """What was generated of a sample. Raises KeyError for a missing key."""
    closed = {"thoughts_closed": True} if row.get("thoughts_closed") else {}
    return {name: row[name] for name in COMPLETION_FIELDS} | closed


def digest(value: Any) -> str:
    """SHA-256 of a value's JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class DamagedError(UserError):
    """Damaged results; the message names the file and the defect, :data:`RERUN_HINT` says what to do."""

    code = "bad_evaluation"


def read_summary(folder: Path) -> dict[str, Any] | None:
    """A step's summary.json; None if missing. Raises DamagedError."""
    file = folder / "summary.json"
    if not os.path.lexists(file):
        return None
    summary = read_json(file)
    metrics = (summary or {}).get("metrics")
    if summary is None or not isinstance(metrics, dict) or not {"step", "name", "n"} <= metrics.keys():
        raise DamagedError(f"{file} is damaged")
    if not isinstance(summary.get("key", {}), dict):
        raise DamagedError(f"{file} is damaged")
    return {**summary, "metrics": current_row(metrics)}


def read_completion_rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of a step's completions.jsonl, as many as its summary counts. Raises DamagedError."""
    file = folder / "completions.jsonl"
    summary = read_summary(folder) or {}
    try:
        # Not splitlines: completions may contain U+2028, which does not end a line of JSON.
        *lines, rest = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise DamagedError(f"{file} is missing") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{file} is not UTF-8 text") from error
    rows = []
    for line_number, line in enumerate([*lines, *([rest] if rest else [])], 1):
        try:
            row = parse_object(line.encode(), finite=False)
        except Unreadable as error:
            raise DamagedError(f"{file}, line {line_number} is damaged: {error}") from error
        if not row.keys() >= ROW_KEYS:
            raise DamagedError(f"{file}, line {line_number} is not a sample")
        rows.append(current_row(row))
    expected = summary["metrics"]["n"] if summary else 0
    if len(rows) != expected:
        raise DamagedError(f"{file} has {len(rows)} of {expected} samples")
    return rows


def results_problem(folder: Path) -> str:
    """The defect of a step's results; "" for intact or missing results."""
    try:
        if read_summary(folder) is not None:
            read_completion_rows(folder)
    except DamagedError as error:
        return str(error)
    return ""


def key_at(folder: Path) -> dict[str, Any] | None:
    """Cache key of the results in a directory; {} if they do not record one, None without results."""
    if not folder.exists():
        return None
    try:
        return dict((read_summary(folder) or {}).get("key") or {})
    except DamagedError:
        return {}


def is_complete(folder: Path, key: Mapping[str, Any]) -> bool:
    """Whether a directory holds intact results of exactly this key, without grader failures."""
    if results_problem(folder):
        return False
    summary = read_json(folder / "summary.json") or {}
    return summary.get("key") == key and GRADER_ERROR not in summary.get("reasons", {})


def steps_of(folder: Path, label: str) -> list[Path]:
    """The result directories of a tree, including damaged ones."""
    found = (path for path in folder.glob(f"*_{label}") if os.path.lexists(path / "summary.json"))
    return sorted(path for path in found if not path.name.startswith("."))


def name_and_step(folder: Path, label: str) -> tuple[str, int]:
    """Name and step of a result directory; step 0 for a custom name."""
    name = folder.name.removesuffix(f"_{label}")
    match = re.fullmatch(r"step_(\d+)", name)
    return name, int(match[1]) if match else 0


def set_aside(folder: Path, key: Mapping[str, Any]) -> None:
    """Move a directory of results or samples with this key to ``superseded/``."""
    aside = aside_of(folder, key)
    aside.parent.mkdir(exist_ok=True)
    remove_tree(aside)  # holds the same samples
    folder.rename(aside)
    fsync_path(aside.parent)


def bring_back(folder: Path, key: Mapping[str, Any]) -> bool:
    """Move the samples of this key from ``superseded/`` back to ``folder``, which must not exist; False if none."""
    aside = aside_of(folder, key)
    if not aside.is_dir():
        return False
    aside.rename(folder)
    fsync_path(folder.parent)
    return True


def restore_torn(folder: Path) -> None:
    """Repair a kill between the two renames of a replacement: restore old results, remove drafts."""
    for old in folder.glob(".*.old"):
        final = old.with_name(re.sub(r"^\.(.*)\.[0-9a-f]{8}\.old$", r"\1", old.name))
        if not final.exists() and final != old:
            old.rename(final)
        else:
            remove_tree(old)
    for draft in folder.glob(".*.tmp"):
        if draft.is_dir():
            remove_tree(draft)
        else:
            draft.unlink()


def aside_of(folder: Path, key: Mapping[str, Any]) -> Path:
    """The place in ``superseded/`` for the samples of this key."""
    return folder.parent / SUPERSEDED / f"{folder.name}_{digest(key.get('samples'))[:12]}"
