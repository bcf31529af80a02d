"""GSM8K, grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168), in the R1 template.

Rows come from the official JSONL files (``task.path``), or from the hub's openai/gsm8k (config ``main``) through
``datasets``. ``task.path`` is

- ``hf:openai/gsm8k:main@COMMIT``, or another dataset of the hub with the same columns;
- a directory (best) with train.jsonl and test.jsonl, or gsm8k_train.jsonl and gsm8k_test.jsonl;
- a name below ROOT/rlp_datasets/processed, an older trainer's layout of such a directory; or
- a file. A file with "test" in its name is the test split, any other is the train split; the other split is the file
  beside it whose name has train and test swapped, else (gsm8k_)train.jsonl or (gsm8k_)test.jsonl. Only a split that is
  used must exist: evaluations need no train file, training no test file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_train.config import schema
from grpo_train.rewards.number import judge_number
from grpo_train.rewards.number_parser import parse_number
from grpo_train.rewards.types import Attempt, NoSplitError, Problem, Split, TaskError, Verdict
from grpo_train.tasks.shared.base import TaskDefaults, TaskKind
from grpo_train.tasks.shared.data_files import locate
from grpo_train.tasks.shared.data_rows import rows_of
from grpo_train.tasks.shared.hub import load_hub_dataset
from grpo_train.tasks.shared.hub_data import HubDataset, is_hub_path, open_dataset, parse_hub_path
from grpo_train.tasks.shared.template import ask, check_template

LABEL = "gsm8k_r1_template"
HUB_PATH = "hf:openai/gsm8k:main"


@dataclass(frozen=True)
class Gsm8kRow:
    """A row of the dataset."""

    question: str
    answer: str
    """The number after ``####``, as written."""


def load(config: schema.TaskConfig) -> Gsm8kTask:
    """The task on ``config.path`` or the hub; rows are read when first used. Raises TaskError for a missing path."""
    label = LABEL if config.template in (None, "r1") else "gsm8k"
    check_template(config)
    if config.path and is_hub_path(config.path):
        return Gsm8kTask(name="gsm8k", label=label, config=config, hub=parse_hub_path(config.path))
    path = locate(config.path) if config.path else None
    return Gsm8kTask(name="gsm8k", label=label, config=config, path=path)


@dataclass(frozen=True)
class Gsm8kTask(TaskDefaults):
    """GSM8K; each split is read when first used."""

    path: Path | None = None
    """File or directory of the data; None = the hub."""
    hub: HubDataset | None = None
    """Dataset of the hub that ``task.path`` names."""

    @property
    def hub_path(self) -> str | None:
        return HUB_PATH if self.path is None and self.hub is None else None

    def rows(self, split: Split) -> list[Gsm8kRow]:
        if self.hub:
            return _rows_of_hub_path(self.hub, split)
        return _rows_of_hub(split) if self.path is None else _rows_of_file(file_of(self.path, split).resolve())

    def problem(self, split: Split, index: int) -> Problem:
        row = self.rows(split)[index]
        return ask(self.config, index, row.question, row.answer)

    def judge(self, attempt: Attempt) -> Verdict:
        return judge_number(attempt)


def file_of(path: Path, split: Split) -> Path:
    """The file of a split (see the module docstring). Raises NoSplitError."""
    names = [f"{split}.jsonl", f"gsm8k_{split}.jsonl"]
    if path.is_dir():
        candidates = [path / name for name in names]
    else:
        if split == (own := "test" if "test" in path.stem.lower() else "train"):
            return path
        other = re.sub("train|test", split, path.name, flags=re.IGNORECASE)
        candidates = [path.with_name(name) for name in [other, *names] if name != path.name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    what = "has" if path.is_dir() else f"is the {own} split (by its name) and has"
    where = "in it" if path.is_dir() else "beside it"
    raise NoSplitError(
        f"task.path: '{path}' {what} no {split} split {where}; looked for "
        f"{', '.join(dict.fromkeys(candidate.name for candidate in candidates))}"
    )


@lru_cache(maxsize=4)
def _rows_of_file(path: Path) -> list[Gsm8kRow]:
    rows = [_row_of_record(record, location) for location, record in rows_of(path)]
    if not rows:
        raise TaskError(f"task.path: '{path}' has no rows")
    return rows


def _row_of_record(record: Any, location: str) -> Gsm8kRow:
    for key in ("question", "answer"):
        if not isinstance(record.get(key), str):
            what = f"is {type(record[key]).__name__}, expected text" if key in record else "is missing"
            raise TaskError(f"{location}: '{key}' {what}; a row has a 'question' and an 'answer'")
    _, mark, gold = record["answer"].rpartition("####")
    if not mark or isinstance(parse_number(gold), str):
        raise TaskError(
            f"{location}: 'answer' must end in '#### N' with one number N, found {record['answer'][-60:]!r}"
        )
    return Gsm8kRow(record["question"].strip(), gold.strip())


@lru_cache(maxsize=2)
def _rows_of_hub(split: Split) -> list[Gsm8kRow]:
    if split == "validation":
        raise NoSplitError("openai/gsm8k has no validation split: use test or train")
    advice = "download the official train.jsonl and test.jsonl and set task.path to their directory"
    records = load_hub_dataset("openai/gsm8k", "main", split=split, otherwise=advice)
    return [_row_of_record(record, f"openai/gsm8k {split}, row {index}") for index, record in enumerate(records)]


@lru_cache(maxsize=4)
def _rows_of_hub_path(hub: HubDataset, split: Split) -> list[Gsm8kRow]:
    opened = open_dataset(hub)
    if split not in opened.splits:
        raise NoSplitError(f"task.path: {hub} has no {split} split; it has {', '.join(opened.splits)}")
    return [_row_of_record(record, location) for location, record in opened.rows(split)]


TASK = TaskKind("gsm8k", "Grade-school word problems", load, alias=LABEL)
