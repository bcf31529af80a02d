"""A checkpoint's results as they lie on disk: read, and refused where they are damaged. Torch-free.

Results that other settings replace are kept in ``superseded/`` of the tree, named by what their samples depend on, and
come back from there when they are asked for again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_train.evaluation.results.keys import digest
from grpo_train.run_dir.files import fsync_directory, read_json, remove_tree
from grpo_train.run_dir.formats import current_row

SUPERSEDED = "superseded"
AGAIN = "evaluate the step again (grpo-train eval)"
"""The way out of damage."""
ROW = frozenset({"index", "correct"})
"""What every line of completions.jsonl has had from the first."""


class DamagedError(Exception):
    """Results that are there and cannot be used; says which file and what is wrong with it. The way out: AGAIN."""


def read_summary(place: Path) -> dict[str, Any] | None:
    """A step's summary.json; None where there is none. Raises DamagedError."""
    file = place / "summary.json"
    if not file.exists():
        return None
    summary = read_json(file)
    metrics = (summary or {}).get("metrics")
    if summary is None or not isinstance(metrics, dict) or not {"step", "name", "n"} <= metrics.keys():
        raise DamagedError(f"{file} is damaged")
    return {**summary, "metrics": current_row(metrics)}


def read_rows(place: Path) -> list[dict[str, Any]]:
    """The lines of a step's completions.jsonl, as many as its summary counts. Raises DamagedError."""
    file = place / "completions.jsonl"
    summary = read_summary(place) or {}
    try:
        # Not splitlines: what a model says may hold U+2028, which ends no line of JSON.
        *lines, rest = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise DamagedError(f"{file} is missing") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{file} is no text") from error
    rows = []
    for number, line in enumerate([*lines, *([rest] if rest else [])], 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DamagedError(f"{file}, line {number} is damaged") from error
        if not isinstance(row, dict) or not row.keys() >= ROW:
            raise DamagedError(f"{file}, line {number} is no sample")
        rows.append(current_row(row))
    expected = summary["metrics"]["n"] if summary else 0
    if len(rows) != expected:
        raise DamagedError(f"{file} has {len(rows)} of {expected} samples")
    return rows


def problem_of(place: Path) -> str:
    """What is wrong with a step's results; "" where nothing is, or where there are none."""
    try:
        if read_summary(place) is not None:
            read_rows(place)
    except DamagedError as error:
        return str(error)
    return ""


def steps_of(folder: Path, label: str) -> list[Path]:
    """The directories of a tree's results, damaged ones among them."""
    found = (path.parent for path in folder.glob(f"*_{label}/summary.json"))
    return sorted(place for place in found if not place.name.startswith("."))


def name_and_step(place: Path, label: str) -> tuple[str, int]:
    """What the results of a directory are called, and their step as far as the name says it."""
    name = place.name.removesuffix(f"_{label}")
    match = re.fullmatch(r"step_(\d+)", name)
    return name, int(match[1]) if match else 0


def set_aside(place: Path, key: Mapping[str, Any]) -> None:
    """Move a directory of results or samples, which have this key, to ``superseded/``."""
    aside = _aside(place, key)
    aside.parent.mkdir(exist_ok=True)
    remove_tree(aside)  # of the same samples
    place.rename(aside)
    fsync_directory(aside.parent)


def bring_back(place: Path, key: Mapping[str, Any]) -> bool:
    """Move what was set aside under this key's samples back to ``place``, which is free; False where there is none."""
    aside = _aside(place, key)
    if not aside.is_dir():
        return False
    aside.rename(place)
    fsync_directory(place.parent)
    return True


def aside_of(place: Path, key: Mapping[str, Any]) -> Path | None:
    """Where results of this key's samples are set aside; None where there are none."""
    aside = _aside(place, key)
    return aside if aside.is_dir() else None


def restore_torn(folder: Path) -> None:
    """Undo what a kill left between a step's old results and its new ones: the old ones come back, drafts go."""
    for old in folder.glob(".*.old"):
        place = old.with_name(re.sub(r"^\.(.*)\.[0-9a-f]{8}\.old$", r"\1", old.name))
        if not place.exists() and place != old:
            old.rename(place)
        else:
            remove_tree(old)
    for draft in folder.glob(".*.tmp"):
        if draft.is_dir():
            remove_tree(draft)
        else:
            draft.unlink()


def _aside(place: Path, key: Mapping[str, Any]) -> Path:
    return place.parent / SUPERSEDED / f"{place.name}_{digest(key.get('samples'))[:12]}"
