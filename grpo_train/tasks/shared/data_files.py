"""Files of a dataset's splits: a JSONL file, a directory of them, or ``ROOT/rlp_datasets/processed/NAME``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_train.run_dir import resolve_root
from grpo_train.tasks.shared.base import Split, TaskError

OLDER_LAYOUT = Path("rlp_datasets/processed")
"""Directory below the root in which an older trainer kept its datasets."""
_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


def locate(path: str, root: Path | None = None) -> Path:
    """The absolute file or directory of ``task.path``; a name that does not exist is looked up in the older layout.

    Raises TaskError.
    """
    given = Path(path).expanduser()
    older = resolve_root(root) / OLDER_LAYOUT / path
    for candidate in (given, older):
        if candidate.exists():
            return candidate.absolute()
    elsewhere = "" if given.is_absolute() else f", and neither does {older}"
    raise TaskError(
        f"task.path: '{path}' does not exist{elsewhere}; set it to a JSONL file or a directory with train.jsonl and "
        "test.jsonl"
    )


def split_files(path: Path) -> dict[Split, list[Path]]:
    """The files of each split; an undivided dataset is all "train".

    - A directory has train.jsonl and test.jsonl (or NAME_train.jsonl, or directories train/ and test/ with any *.jsonl
      in them) and optionally validation.jsonl; or a single *.jsonl file with all rows.
    - A file with train or test in its name brings in the file beside it that has the other word instead; a test file
      alone is a test split without a train split.

    Raises TaskError where there is no file.
    """
    if path.is_file():
        return _with_siblings(path)
    found: dict[Split, list[Path]] = {}
    files = sorted(path.glob("*.jsonl"))
    for split, names in _NAMES.items():
        inside = [file for name in names for file in sorted((path / name).glob("*.jsonl"))]
        exact = [file for file in files if file.stem in names]
        ending = [file for file in files if re.search(rf"[_.-](?:{'|'.join(names)})$", file.stem)]
        if chosen := exact[:1] or inside or ending:
            if chosen is ending and len(ending) > 1:
                raise TaskError(f"task.path: '{path}' has several {split} files ({_list(ending)}); set it to one")
            found[split] = chosen
    if not found and len(files) == 1:
        return _with_siblings(files[0])
    if not found:
        kinds = sorted(
            {file.suffix for file in path.rglob("*") if file.suffix in {".arrow", ".parquet", ".csv", ".json"}}
        )
        hint = f"; convert its {', '.join(kinds)} files to JSONL first" if kinds else ""
        raise TaskError(
            f"task.path: '{path}' has no train.jsonl and no test.jsonl, found {_list(files) or 'no *.jsonl'}{hint}"
        )
    return found


def rows_of(file: Path) -> Iterator[tuple[str, Any]]:
    """(location, record) of every line that is not blank; a location is "FILE, line N". Raises TaskError."""
    try:
        # utf-8-sig: Windows programs write a byte order mark. Not splitlines: a JSON string may contain U+2028.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"task.path: cannot read '{file}': {error}") from error
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        location = f"{file}, line {line_number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError also for an integer of more than 4,300 digits
            raise TaskError(f"{location}: invalid JSON: {error}") from error
        if not isinstance(record, dict):
            raise TaskError(f"{location}: expected an object, found a {type(record).__name__}")
        yield location, record


def _with_siblings(file: Path) -> dict[Split, list[Path]]:
    split = next((split for split, names in _NAMES.items() if _mentions(file.stem, names)), None)
    if split is None:
        return {"train": [file]}
    found: dict[Split, list[Path]] = {split: [file]}
    for other, names in _NAMES.items():
        for name in names if other != split else ():
            sibling = file.with_name(re.sub(_pattern(_NAMES[split]), name, file.stem) + file.suffix)
            if sibling != file and sibling.is_file():
                found.setdefault(other, [sibling])
    return found


def _mentions(stem: str, names: tuple[str, ...]) -> bool:
    return re.search(_pattern(names), stem) is not None


def _pattern(names: tuple[str, ...]) -> str:
    return rf"(?<![a-zA-Z])(?:{'|'.join(names)})(?![a-zA-Z])"


def _list(files: list[Path]) -> str:
    return ", ".join(file.name for file in files[:8])
