"""MBPP, small Python functions judged by tests of which the model sees some (Austin et al. 2021, arXiv 2108.07732).

Rows come from ``task.path`` (the official mbpp.jsonl or sanitized-mbpp.json, or a directory with one of them), else
from the file in the environment variable MBPP_DATASET_PATH, else from the hub's google-research-datasets/mbpp (a launch
sets ``task.path`` to its commit). Splits go by ``task_id``, as published: 1-10 examples for prompts, 11-510 test,
511-600 validation, 601-974 train; training problems whose text is also in test or validation are dropped (602, 704 and
872 of the full file).

Values of ``task.template``:

- ``paper`` (default; lm-eval's ``mbpp``): "You are an expert Python programmer, …", the tests, ``[BEGIN]``; the
  published 3-shot setting is ``task.few_shot: 3`` and ``task.visible_tests: 3``;
- ``docstring`` (bigcode's, and evalplus's for base models): the text and one test in a docstring;
- ``chat`` (evalplus's for Instruct models): the same in a fence, with evalplus's beginning of the answer;
- ``r1``, ``question`` or your own text with {question} in it.

A program is correct if it passes every assert of ``test_list``, visible or held out. ``score`` is the share of the
held-out asserts it passes, so that hard-coding the visible ones earns nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.run_dir.safe_json import type_name
from grpo_train.sandbox import UnsupportedTest, run_tests, split_tests
from grpo_train.tasks.shared.base import Attempt, Problem, Split, TaskError, TaskKind, Verdict
from grpo_train.tasks.shared.code import ProgramTask, denials, make_frame, program_of, suspicious
from grpo_train.tasks.shared.data_files import locate
from grpo_train.tasks.shared.data_rows import rows_of
from grpo_train.tasks.shared.hub import load_hub_dataset
from grpo_train.tasks.shared.hub_data import HubDataset, is_hub_path, open_dataset, parse_hub_path
from grpo_train.tasks.shared.overlap import normal_text

PATH_VARIABLE = "MBPP_DATASET_PATH"
HUB_NAME = "google-research-datasets/mbpp"
FILES = ("mbpp.jsonl", "sanitized-mbpp.json")
EXAMPLES = range(1, 11)
"""Task ids of the examples for prompts."""
RANGES: dict[Split, range] = {
    "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975),
}  # fmt: skip
"""Published task ids of the splits."""

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
class MbppRow:
    """A row of the dataset, with ``\\n`` line ends."""

    task_id: int
    text: str
    code: str
    """Reference solution."""
    tests: tuple[str, ...]
    setup: str
    """Code that runs after the solution: two rows build objects of a class that the solution defines."""
    challenge: tuple[str, ...] = ()
    """Additional asserts of 11 test problems; never shown."""


def load(config: schema.TaskConfig) -> MbppTask:
    """The task; rows are read when first used. Raises TaskError for a missing path or an unknown template."""
    frame = make_frame(config, {"paper": PAPER, "docstring": DOCSTRING}, default="paper", chat=CHAT, prefill=PREFILL)
    if config.few_shot and frame.template != PAPER:
        raise TaskError("task.few_shot: only template paper has examples: remove task.template or task.few_shot")
    source: Path | HubDataset | None
    if config.path and is_hub_path(config.path):
        source = parse_hub_path(config.path)
    else:
        source = _file(locate(config.path)) if config.path else _file_of_environment()
    return MbppTask(name="mbpp", label="mbpp", stop=frame.stop, config=config, frame=frame, source=source)


@dataclass(frozen=True)
class MbppTask(ProgramTask):
    """MBPP, full or sanitized."""

    eval_temperature: float = 0.2
    source: Path | HubDataset | None = None
    """File of the rows, or the dataset of the hub that ``task.path`` names; None = the newest one of the hub."""

    @property
    def hub_path(self) -> str | None:
        return f"hf:{HUB_NAME}:full" if self.source is None else None

    def rows(self, split: Split) -> list[MbppRow]:
        return mbpp_splits(self.source)[split]

    def problem(self, split: Split, index: int) -> Problem:
        return self.problem_of(self.rows(split)[index], index)

    def problem_of(self, row: MbppRow, index: int) -> Problem:
        """A row of any split as a problem."""
        problem = self.frame.ask(self.config, index, self._ask(row), row.code, data=row)
        return replace(problem, prompt=self._examples + problem.prompt) if self._examples else problem

    def judge(self, attempt: Attempt) -> Verdict:
        row: MbppRow = attempt.problem.data
        program = program_of(attempt.completion, self.frame, function=_name(row), truncated=attempt.truncated)
        if program.source is None:
            reason = "truncated" if attempt.truncated else "no_code"
            return Verdict(False, False, reason, None, flexible=False, score=0.0)
        result = run_tests(
            program.source,
            [*row.tests, *row.challenge],
            setup=row.setup,
            cpu_seconds=self.sandbox.cpu_seconds,
            memory=self.memory_bytes,
        )
        published, held_out = result.passed[: len(row.tests)], result.passed[self.config.visible_tests :]
        visible = result.passed[: self.config.visible_tests]
        scored = held_out or published
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
            score=float(program.closed) * sum(scored) / len(scored),
            metrics=metrics,
            facts={
                "isolation": result.isolation,
                "passed": list(result.passed),
                "suspicious": suspicious(program.source),
            },
        )

    def _ask(self, row: MbppRow) -> str:
        """The question: the text and the visible tests."""
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
        rows = [row for row in _rows(self.source) if 2 <= row.task_id <= 10][:wanted]
        if len(rows) < wanted:
            raise TaskError(f"task.few_shot: {wanted} examples requested, the data has {len(rows)} (task_id 2 to 10)")
        return "".join(PAPER.replace("{question}", self._ask(row)) + f"{row.code}\n[DONE]\n\n" for row in rows)

    def published(self) -> dict[str, list[MbppRow]]:
        """All rows by published split, including the examples for prompts and the training rows that are dropped.

        Raises TaskError.
        """
        rows = _rows(self.source)
        ranges: dict[str, range] = {"prompt": EXAMPLES, **{str(split): ids for split, ids in RANGES.items()}}
        return {split: found for split, ids in ranges.items() if (found := [r for r in rows if r.task_id in ids])}


@lru_cache(maxsize=4)
def mbpp_splits(source: Path | HubDataset | None) -> dict[Split, list[MbppRow]]:
    """The splits of a source (None: the hub) by task_id, without training rows that are held out. Raises TaskError."""
    rows = _rows(source)
    found = {split: [row for row in rows if row.task_id in ids] for split, ids in RANGES.items()}
    held_out = {normal_text(row.text) for split in ("test", "validation") for row in found[split]}
    found["train"] = [row for row in found["train"] if normal_text(row.text) not in held_out]
    return found


def _name(row: MbppRow) -> str:
    """The function under test: the first name in the first test that the reference solution defines."""
    defined = set(re.findall(r"^(?:def|class)\s+(\w+)", row.code, re.MULTILINE))
    called: list[str] = re.findall(r"\w+", row.tests[0])
    return next((name for name in called if name in defined), called[1])


@lru_cache(maxsize=4)
def _rows(source: Path | HubDataset | None) -> list[MbppRow]:
    records: Iterable[tuple[str, Any]]
    if isinstance(source, HubDataset):
        opened = open_dataset(source)
        records = [located for split in opened.splits for located in opened.rows(split)]
    else:
        records = _records_of_hub() if source is None else _records_of_file(source)
    rows = sorted((mbpp_row(record, location) for location, record in records), key=lambda row: row.task_id)
    if duplicates := [one.task_id for one, other in pairwise(rows) if one.task_id == other.task_id]:
        raise TaskError(f"{source}: duplicate task_id {duplicates[0]}")
    if not rows:
        raise TaskError(f"task.path: '{source}' has no rows")
    return rows


def _file_of_environment() -> Path | None:
    """The file that :data:`PATH_VARIABLE` names."""
    value = os.environ.get(PATH_VARIABLE)
    if not value:
        return None
    path = Path(value).expanduser()
    if not path.exists():
        raise TaskError(f"{PATH_VARIABLE}: '{value}' does not exist; set it to {' or '.join(FILES)} or their directory")
    return _file(path.absolute())


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in FILES:
        if (path / name).is_file():
            return path / name
    raise TaskError(f"task.path: '{path}' has neither {' nor '.join(FILES)}")


def _records_of_file(path: Path) -> Iterable[tuple[str, Any]]:
    """(location, record) pairs of JSON lines, or of one JSON list (the sanitized file)."""
    if path.suffix != ".json":
        return rows_of(path)
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(f"task.path: cannot read '{path}': {error}") from error
    if not isinstance(records, list):
        raise TaskError(f"task.path: '{path}' is not a list of problems")
    return [(f"{path}, entry {index}", record) for index, record in enumerate(records, 1)]


def _records_of_hub() -> list[tuple[str, Any]]:
    advice = f"download the official mbpp.jsonl and set task.path (or {PATH_VARIABLE}) to it"
    parts = load_hub_dataset(HUB_NAME, "full", otherwise=advice)
    return [
        (f"{HUB_NAME} {split}, row {index}", dict(record))
        for split, records in parts.items()
        for index, record in enumerate(records)
    ]


def mbpp_row(record: Any, location: str) -> MbppRow:
    """The row of a full record (``text``, ``test_setup_code``) or a sanitized one (``prompt``, ``test_imports``).

    Raises TaskError that begins with ``location``.
    """
    if not isinstance(record, dict):
        raise TaskError(f"{location}: expected an object, found {type_name(record)}")

    def get(key: str, kind: type, default: Any = None) -> Any:
        value = record.get(key, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = f"is {type(record[key]).__name__}, expected {kind.__name__}" if key in record else "is missing"
            raise TaskError(f"{location}: '{key}' {found}")
        return value

    def texts(key: str, default: Any = None) -> tuple[str, ...]:
        values = get(key, list, default)
        if wrong := [value for value in values if not isinstance(value, str)]:
            raise TaskError(f"{location}: '{key}' contains {type(wrong[0]).__name__}, expected text")
        return tuple(_unix(value) for value in values)

    tests = texts("test_list")
    if not tests:
        raise TaskError(f"{location}: 'test_list' is empty")
    imports, challenge = texts("test_imports", []), texts("challenge_test_list", [])
    setup = "\n".join([*imports, _unix(get("test_setup_code", str, ""))]).strip("\n")
    try:
        split_tests((*tests, *challenge), setup)
    except UnsupportedTest as error:
        raise TaskError(f"{location}: 'test_list': {error}") from error
    return MbppRow(
        task_id=get("task_id", int),
        text=_unix(get("prompt" if "prompt" in record else "text", str)).strip(),
        code=_unix(get("code", str)).strip("\n").rstrip(),
        tests=tests,
        setup=setup,
        challenge=challenge,
    )


def _unix(text: str) -> str:
    """Text with Unix line ends; all but two of the reference solutions have Windows line ends."""
    return text.replace("\r\n", "\n")


TASK = TaskKind("mbpp", "Small Python functions, judged by tests", load)
