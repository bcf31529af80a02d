"""The options of the built-in tasks: a model for each task, or for a family of tasks with the same keys. Torch-free.

A task's model has the keys of the ``task`` section that it reads besides those of every task. The section has the keys
of all of them, since ``eval.datasets`` may name other tasks and a user's own task may read any; a run is refused that
sets a key which none of its tasks has.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo_train.config.sections.base import NonNegativeInt, Section

__all__ = ["OPTIONS", "TaskOptions"]


class TemplateOptions(Section):
    template: str | None = None
    """Prompt template: r1, chat (the model's chat template), question (the question alone), compact (generated tasks),
    paper or docstring (mbpp), or a text with {question} in it. Default: set by the task."""
    system_prompt: str | None = None
    """System message for template chat."""


class LevelOptions(Section):
    level: Annotated[int, Field(ge=1, le=10)] = 1
    """Generated tasks except addition: difficulty, 1 to 10."""


class DigitsOptions(Section):
    digits: Annotated[int, Field(ge=1, le=6)] = 2
    """addition, arithmetic, comparison: digits of each number."""


class FileOptions(Section):
    path: str | None = None
    """Data: a JSONL, JSON, CSV or Parquet file, a directory with train.jsonl and test.jsonl (or other kinds, also in
    shards), or a dataset of the Hugging Face hub, ``hf:OWNER/NAME[:CONFIG][@COMMIT]``, which a run pins to its commit.
    Default: the hub, for tasks with a dataset there."""


class ColumnOptions(Section):
    prompt_field: str = "prompt"
    """data: field with the question, a text or messages. Default: prompt, else messages, else question."""
    answer_field: str = "answer"
    """data: field with the gold answer."""


class GeneratedOptions(TemplateOptions, LevelOptions):
    """A level, and a template."""


class AdditionOptions(DigitsOptions):
    """Its prompt is fixed."""


class ComparisonOptions(GeneratedOptions, DigitsOptions):
    """Numbers of a length."""


class ArithmeticOptions(GeneratedOptions, DigitsOptions):
    operators: str = "+-"
    """arithmetic: operators to use, any of + - *."""


class Gsm8kOptions(TemplateOptions, FileOptions):
    """Files in the official format."""


class MathOptions(TemplateOptions, FileOptions):
    splits: dict[Literal["train", "validation", "test"], str] = Field(default_factory=dict)
    """data: files of each split, {train: "part-*.csv", test: held_out.csv}, or splits of a dataset of the hub,
    {train: train, test: validation}. Default: found by their names."""
    split_seed: NonNegativeInt = 0
    """data: seed of the tenth that is held out where the data has no test split."""
    wrong_rows: Literal["refuse", "drop"] = "refuse"
    """data: what to do with rows that cannot be used; ``drop`` trains without them and reports their number."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """data: what separates the fields of CSV files."""
    template_field: str = "template"
    """data: optional field with a row's own template."""


class DataOptions(MathOptions, ColumnOptions):
    grader: str = "number"
    """data: answer comparison: number, text, math, your own ``file.py:function``, or none (no gold answers; then
    task.rewards decides alone)."""


class MbppOptions(TemplateOptions, FileOptions):
    few_shot: Annotated[int, Field(ge=0, le=8)] = 0
    """mbpp: number of solved examples in the prompt (as published: 3)."""
    visible_tests: Annotated[int, Field(ge=0)] = 1
    """mbpp: number of tests shown in the prompt. Programs are judged by all tests, so hard-coding does not pay."""


class CodeExecutionOptions(TemplateOptions, LevelOptions, FileOptions, ColumnOptions):
    """Generated programs, or those of files."""


class CodeGameOptions(TemplateOptions, LevelOptions):
    opponent: str = "start"
    """code_game: predicting model: ``start`` (the run's starting model), or the directory of a model or checkpoint."""


class GameOptions(TemplateOptions):
    invalid_move_return: float = -1.5
    """Games: return of a player whose move is illegal or missing, which ends the game (default: SPIRAL's)."""
    invalid_move_other_return: float = 0.5
    """Games: return of the other player in that case."""


class ReasoningGymOptions(TemplateOptions):
    dataset: str = "leg_counting"
    """reasoning_gym: name of the dataset."""


OPTIONS: dict[str, type[Section]] = {
    "echo": GeneratedOptions,
    "pattern": GeneratedOptions,
    "counting": GeneratedOptions,
    "addition": AdditionOptions,
    "arithmetic": ArithmeticOptions,
    "base_conversion": GeneratedOptions,
    "comparison": ComparisonOptions,
    "word_problem": GeneratedOptions,
    "scheduling": GeneratedOptions,
    "gsm8k": Gsm8kOptions,
    "math": MathOptions,
    "mbpp": MbppOptions,
    "code_execution": CodeExecutionOptions,
    "code_game": CodeGameOptions,
    "tictactoe": GameOptions,
    "kuhn_poker": GameOptions,
    "negotiation": GameOptions,
    "reasoning_gym": ReasoningGymOptions,
    "jsonl": DataOptions,
}
"""In the order of listings."""


class TaskOptions(
    ReasoningGymOptions, GameOptions, CodeGameOptions, MbppOptions, CodeExecutionOptions, ArithmeticOptions,
    ComparisonOptions, DataOptions, MathOptions, Gsm8kOptions,
):  # fmt: skip
    """The keys of all tasks: one that :data:`OPTIONS` has must be here, too."""
