"""Files of a dataset's splits: a file, a directory of them, or ``ROOT/rlp_datasets/processed/NAME``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.errors import did_you_mean
from grpo_train.tasks.shared.base import Split, TaskError
from grpo_train.tasks.shared.data_rows import SUFFIXES, name_parts

OLDER_LAYOUT = Path("rlp_datasets/processed")
"""Directory below the root in which an older trainer kept its datasets."""
NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
"""What datasets call their splits."""
SHARD = r"[-_.]\d+(?:-of-(?P<total>\d+))?"
"""How the name of a shard ends: train-00000-of-00002, part-0."""
FILES = f"a {', '.join(SUFFIXES)} file, a directory with train.jsonl and test.jsonl, or hf:OWNER/NAME"


def locate(path: str, root: Path | None = None) -> Path:
    """The absolute file or directory of ``task.path``; a name that does not exist is looked up in the older layout.

    Raises TaskError.
    """
    if path.startswith("hf:"):
        raise TaskError(f"task.path: '{path}': this task reads files; use task.name data for other datasets of the hub")
    given = Path(path).expanduser()
    older = resolve_root(root) / OLDER_LAYOUT / path
    for candidate in (given, older):
        if candidate.exists():
            return candidate.absolute()
    elsewhere = "" if given.is_absolute() else f", and neither does {older}"
    raise TaskError(f"task.path: '{path}' does not exist{elsewhere}; set it to {FILES}")


def split_files(path: Path) -> dict[Split, list[Path]]:
    """The files of each split; an undivided dataset is all "train".

    - A directory has train.jsonl and test.jsonl (or NAME_train.jsonl, the shards train-00000-of-00002.jsonl, or
      directories train/ and test/ with any *.jsonl in them) and optionally validation.jsonl; or a single *.jsonl file,
      or the shards of one, with all rows. The same goes for other kinds of files, and for a directory data/ inside.
    - A file with train or test in its name brings in the file beside it that has the other word instead; a test file
      alone is a test split without a train split.

    Raises TaskError where there is no file.
    """
    if path.is_file():
        return _with_siblings(path)
    folders = [path, *([path / "data"] if (path / "data").is_dir() else [])]
    first, *others = SUFFIXES
    for kinds in ([first], others):  # a directory with JSONL files is read as before there were other kinds
        for find in (_splits_in, _undivided):
            found: dict[Split, list[Path]] = {}
            for suffix, folder in product(kinds, folders):
                if find is _splits_in or not found:
                    found = {**find(folder, suffix), **found}
            if found:
                return found
    raise TaskError(f"task.path: '{path}' has no train.jsonl and no test.jsonl, found {_others_in(path)}")


def mapped_files(path: Path, splits: Mapping[Split, str]) -> dict[Split, list[Path]]:
    """The files of ``task.splits``: for each split a file of the directory ``path`` (or beside the file ``path``), a
    directory in it, a pattern such as ``part-*.csv``, or the name of a file or its shards without the ending.

    Raises TaskError.
    """
    folder = path if path.is_dir() else path.parent
    return {split: _files_named(folder, name, split) for split, name in splits.items()}


def _files_named(folder: Path, name: str, split: str) -> list[Path]:
    if (folder / name).is_file():
        return [folder / name]
    for suffix in SUFFIXES:
        for pattern in [name] if "*" in name else [f"{name}/*", f"{name}.*", f"{name}-*-of-*", f"data/{name}-*-of-*"]:
            files = _files(folder, suffix, pattern)
            if pattern == f"{name}.*":
                files = [file for file in files if name_parts(file)[0] == name]
            if files:
                _check_complete(files)
                return files
    names = [file.name for file in sorted(folder.iterdir()) if name_parts(file)[1] or file.is_dir()]
    raise TaskError(f"task.splits: {split}: no file '{name}' in {folder}; {did_you_mean(name, names, 'it has')}")


def _files(folder: Path, suffix: str, pattern: str = "*") -> list[Path]:
    """The files of a kind in a directory."""
    return sorted(file for file in folder.glob(pattern) if name_parts(file)[1] == suffix)


def _splits_in(folder: Path, suffix: str) -> dict[Split, list[Path]]:
    """The files of one kind in a directory, by split; empty where no name says one."""
    found: dict[Split, list[Path]] = {}
    files = {file: name_parts(file)[0].lower() for file in _files(folder, suffix)}
    for split, names in NAMES.items():
        words = "|".join(names)
        inside = [file for name in names for file in _files(folder / name, suffix)]
        exact = [file for file, stem in files.items() if stem in names]
        ending = [file for file, stem in files.items() if re.search(rf"[_.-](?:{words})$", stem)]
        shards = [file for file, stem in files.items() if re.fullmatch(rf"(?:.*[_.-])?(?:{words}){SHARD}", stem)]
        if chosen := exact[:1] or inside or ending or shards:
            if chosen is ending and len(ending) > 1:
                raise TaskError(f"task.path: '{folder}' has several {split} files ({_list(ending)}); set it to one")
            _check_complete(chosen)
            found[split] = chosen
    return found


def _undivided(folder: Path, suffix: str) -> dict[Split, list[Path]]:
    """The only file of a kind in a directory, or the shards of one; empty where there are several."""
    files = _files(folder, suffix)
    if len(files) == 1:
        return _with_siblings(files[0])
    return {"train": files} if _are_shards(files) else {}


def _check_complete(files: list[Path]) -> None:
    """Raise TaskError where shards that are numbered "-of-N" are missing."""
    for file in files:
        match = re.search(rf"^(?P<name>.*?){SHARD}$", name_parts(file)[0])
        if match and match["total"]:
            beside = [
                other for other in files if re.match(rf"{re.escape(match['name'])}.*{match['total']}", other.name)
            ]
            if len(beside) < int(match["total"]):
                raise TaskError(
                    f"task.path: '{file.parent}' has {len(beside)} of {int(match['total'])} shards of {match['name']} "
                    f"({_list(beside)}); copy the others there"
                )


def _are_shards(files: list[Path]) -> bool:
    """Whether the names of all files differ in a number alone."""
    stems = [name_parts(file)[0] for file in files]
    names = {re.sub(rf"{SHARD}$", "", stem) if re.search(rf"{SHARD}$", stem) else None for stem in stems}
    if len(names) == 1 and None not in names:
        _check_complete(files)
        return True
    return False


def _others_in(path: Path) -> str:
    """The data files of a directory without splits, with what to do."""
    for suffix in SUFFIXES:
        if files := _files(path, suffix):
            return f"{_list(files)}; name the splits: task.splits: {{train: {files[0].name}, test: {files[-1].name}}}"
    arrow = any(path.rglob("*.arrow"))
    return "no *.jsonl" + ("; convert its .arrow files to JSONL first" if arrow else "")


def _with_siblings(file: Path) -> dict[Split, list[Path]]:
    stem = name_parts(file)[0]
    split = next((split for split, names in NAMES.items() if re.search(_pattern(names), stem)), None)
    if split is None:
        return {"train": [file]}
    found: dict[Split, list[Path]] = {split: [file]}
    for other, names in NAMES.items():
        for name in names if other != split else ():
            sibling = file.with_name(re.sub(_pattern(NAMES[split]), name, stem) + file.name[len(stem) :])
            for given in [each for each in file.parent.iterdir() if each.name.lower() == sibling.name.lower()]:
                if given != file and given.is_file():
                    found.setdefault(other, [given])
    return found


def _pattern(names: tuple[str, ...]) -> str:
    return rf"(?i)(?<![a-zA-Z])(?:{'|'.join(names)})(?![a-zA-Z])"


def _list(files: list[Path]) -> str:
    return ", ".join(file.name for file in files[:8])
