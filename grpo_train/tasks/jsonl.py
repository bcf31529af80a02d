"""jsonl: problems of your own from a JSONL file, graded as a number, a text, a LaTeX answer, or by your own function.

``task.path`` is a file or a directory (see :mod:`grpo_train.tasks.shared.data_files`), ``task.prompt_field`` and
``task.answer_field`` name what to read of each row, ``task.template_field`` a row's own template. ``task.grader`` is

- ``number``: exact, see :mod:`grpo_train.rewards.number`; a gold answer may be a JSON number or end in ``#### N``;
- ``text``: the same text, whatever its case and white space;
- ``math``: LaTeX through math-verify, see :mod:`grpo_train.rewards.math_answer` (``pip install 'grpo-tui[math]'``);
- ``module:function`` or ``file.py:function``, called with an :class:`~grpo_train.tasks.shared.base.Attempt` whose
  ``problem.data`` is the row, returning a :class:`~grpo_train.tasks.shared.base.Verdict`, or just whether it is right.

Where there is no test file, a tenth of the problems is held out, chosen by a hash of their text: rows may be added or
reordered, and what was held out stays so. A training problem that is also a test problem, word for word, is dropped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.rewards.accuracy import judge_number
from grpo_train.rewards.math_answer import judge_math, last_boxed
from grpo_train.rewards.spoken_number import parse_number
from grpo_train.rewards.tags import strict_answer
from grpo_train.rewards.text import judge_text
from grpo_train.rewards.user_code import load_function
from grpo_train.tasks.shared.base import Attempt, Problem, Split, TaskDefaults, TaskError, Verdict, limited
from grpo_train.tasks.shared.data_files import locate, rows_of, split_files
from grpo_train.tasks.shared.overlap import normal_text
from grpo_train.tasks.shared.template import TEMPLATE_OPTIONS, ask

LABEL = "jsonl"
OPTIONS = ("path", "prompt_field", "answer_field", "template_field", "grader", *TEMPLATE_OPTIONS)
HELD_OUT = 10
"""One problem in so many is held out where there is no test file."""


@dataclass(frozen=True)
class Fields:
    """What to read of a row."""

    prompt: str
    answer: tuple[str, ...]
    """The first of them that a row has."""
    template: str
    boxed: tuple[str, ...] = ()
    r"""Of the answer's fields those that hold a solution, whose last ``\boxed{}`` is the answer."""


@dataclass(frozen=True)
class Row:
    """A row that has been checked."""

    place: str
    """FILE, line N."""
    question: str
    answer: str
    template: str | None
    record: dict[str, Any]


@dataclass(frozen=True)
class Data:
    """The rows of each split."""

    splits: dict[Split, list[Row]]
    notes: tuple[str, ...]
    """What was done to them, for people: what was held out, what was dropped."""
    dropped: int
    """Training rows left out because they are test or validation rows, too."""


@dataclass(frozen=True)
class Grader:
    """How an answer is compared."""

    gold: Callable[[Any], str]
    """The gold answer as text from a row's field. Raises ValueError with what is wrong."""
    judge: Callable[[Attempt], Verdict]
    slow: bool = False


def load(config: schema.Task) -> JsonlTask:
    """The task on ``config.path``. Raises TaskError; rows are read when first asked for."""
    fields = Fields(config.prompt_field, (config.answer_field,), config.template_field)
    return load_rows(config, "jsonl", fields, config.grader)


def load_rows(config: schema.Task, name: str, fields: Fields, grader_name: str) -> JsonlTask:
    """A task of rows under another name, with fields and grader of its own. Raises TaskError."""
    if config.path is None:
        raise TaskError(f"task.path: {name} needs a JSONL file, or a directory with train.jsonl and test.jsonl")
    path = locate(config.path)
    grader = grader_of(grader_name)
    ask(config, 0, "", "")  # a template that is none is told here
    label = name + "_" + re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem if path.is_file() else path.name)
    return JsonlTask(
        name=name, label=label, slow=grader.slow, config=config, path=path, fields=fields, grader=grader_name
    )


@dataclass(frozen=True)
class JsonlTask(TaskDefaults):
    """Problems from files; they are read when first asked for."""

    config: schema.Task = field(default_factory=schema.Task)
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

    def size(self, split: Split) -> int:
        return limited(len(self._rows(split)), split, self.config.limit)

    def problem(self, split: Split, index: int) -> Problem:
        row = self._rows(split)[index]
        return ask(self.config, index, row.question, row.answer, template=row.template, data=row.record)

    def judge(self, attempt: Attempt) -> Verdict:
        return grader_of(self.grader).judge(attempt)

    def _rows(self, split: Split) -> list[Row]:
        rows = self.data.splits.get(split)
        if rows is None:
            has = ", ".join(self.data.splits)
            raise TaskError(f"task.path: '{self.path}' has no {split} split; it has {has}")
        return rows


@lru_cache(maxsize=8)
def grader_of(name: str) -> Grader:
    """The grader that ``task.grader`` names. Raises TaskError."""
    if ":" in name:
        function = load_function(name, "task.grader")
        return Grader(_any_gold, lambda attempt: _judge_own(name, function, attempt))
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        raise TaskError("task.grader: math needs math-verify, which is not installed:  pip install 'grpo-tui[math]'")
    known = {
        "number": Grader(_number_gold, judge_number),
        "text": Grader(_text_gold, _judge_text),
        "math": Grader(_math_gold, judge_math, slow=True),
    }
    if name not in known:
        raise TaskError(f"task.grader: '{name}' is none of {', '.join(known)}, nor your own module:function")
    return known[name]


@lru_cache(maxsize=4)
def _data_of(path: Path, fields: Fields, grader: str, template: str | None) -> Data:
    files = split_files(path)
    splits = {split: [row for file in listed for row in _read(file, fields, grader)] for split, listed in files.items()}
    notes = []
    if "test" not in splits:
        splits["train"], splits["test"] = _hold_out(splits.get("train", []))
        held_out, all_of_them = len(splits["test"]), len(splits["test"]) + len(splits["train"])
        notes.append(f"no test file: {held_out} of {all_of_them} problems are held out, by a hash of their text")
        if not splits["train"]:
            raise TaskError(f"task.path: '{path}' has no test file and too few problems to hold any out")
    kept_out = {normal_text(row.question) for split in ("test", "validation") for row in splits.get(split, [])}
    train = splits.get("train", [])
    clean = [row for row in train if normal_text(row.question) not in kept_out]
    if len(clean) < len(train):
        splits["train"] = clean
        notes.append(f"{len(train) - len(clean)} training problems are dropped: they are test problems, word for word")
        if not clean:
            raise TaskError(f"task.path: every training problem of '{path}' is a test problem, too")
    return Data(splits, tuple(notes), len(train) - len(clean))


def _hold_out(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """(train, test). The test problems are those of the lowest hashes where chance holds out none or all of a few."""

    def rank(row: Row) -> int:
        return int.from_bytes(hashlib.sha256(normal_text(row.question).encode()).digest()[:8], "big")

    bound = 2**64 // HELD_OUT
    ranks = [rank(row) for row in rows]
    if rows and not any(one < bound for one in ranks):
        bound = min(ranks) + 1
    test = [row for row, one in zip(rows, ranks, strict=True) if one < bound]
    return [row for row, one in zip(rows, ranks, strict=True) if one >= bound], test


def _read(file: Path, fields: Fields, grader: str) -> list[Row]:
    rows = [_row_of(place, record, fields, grader) for place, record in rows_of(file)]
    if not rows:
        raise TaskError(f"task.path: '{file}' has no rows")
    return rows


def _row_of(place: str, record: dict[str, Any], fields: Fields, grader: str) -> Row:
    question = record.get(fields.prompt)
    if not isinstance(question, str) or not question.strip():
        raise TaskError(f"{place}: '{fields.prompt}' {_what(record, fields.prompt)} (task.prompt_field)")
    answer_field = next((name for name in fields.answer if name in record), None)
    if answer_field is None:
        names = " or ".join(f"'{name}'" for name in fields.answer)
        has = ", ".join(list(record)[:8])
        raise TaskError(f"{place}: {names} is missing (task.answer_field); the row has {has}")
    try:
        if answer_field in fields.boxed and last_boxed(str(record[answer_field])) is None:
            raise ValueError(r"has no \boxed{} with the answer")
        answer = grader_of(grader).gold(record[answer_field])
    except ValueError as error:
        raise TaskError(f"{place}: '{answer_field}' {error} (task.grader: {grader})") from error
    template = record.get(fields.template)
    if template is not None and not (isinstance(template, str) and template.strip()):
        raise TaskError(f"{place}: '{fields.template}' {_what(record, fields.template)} (task.template_field)")
    try:
        ask(schema.Task(), 0, "", "", template=template)
    except TaskError as error:
        message = str(error).removeprefix("task.template: ")
        raise TaskError(f"{place}: '{fields.template}': {message}") from error
    return Row(place, question.strip(), answer, template, record)


def _what(record: dict[str, Any], name: str) -> str:
    if name not in record:
        return "is missing"
    return "is empty" if isinstance(record[name], str) else f"is a {type(record[name]).__name__}, not a text"


def _scalar(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"is a {type(value).__name__}, neither a text nor a number")
    if not str(value).strip():
        raise ValueError("is empty")
    return str(value).strip()


def _number_gold(value: Any) -> str:
    text = _scalar(value).rpartition("####")[2].strip()
    if isinstance(parse_number(text), str):
        raise ValueError(f"must be one number, or end in '#### N', found {text[-60:]!r}")
    return text


def _text_gold(value: Any) -> str:
    return _scalar(value)


def _math_gold(value: Any) -> str:
    text = _scalar(value)
    return last_boxed(text) or text.rpartition("####")[2].strip()


def _any_gold(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _judge_text(attempt: Attempt) -> Verdict:
    gold = normal_text(attempt.problem.answer)
    return judge_text(attempt, lambda answer: normal_text(answer) == gold)


def _judge_own(name: str, function: Callable[[Attempt], Any], attempt: Attempt) -> Verdict:
    """The verdict of a user's function. What it raises for a completion is a verdict, too, counted by its reason; what
    it returns that is none is an error of the function."""
    answer, _ = strict_answer(attempt.completion)
    try:
        verdict = function(attempt)
    except (Exception, SystemExit) as error:  # whatever a user's code does with what a model wrote
        facts = {"grader_error": f"{type(error).__name__}: {error}"[:300]}
        failed = {"grader/failed": 1.0}
        return Verdict(False, answer is not None, "grader_error", answer, metrics=failed, facts=facts)
    if isinstance(verdict, Verdict):
        return verdict
    try:
        known = verdict in (True, False)  # 1.0 and numpy's bools, too
    except Exception:  # an array of several
        known = False
    if not known:
        raise TaskError(f"task.grader: '{name}' returned {verdict!r}; return a Verdict, or True or False")
    right = bool(verdict) and not attempt.truncated
    reason = "truncated" if attempt.truncated else "ok" if right else "wrong"
    return Verdict(right, answer is not None and not attempt.truncated, reason, answer, metrics={"grader/failed": 0.0})
