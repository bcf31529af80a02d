"""Your own problems, from files or the hub, graded as a number, a text, a LaTeX answer, or by your own function.

``task.path`` is a file (JSONL, JSON, CSV, Parquet) or a directory (see :mod:`grpo_train.tasks.shared.data_files`), or
``hf:OWNER/NAME[:CONFIG][@COMMIT]`` (see :mod:`grpo_train.tasks.shared.hub_data`); ``task.splits`` names its splits. A
row has

- ``prompt``, a text or messages (TRL's conversational format, rendered by the model's chat template), or ``messages``
  whose last turn is the user's, or ``question``; ``task.prompt_field`` names another field;
- the gold answer in ``answer``, in ``solution``, ``ground_truth`` or ``reward_model.ground_truth`` of datasets for TRL
  and verl, or in ``task.answer_field``; ``task.grader`` names the grader (see
  :mod:`grpo_train.tasks.shared.graders`);
- its own template in ``template`` or ``task.template_field``, optionally;
- ``tools`` and ``chat_template_kwargs``, optionally, which the model's chat template gets as from TRL;
- any other columns, which reward functions get.

Without a test split a tenth of the problems is held out by a hash of their text and ``task.split_seed``, so that adding
or reordering rows does not change what is held out. Training problems that are also test problems, word for word, are
dropped. ``task.wrong_rows: drop`` leaves out rows that cannot be used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from grpo_train.config import schema
from grpo_train.rewards.types import Attempt, NoSplitError, Problem, Split, TaskError, Verdict
from grpo_train.tasks.shared.base import TaskDefaults, TaskKind
from grpo_train.tasks.shared.data_fields import MAPPED, DataRow, FieldNames
from grpo_train.tasks.shared.graders import grader_of
from grpo_train.tasks.shared.template import check_template
from grpo_train.tasks.shared.user_data import Data, DataSource, read_data, source_of

PROMPTS = ("prompt", "messages", "question")
"""Names of the prompt field where ``task.prompt_field`` is not set, tried in this order."""
NEED_ANSWERS = {"accuracy", "correct_and_short"}
"""Reward functions that pay for correct answers."""


def load(config: schema.TaskConfig) -> JsonlTask:
    """The task on ``config.path``; rows are read when first used. Raises TaskError."""
    is_default = config.prompt_field == schema.TaskConfig.model_fields["prompt_field"].default
    prompts = PROMPTS if is_default else (config.prompt_field,)
    mapped = MAPPED if config.answer_field == schema.TaskConfig.model_fields["answer_field"].default else ()
    fields = FieldNames(prompts, (config.answer_field,), config.template_field, mapped=mapped)
    return load_rows(config, config.name, fields, config.grader)


def load_rows(config: schema.TaskConfig, name: str, fields: FieldNames, grader_name: str) -> JsonlTask:
    """A task on a user's data under another name, with its own fields and grader. Raises TaskError."""
    source = source_of(config, name)
    grader = grader_of(grader_name)
    check_template(config)
    if not grader.needs_gold and (not config.rewards or NEED_ANSWERS.intersection(config.rewards)):
        raise TaskError(
            f"task.grader: {grader_name} judges no answers: set task.rewards, without {', '.join(sorted(NEED_ANSWERS))}"
        )
    label = name + "_" + re.sub(r"[^A-Za-z0-9_.-]+", "_", source.label)
    return JsonlTask(
        name=name, label=label, slow=grader.slow, config=config, source=source, fields=fields, grader=grader_name
    )


@dataclass(frozen=True)
class JsonlTask(TaskDefaults):
    """Problems from a user's data, read when first used."""

    source: DataSource = field(default_factory=lambda: DataSource(Path()))
    fields: FieldNames = field(default_factory=lambda: FieldNames(PROMPTS, ("answer",), "template"))
    grader: str = "number"

    @property
    def data(self) -> Data:
        """All rows. Raises TaskError."""
        return read_data(self.source, self.fields, self.config, self.grader)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.data.notes

    def rows(self, split: Split) -> list[DataRow]:
        rows = self.data.splits.get(split)
        if rows is None:
            known = ", ".join(self.data.splits)
            raise NoSplitError(f"task.path: '{self.source}' has no {split} split; it has {known}")
        return rows

    def problem(self, split: Split, index: int) -> Problem:
        return self.rows(split)[index].problem(self.config, index)

    def judge(self, attempt: Attempt) -> Verdict:
        return grader_of(self.grader).judge(attempt)

    def same_answer(self, one: str, other: str) -> bool:
        return grader_of(self.grader).same(one, other)


TASK = TaskKind(
    "jsonl",
    "Your own problems, from files or the hub (task.path); also named data",
    load,
    alias="data",
)
