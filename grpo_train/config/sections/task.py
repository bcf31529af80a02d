"""``task`` and ``sandbox``: prompts, rewards, and where programs run."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from grpo_train.config.sections.base import NonNegativeInt, PositiveFloat, PositiveInt, Section, conflict
from grpo_train.config.tasks import TaskOptions


def _as_pass_rate(value: Any) -> Any:
    return {"range": value} if isinstance(value, list | tuple) else value


class PassRate(Section):
    """Which training problems are used, by the share of correct samples that an evaluation on the train split found."""

    range: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)]
    """Lowest and highest rate."""
    source: str | None = None
    """Directory of the evaluation, relative to the root: ``eval_runs/NAME``, or a step in it. Default: the only one of
    model.backbone on this task."""

    @model_validator(mode="after")
    def _check_range(self) -> PassRate:
        if self.range[0] > self.range[1]:
            raise conflict(f"task.pass_rate: {self.range[0]:g} is above {self.range[1]:g}; swap them", "task.pass_rate")
        return self


class EveryTask(Section):
    """The keys that every task has."""

    name: str = "gsm8k"
    """Task name (``grpo-train tasks`` lists them), or your own task as ``file.py:function``."""
    limit: PositiveInt | None = None
    """Use only the first N training problems."""
    pass_rate: Annotated[PassRate, BeforeValidator(_as_pass_rate)] | None = None
    """Use only training problems that were solved this often, ``[0.1, 0.9]``, as measured by ``grpo-train eval --split
    train --num-samples 8``. Problems that were not measured are left out."""
    rewards: list[str] = Field(default_factory=list)
    """Reward functions: accuracy, format, tag_count, reasoning, correct_and_short, score, or your own
    ``file.py:function`` (also one written for TRL), weighted by algorithm.reward_weights. Empty: set by the task."""
    reward_timeout: PositiveFloat = 60.0
    """Your own reward functions: time limit of a call, in seconds."""
    reward_control: Literal["none", "random", "inverted", "format_only"] = "none"
    """Negative control in place of every reward: with it, accuracy must not improve."""
    correct_reward: float = 2.0
    """accuracy: reward of a correct answer in the correct format."""
    incorrect_reward: float = 0.0
    """accuracy: reward of any other completion."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """In a mixture: share of the prompts, relative to the weights of the other tasks."""
    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] | None = None
    """In a mixture: name in metrics and evaluations. Default: the task's name."""


class TaskConfig(TaskOptions, EveryTask):
    """Prompts, and how completions are rewarded. A list of such mappings is a mixture: each has its own keys."""

    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Your own task: values of its own, which it finds in ``config.options``."""
    parts: list[TaskConfig] = Field(default_factory=list)
    """The tasks of a mixture, written as a list in place of the section: ``task: [{name: gsm8k, weight: 2}, {name:
    arithmetic}]``. Override a key of one with ``--set task[1].level=3``, counted from 0."""

    @property
    def part_label(self) -> str:
        """Name of a mixture's part in metrics and evaluations."""
        return self.label or self.name.rpartition(":")[2]

    @model_validator(mode="after")
    def _check_mixture(self) -> TaskConfig:
        if not self.parts:
            return self
        labels = [part.part_label for part in self.parts]
        name = "+".join(labels)
        if others := sorted(self.model_fields_set - {"parts"} - ({"name"} if self.name == name else set())):
            raise conflict(
                f"task.{others[0]} has no effect beside task.parts: set it on one of the parts", f"task.{others[0]}"
            )
        for index, part in enumerate(self.parts):
            if part.parts:
                raise conflict(f"task[{index}].parts: a mixture cannot contain another", f"task.parts.{index}.parts")
        if doubled := [label for label, count in Counter(labels).items() if count > 1]:
            index = len(labels) - 1 - labels[::-1].index(doubled[0])
            raise conflict(
                f"task[{index}]: two parts are named {doubled[0]}; give one a label, as in "
                f"{{name: {doubled[0]}, label: {doubled[0]}_2}}",
                f"task.parts.{index}.name",
            )
        self.name = name
        return self

    @model_serializer(mode="wrap")
    def _only_parts(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A mixture has only a name and parts, a single task no parts."""
        keys: dict[str, Any] = dump(self)
        if self.parts:
            return {key: keys[key] for key in ("name", "parts") if key in keys}
        return {key: value for key, value in keys.items() if key != "parts"}


class Curriculum(Section):
    """Raise the level of a generated task as the model learns it. Evaluations keep the level of the config."""

    task: str | None = None
    """Task of a mixture, by its label. Default: the only task."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Accuracy over the window from which the level is raised by 1; 0 raises it after every window. Default: no
    curriculum."""
    window: PositiveInt = 10
    """Number of rollout buffers at the level, all of which count."""
    max_level: Annotated[int, Field(ge=1, le=10)] = 10
    """Level that is not raised any more."""


class Sandbox(Section):
    """Isolation of programs written by the model."""

    cpu_seconds: PositiveFloat = 3.0
    """CPU time limit of a program, in seconds."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Address space limit of a program, in MB."""
    workers: NonNegativeInt = 0
    """Programs that a process runs at once; 0 = its share of the cores."""
    allow_weak: bool = False
    """Run programs even if the kernel lacks seccomp or Landlock. They can then read every file that you can read."""
