"""mbpp: small Python functions, judged by tests of which the model sees some (Austin et al. 2021, arXiv 2108.07732).

Rows come from ``task.path`` (the official mbpp.jsonl or sanitized-mbpp.json, or a directory with one of them), else
from the file that the variable MBPP_DATASET_PATH names, else from the hub's google-research-datasets/mbpp. Splits are
by ``task_id``, as published: 1-10 are examples for prompts, 11-510 test, 511-600 validation, 601-974 train; training
problems whose text is also in test or validation are left out (602, 704 and 872 of the full file).

Templates, by ``task.template``:

- ``paper`` (the default; lm-eval's ``mbpp``): "You are an expert Python programmer, …", the tests, ``[BEGIN]``; 3-shot
  as published is ``task.few_shot: 3`` and ``task.visible_tests: 3``;
- ``docstring`` (bigcode's, evalplus's for base models): the text and one test in a docstring;
- ``chat`` (evalplus's for Instruct models): the same in a fence, the answer begun with its words and a fence;
- ``r1``, ``question`` or a text of your own with {question} in it.

A program is right when it passes every assert of ``test_list``, as published, whether shown or held out. The task's
``score`` is the share of the held-out asserts it passes: what hard-codes the shown ones gets nothing from either.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.sandbox import UnsupportedTest, run_tests, split_tests
from grpo_train.tasks.shared.base import Attempt, Problem, Split, TaskDefaults, TaskError, Verdict, limited
from grpo_train.tasks.shared.code import Frame, denials, make_frame, program_of, suspicious
from grpo_train.tasks.shared.data_files import locate, rows_of
from grpo_train.tasks.shared.overlap import normal_text
from grpo_train.tasks.shared.template import TEMPLATE_OPTIONS

LABEL = "mbpp"
OPTIONS = ("path", "few_shot", "visible_tests", *TEMPLATE_OPTIONS)
PATH_VARIABLE = "MBPP_DATASET_PATH"
FILES = ("mbpp.jsonl", "sanitized-mbpp.json")
EXAMPLES = range(1, 11)
"""Task ids of the problems that are shown in prompts."""
RANGES: dict[Split, range] = {
    "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975),
}  # fmt: skip
"""Task ids of the splits, as published."""

PAPER = "You are an expert Python programmer, and here is your task: {question}\n[BEGIN]\n"
DOCSTRING = '"""\n{question}\n"""\n'
CHAT = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
    '```\n"""\n{question}\n"""\n```\n'
)
PREFILL = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:\n"
    "```python\n"
)
"""evalplus, ``provider/utility.py`` and ``codegen.py``."""


@dataclass(frozen=True)
class Row:
    """One task of the dataset, line ends as ``\\n``."""

    task_id: int
    text: str
    code: str
    """The reference solution."""
    tests: tuple[str, ...]
    setup: str
    """Runs after the solution: two tasks build objects of a class that the solution defines."""
    challenge: tuple[str, ...] = ()
    """More asserts, for 11 problems of the test split: never shown."""


def load(config: schema.Task) -> MbppTask:
    """The task; rows are read when first asked for. Raises TaskError for a path or template that is none."""
    shape = make_frame(config, {"paper": PAPER, "docstring": DOCSTRING}, default="paper", chat=CHAT, prefill=PREFILL)
    if config.few_shot and shape.template != PAPER:
        raise TaskError("task.few_shot: examples are in template paper: leave task.template out, or few_shot")
    place = _file(locate(config.path)) if config.path else _of_variable()
    return MbppTask(name="mbpp", label=LABEL, stop=shape.stop, slow=True, config=config, frame=shape, place=place)


@dataclass(frozen=True)
class MbppTask(TaskDefaults):
    """MBPP, full or sanitized."""

    eval_temperature: float = 0.2
    """What evaluations sample with unless they are told otherwise."""
    config: schema.Task = field(default_factory=schema.Task)
    sandbox: schema.Sandbox = field(default_factory=schema.Sandbox)
    """What a program may use; see :func:`~grpo_train.tasks.load_task`."""
    frame: Frame = field(default_factory=lambda: Frame(PAPER, ("[DONE]",), opened=True))
    place: Path | None = None
    """The file with the rows; None = the hub."""

    def size(self, split: Split) -> int:
        return limited(len(self._rows(split)), split, self.config.limit)

    def problem(self, split: Split, index: int) -> Problem:
        return self.problem_of(self._rows(split)[index], index)

    def problem_of(self, row: Row, index: int) -> Problem:
        """A row as a problem, of whatever split."""
        problem = self.frame.ask(self.config, index, self._ask(row), row.code, data=row)
        return replace(problem, prompt=self._examples + problem.prompt) if self._examples else problem

    def judge(self, attempt: Attempt) -> Verdict:
        row: Row = attempt.problem.data
        program = program_of(attempt.completion, self.frame, truncated=attempt.truncated)
        if program.source is None:
            reason = "truncated" if attempt.truncated else "no_code"
            return Verdict(False, False, reason, None, flexible=False, score=0.0)
        result = run_tests(
            program.source,
            [*row.tests, *row.challenge],
            setup=row.setup,
            cpu_seconds=self.sandbox.cpu_seconds,
            memory=self.sandbox.memory_mb << 20,
        )
        published, held_out = result.passed[: len(row.tests)], result.passed[self.config.visible_tests :]
        visible = result.passed[: self.config.visible_tests]
        passes = all(published)
        metrics = {"hacking/suspicious": float(bool(suspicious(program.source))), **denials(result.denials)}
        if visible and held_out:
            metrics["hacking/hardcoded"] = float(all(visible) and not all(held_out))
        if row.challenge:
            metrics["mbpp/challenge"] = float(all(result.passed[len(row.tests) :]))
        return Verdict(
            correct=passes and program.closed,
            formatted=program.closed,
            reason="truncated" if not program.closed else "ok" if passes else result.reason,
            answer=program.source,
            flexible=passes,
            score=float(program.closed) * _share(held_out or published),
            metrics=metrics,
            facts={
                "isolation": result.isolation,
                "passed": list(result.passed),
                "suspicious": suspicious(program.source),
            },
        )

    def _ask(self, row: Row) -> str:
        """The question: the text, and the tests that may be seen."""
        shown = "\n".join(row.tests[: self.config.visible_tests])
        if not shown:
            return f"{row.text}\nThe function's name is {_name(row)}."
        if self.frame.template in (DOCSTRING, "chat"):
            return f"{row.text}\n{shown}"
        return f"{row.text} Your code should pass these tests:\n\n{shown}"

    @cached_property
    def _examples(self) -> str:
        """Solved problems in front of every prompt, from task_id 2 on."""
        wanted = self.config.few_shot
        rows = [row for row in _rows(self.place) if 2 <= row.task_id <= 10][:wanted]
        if len(rows) < wanted:
            raise TaskError(
                f"task.few_shot: {wanted} examples were asked for, the data has {len(rows)} (its task_id 2 to 10)"
            )
        return "".join(PAPER.replace("{question}", self._ask(row)) + f"{row.code}\n[DONE]\n\n" for row in rows)

    def published(self) -> dict[str, list[Row]]:
        """All rows of the data by the published split, the examples for prompts and the leaks into training included.

        Raises TaskError.
        """
        rows = _rows(self.place)
        ranges: dict[str, range] = {"prompt": EXAMPLES, **{str(split): ids for split, ids in RANGES.items()}}
        return {split: found for split, ids in ranges.items() if (found := [r for r in rows if r.task_id in ids])}

    def _rows(self, split: Split) -> list[Row]:
        return splits(self.place)[split]


@lru_cache(maxsize=4)
def splits(place: Path | None) -> dict[Split, list[Row]]:
    """The splits of a file (None: of the hub), in the order of their ids, without leaks into training.

    Raises TaskError.
    """
    rows = _rows(place)
    found = {split: [row for row in rows if row.task_id in ids] for split, ids in RANGES.items()}
    held_out = {normal_text(row.text) for split in ("test", "validation") for row in found[split]}
    found["train"] = [row for row in found["train"] if normal_text(row.text) not in held_out]
    return found


def _share(passed: Sequence[bool]) -> float:
    return sum(passed) / len(passed)


def _name(row: Row) -> str:
    """The function that the tests call: what the reference solution defines and the first test mentions first."""
    defined = set(re.findall(r"^(?:def|class)\s+(\w+)", row.code, re.MULTILINE))
    called: list[str] = re.findall(r"\w+", row.tests[0])
    return next((name for name in called if name in defined), called[1])


@lru_cache(maxsize=4)
def _rows(place: Path | None) -> list[Row]:
    records = _records_of_hub() if place is None else _records_of_file(place)
    rows = sorted((row_of(record, where) for where, record in records), key=lambda row: row.task_id)
    if twice := [one.task_id for one, other in pairwise(rows) if one.task_id == other.task_id]:
        raise TaskError(f"{place}: task_id {twice[0]} is there twice")
    if not rows:
        raise TaskError(f"task.path: '{place}' has no rows")
    return rows


def _of_variable() -> Path | None:
    """The file that :data:`PATH_VARIABLE` names."""
    place = os.environ.get(PATH_VARIABLE)
    if not place:
        return None
    if not Path(place).expanduser().exists():
        raise TaskError(f"{PATH_VARIABLE}: '{place}' does not exist; give {' or '.join(FILES)} or their directory")
    return _file(Path(place).expanduser().absolute())


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in FILES:
        if (path / name).is_file():
            return path / name
    raise TaskError(f"task.path: '{path}' has neither of {', '.join(FILES)} in it")


def _records_of_file(path: Path) -> Iterable[tuple[str, Any]]:
    """Records with the words that name their places: of JSON lines, or of one JSON list (the sanitized file)."""
    if path.suffix != ".json":
        return rows_of(path)
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(f"task.path: cannot read '{path}': {error}") from error
    if not isinstance(records, list):
        raise TaskError(f"task.path: '{path}' holds no list of problems")
    return [(f"{path}, entry {number}", record) for number, record in enumerate(records, 1)]


def _records_of_hub() -> list[tuple[str, Any]]:
    try:
        from datasets import load_dataset  # a second's import, wanted only here

        parts = load_dataset("google-research-datasets/mbpp", "full")
        return [
            (f"google-research-datasets/mbpp {split}, row {index}", dict(record))
            for split, records in parts.items()
            for index, record in enumerate(records)
        ]
    except Exception as error:  # whatever datasets, the hub client or the network raises, the way out is the same
        offline = any(os.environ.get(name) in {"1", "true"} for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
        why = "HF_HUB_OFFLINE is set and the dataset is not in the cache" if offline else str(error).split("\n")[0]
        raise TaskError(
            f"task.path is not set and google-research-datasets/mbpp could not be loaded from the hub ({why}); "
            f"download the official mbpp.jsonl and set task.path (or {PATH_VARIABLE}) to it"
        ) from error


def row_of(record: Any, where: str) -> Row:
    """The row of a full record (``text``, ``test_setup_code``) or a sanitized one (``prompt``, ``test_imports``).

    Raises TaskError, which begins with ``where``.
    """
    if not isinstance(record, dict):
        raise TaskError(f"{where}: expected an object, found a {type(record).__name__}")

    def get(key: str, kind: type, default: Any = None) -> Any:
        value = record.get(key, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            what = f"is a {type(record[key]).__name__}, not a {kind.__name__}" if key in record else "is missing"
            raise TaskError(f"{where}: '{key}' {what}")
        return value

    def texts(key: str, default: Any = None) -> tuple[str, ...]:
        values = get(key, list, default)
        if wrong := [value for value in values if not isinstance(value, str)]:
            raise TaskError(f"{where}: '{key}' holds a {type(wrong[0]).__name__}, not a text")
        return tuple(_unix(value) for value in values)

    tests = texts("test_list")
    if not tests:
        raise TaskError(f"{where}: 'test_list' is empty")
    imports, challenge = texts("test_imports", []), texts("challenge_test_list", [])
    setup = "\n".join([*imports, _unix(get("test_setup_code", str, ""))]).strip("\n")
    try:
        split_tests((*tests, *challenge), setup)
    except UnsupportedTest as error:
        raise TaskError(f"{where}: 'test_list': {error}") from error
    return Row(
        task_id=get("task_id", int),
        text=_unix(get("prompt" if "prompt" in record else "text", str)).strip(),
        code=_unix(get("code", str)).strip("\n").rstrip(),
        tests=tests,
        setup=setup,
        challenge=challenge,
    )


def _unix(text: str) -> str:
    """All but two of the reference solutions have Windows' line ends."""
    return text.replace("\r\n", "\n")
