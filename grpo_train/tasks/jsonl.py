"""Your own problems from a JSONL file, graded as a number, a text, a LaTeX answer, or by your own function.

``task.path`` is a file or a directory (see :mod:`grpo_train.tasks.shared.data_files`). ``task.prompt_field``,
``task.answer_field`` and ``task.template_field`` (a row's own template) name the fields of a row. ``task.grader`` names
the grader (see :mod:`grpo_train.tasks.shared.graders`).

Without a test file a tenth of the problems is held out by a hash of their text, so that adding or reordering rows does
not change what is held out. Training problems that are also test problems, word for word, are dropped.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.rewards.math_answer import last_boxed
from grpo_train.rewards.types import Attempt, NoSplitError, Problem, Split, TaskError, Verdict
from grpo_train.tasks.shared.base import TaskDefaults, TaskKind
from grpo_train.tasks.shared.data_files import locate, rows_of, split_files
from grpo_train.tasks.shared.graders import grader_of
from grpo_train.tasks.shared.overlap import normal_text
from grpo_train.tasks.shared.template import TEMPLATE_OPTIONS, ask, check_template

HELD_OUT = 10
"""One problem in 10 is held out if there is no test file."""


@dataclass(frozen=True)
class Fields:
    """Names of the fields of a row."""

    prompt: str
    answer: tuple[str, ...]
    """Alternatives; the first that a row has is used."""
    template: str
    boxed: tuple[str, ...] = ()
    r"""Answer fields with a whole solution, whose last ``\boxed{}`` is the answer."""


@dataclass(frozen=True)
class Row:
    """A validated row."""

    question: str
    answer: str
    template: str | None
    record: dict[str, Any]


@dataclass(frozen=True)
class Data:
    """The rows of each split."""

    splits: dict[Split, list[Row]]
    notes: tuple[str, ...]
    """Remarks for the user: rows held out, rows dropped."""


def load(config: schema.Task) -> JsonlTask:
    """The task on ``config.path``; rows are read when first used. Raises TaskError."""
    fields = Fields(config.prompt_field, (config.answer_field,), config.template_field)
    return load_rows(config, "jsonl", fields, config.grader)


def load_rows(config: schema.Task, name: str, fields: Fields, grader_name: str) -> JsonlTask:
    """A JSONL task under another name, with its own fields and grader. Raises TaskError."""
    if config.path is None:
        raise TaskError(f"task.path: {name} needs a JSONL file, or a directory with train.jsonl and test.jsonl")
    path = locate(config.path)
    grader = grader_of(grader_name)
    check_template(config)
    label = name + "_" + re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem if path.is_file() else path.name)
    return JsonlTask(
        name=name, label=label, slow=grader.slow, config=config, path=path, fields=fields, grader=grader_name
    )


@dataclass(frozen=True)
class JsonlTask(TaskDefaults):
    """Problems from files, read when first used."""

    path: Path = field(default_factory=Path)
    fields: Fields = field(default_factory=lambda: Fields("prompt", ("answer",), "template"))
    grader: str = "number"

    @property
    def data(self) -> Data:
        """All rows. Raises TaskError."""
        return _data_of(self.path, self.fields, self.grader, self.config.template)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.data.notes

    def rows(self, split: Split) -> list[Row]:
        rows = self.data.splits.get(split)
        if rows is None:
            known = ", ".join(self.data.splits)
            raise NoSplitError(f"task.path: '{self.path}' has no {split} split; it has {known}")
        return rows

    def problem(self, split: Split, index: int) -> Problem:
        row = self.rows(split)[index]
        return ask(self.config, index, row.question, row.answer, template=row.template, data=row.record)

    def judge(self, attempt: Attempt) -> Verdict:
        return grader_of(self.grader).judge(attempt)


@lru_cache(maxsize=4)
def _data_of(path: Path, fields: Fields, grader: str, template: str | None) -> Data:
    files = split_files(path)
    splits = {split: [row for file in listed for row in _read(file, fields, grader)] for split, listed in files.items()}
    notes = []
    if "test" not in splits:
        splits["train"], splits["test"] = _hold_out(splits.get("train", []))
        held_out, total = len(splits["test"]), len(splits["test"]) + len(splits["train"])
        notes.append(f"no test file: {held_out} of {total} problems are held out, by a hash of their text")
        if not splits["train"]:
            raise TaskError(f"task.path: '{path}' has no test file and too few problems to hold any out")
    held_out_texts = {normal_text(row.question) for split in ("test", "validation") for row in splits.get(split, [])}
    train = splits.get("train", [])
    clean = [row for row in train if normal_text(row.question) not in held_out_texts]
    if len(clean) < len(train):
        splits["train"] = clean
        notes.append(f"{len(train) - len(clean)} training problems dropped: identical to test problems")
        if not clean:
            raise TaskError(f"task.path: every training problem of '{path}' is also a test problem")
    return Data(splits, tuple(notes))


def _hold_out(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """(train, test). If no hash is below the bound, the problem with the lowest hash is held out."""

    def rank(row: Row) -> int:
        return int.from_bytes(hashlib.sha256(normal_text(row.question).encode()).digest()[:8], "big")

    bound = 2**64 // HELD_OUT
    ranks = [rank(row) for row in rows]
    if rows and not any(one < bound for one in ranks):
        bound = min(ranks) + 1
    test = [row for row, one in zip(rows, ranks, strict=True) if one < bound]
    return [row for row, one in zip(rows, ranks, strict=True) if one >= bound], test


def _read(file: Path, fields: Fields, grader: str) -> list[Row]:
    rows = [_row_of(location, record, fields, grader) for location, record in rows_of(file)]
    if not rows:
        raise TaskError(f"task.path: '{file}' has no rows")
    return rows


def _row_of(location: str, record: dict[str, Any], fields: Fields, grader: str) -> Row:
    question = record.get(fields.prompt)
    if not isinstance(question, str) or not question.strip():
        raise TaskError(f"{location}: '{fields.prompt}' {_defect(record, fields.prompt)} (task.prompt_field)")
    answer_field = next((name for name in fields.answer if name in record), None)
    if answer_field is None:
        names = " or ".join(f"'{name}'" for name in fields.answer)
        found = ", ".join(list(record)[:8])
        raise TaskError(f"{location}: {names} is missing (task.answer_field); the row has {found}")
    try:
        if answer_field in fields.boxed and last_boxed(str(record[answer_field])) is None:
            raise ValueError(r"has no \boxed{} with the answer")
        answer = grader_of(grader).gold(record[answer_field])
    except ValueError as error:
        raise TaskError(f"{location}: '{answer_field}' {error} (task.grader: {grader})") from error
    template = record.get(fields.template)
    if template is not None and not (isinstance(template, str) and template.strip()):
        raise TaskError(f"{location}: '{fields.template}' {_defect(record, fields.template)} (task.template_field)")
    try:
        ask(schema.Task(), 0, "", "", template=template)
    except TaskError as error:
        message = str(error).removeprefix("task.template: ")
        raise TaskError(f"{location}: '{fields.template}': {message}") from error
    return Row(question.strip(), answer, template, record)


def _defect(record: dict[str, Any], name: str) -> str:
    if name not in record:
        return "is missing"
    return "is empty" if isinstance(record[name], str) else f"is {type(record[name]).__name__}, expected text"


TASK = TaskKind(
    "jsonl",
    "Your own problems from a JSONL file (task.path)",
    ("path", "prompt_field", "answer_field", "template_field", "grader", *TEMPLATE_OPTIONS),
    load,
)
