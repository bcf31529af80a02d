"""A user's own data: rows of every split, wrong rows refused or dropped, a held-out split where the data has none."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.tasks.shared.base import Split, TaskError
from grpo_train.tasks.shared.data_fields import DataRow, FieldNames, row_of
from grpo_train.tasks.shared.data_files import NAMES, locate, mapped_files, split_files
from grpo_train.tasks.shared.data_rows import SUFFIXES, Located, name_parts, read_rows
from grpo_train.tasks.shared.graders import grader_of
from grpo_train.tasks.shared.hub_data import HubDataset, OpenDataset, is_hub_path, open_dataset, parse_hub_path
from grpo_train.tasks.shared.overlap import normal_text

HELD_OUT = 10
"""One problem in 10 is held out if there is no test split."""
NAMED = 3
"""Number of further wrong rows that an error names."""


@dataclass(frozen=True)
class DataSource:
    """Where rows come from, and how they are read. Hashable: what was read is kept."""

    path: Path | HubDataset
    """File or directory, or a dataset of the hub."""
    splits: tuple[tuple[Split, str], ...] = ()
    """``task.splits``."""
    delimiter: str = ","

    def __str__(self) -> str:
        return str(self.path)

    @property
    def label(self) -> str:
        """The name of the data in evaluation directories."""
        if isinstance(self.path, HubDataset):
            return self.path.name
        stem, kind = name_parts(self.path)
        return self.path.name if self.path.is_dir() else stem if kind else self.path.stem

    def parts(self, fields: FieldNames) -> dict[Split, list[tuple[str, Iterator[Located]]]]:
        """The parts of each split (its files) by name, with their rows. Raises TaskError."""
        chosen = dict(self.splits)
        if isinstance(self.path, HubDataset):
            opened = open_dataset(self.path)
            names = chosen or _splits_of(opened)
            return {split: [(f"{opened.hub} {name}", opened.rows(name))] for split, name in names.items()}
        files = mapped_files(self.path, chosen) if chosen else split_files(self.path)
        return {
            split: [(f"'{file}'", read_rows(file, fields.names, self.delimiter)) for file in listed]
            for split, listed in files.items()
        }


@dataclass(frozen=True)
class Data:
    """The rows of each split."""

    splits: dict[Split, list[DataRow]]
    remarks: tuple[str, ...]
    """For the user: names of the fields, problems held out, copies of test problems dropped."""
    wrong: tuple[str, ...] = ()
    """Why each of the rows that were dropped cannot be used."""
    total: int = 0
    """Number of rows, with the wrong ones."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything that a run says at its start."""
        if not self.wrong:
            return self.remarks
        return (f"{len(self.wrong)} of {self.total} rows dropped; the first: {self.wrong[0]}", *self.remarks)


@dataclass
class _RowReader:
    """Reads one dataset and collects its wrong rows."""

    fields: FieldNames
    config: schema.TaskConfig
    grader: str
    total: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """Location and error of each wrong row."""
    mapped: dict[str, None] = field(default_factory=dict)
    """Notes on fields that are read by the names other libraries give them."""

    def rows(self, name: str, part: Iterator[Located]) -> list[DataRow]:
        """The rows of a part that can be used. Raises TaskError for one without rows."""
        found, before = [], self.total
        fields: FieldNames | None = None
        for location, record in part:
            self.total += 1
            try:
                if isinstance(record, TaskError):
                    raise record
                fields = fields or self._fields_of(record)
                found.append(row_of(location, record, fields, self.config, self.grader))
            except TaskError as error:
                self.wrong.append((location, str(error)))
        if self.total == before:
            raise TaskError(f"task.path: {name} has no rows")
        return found

    def _fields_of(self, record: dict[str, Any]) -> FieldNames:
        """The fields of a file, by its first row."""
        fields = self.fields.of(record, needs_gold=grader_of(self.grader).needs_gold)
        if fields.answer != self.fields.answer:
            note = f"'{fields.prompt[0]}' is read as the prompt, '{fields.answer[0]}' as the gold answer"
            self.mapped[f"{note} (task.prompt_field, task.answer_field)"] = None
        return fields

    def refusal(self) -> TaskError:
        """The error for wrong rows: the first one, where others are, their number, and what to do."""
        location, first = self.wrong[0]
        file = location.rpartition(", ")[0]
        others = [place.removeprefix(f"{file}, ") for place, _ in self.wrong[1 : 1 + NAMED]]
        if len(self.wrong) == self.total and self.total > 1:
            return TaskError(f"{first}; all {self.total} rows are wrong")
        if not others:
            return TaskError(f"{first}; 1 of {self.total} rows is wrong: fix it, or set task.wrong_rows: drop")
        more = ", …" if len(self.wrong) > 1 + NAMED else ""
        return TaskError(
            f"{first}; {len(self.wrong)} of {self.total} rows are wrong (also {', '.join(others)}{more}): fix them, or "
            "set task.wrong_rows: drop"
        )


def source_of(config: schema.TaskConfig, name: str) -> DataSource:
    """The source of ``task.path``. Raises TaskError where it is not set or does not exist."""
    if config.path is None:
        kinds = ", ".join(SUFFIXES)
        raise TaskError(f"task.path: {name} needs a file ({kinds}), a directory of such files, or hf:OWNER/NAME")
    path = parse_hub_path(config.path) if is_hub_path(config.path) else locate(config.path)
    return DataSource(path, tuple(config.splits.items()), config.delimiter)


def _splits_of(opened: OpenDataset) -> dict[Split, str]:
    """The splits of a dataset of the hub by their usual names; an undivided dataset is all "train"."""
    found: dict[Split, str] = {}
    for split, names in NAMES.items():
        if known := [name for name in names if name in opened.splits]:
            found[split] = known[0]
    if found:
        return found
    if len(opened.splits) == 1:
        return {"train": opened.splits[0]}
    listed = ", ".join(opened.splits)
    raise TaskError(
        f"task.path: {opened.hub} has the splits {listed}: set task.splits, as in {{train: {opened.splits[0]}}}"
    )


def read_data(source: DataSource, fields: FieldNames, config: schema.TaskConfig, grader: str) -> Data:
    """All rows of a source; of the config only the keys that the rows depend on count. Raises TaskError."""
    keys = (config.template, config.system_prompt, config.wrong_rows, config.split_seed)
    return _read(source, fields, grader, *keys)


@lru_cache(maxsize=4)
def _read(
    source: DataSource,
    fields: FieldNames,
    grader: str,
    template: str | None,
    system: str | None,
    wrong_rows: str,
    seed: int,
) -> Data:
    reader = _RowReader(fields, schema.TaskConfig(template=template, system_prompt=system), grader)
    splits = {
        split: [row for name, part in parts for row in reader.rows(name, part)]
        for split, parts in source.parts(fields).items()
    }
    if reader.wrong and (wrong_rows == "refuse" or len(reader.wrong) == reader.total):
        raise reader.refusal()
    notes = list(reader.mapped)
    if "test" not in splits:
        splits["train"], splits["test"] = _hold_out(splits.get("train", []), seed)
        held_out, total = len(splits["test"]), len(splits["test"]) + len(splits["train"])
        other = "; task.splits can name the validation split instead" if "validation" in splits else ""
        seeded = f" (task.split_seed {seed})" if seed else ""
        what = "split" if isinstance(source.path, HubDataset) else "file"
        notes.append(
            f"no test {what}: {held_out} of {total} problems are held out, by a hash of their text{seeded}{other}"
        )
        if not splits["train"]:
            wrong = (
                f"; {len(reader.wrong)} of {reader.total} rows are wrong: {reader.wrong[0][1]}" if reader.wrong else ""
            )
            raise TaskError(f"task.path: '{source}' has no test {what} and too few problems to hold any out{wrong}")
    held_out_texts = {normal_text(row.question) for split in ("test", "validation") for row in splits.get(split, [])}
    train = splits.get("train", [])
    clean = [row for row in train if normal_text(row.question) not in held_out_texts]
    if len(clean) < len(train):
        splits["train"] = clean
        notes.append(f"{len(train) - len(clean)} training problems dropped: identical to test problems")
        if not clean:
            raise TaskError(f"task.path: every training problem of '{source}' is also a test problem")
    return Data(splits, tuple(notes), tuple(error for _, error in reader.wrong), reader.total)


def _hold_out(rows: list[DataRow], seed: int) -> tuple[list[DataRow], list[DataRow]]:
    """(train, test). If no hash is below the bound, the problem with the lowest hash is held out."""
    prefix = f"{seed}\n" if seed else ""  # a space in normal text: no problem's text begins so

    def rank(row: DataRow) -> int:
        # Not normal_text: a split must stay what it was when runs were trained on it.
        text = " ".join(unicodedata.normalize("NFKC", row.question).casefold().split())
        return int.from_bytes(hashlib.sha256((prefix + text).encode(errors="surrogatepass")).digest()[:8], "big")

    bound = 2**64 // HELD_OUT
    ranks = [rank(row) for row in rows]
    if rows and not any(one < bound for one in ranks):
        bound = min(ranks) + 1
    test = [row for row, one in zip(rows, ranks, strict=True) if one < bound]
    return [row for row, one in zip(rows, ranks, strict=True) if one >= bound], test
