"""``workflow`` and ``budget``: what happens after training steps, and when a run stops by itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from grpo_train.config.sections.base import NonNegativeFloat, PositiveFloat, PositiveInt, Section, conflict


class _Settings(Section):
    @model_serializer(mode="wrap")
    def _only_what_is_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value not in (None, [])}


class TrainStage(_Settings):
    """Train."""

    until: PositiveInt | None = None
    """Last step. Default: run.total_steps; in a ``repeat``, the round's step."""


class EvalStage(_Settings):
    """Evaluate. What is not set here is taken from the ``eval`` section."""

    steps: Literal["latest", "all", "final"] | list[Annotated[int, Field(ge=0)]] = "latest"
    """Checkpoints to evaluate: ``latest`` (where training is), ``all``, ``final``, or step numbers (0: the starting
    model)."""
    datasets: list[str] = Field(default_factory=list)
    """Tasks. Empty: eval.datasets."""
    split: Literal["test", "validation", "train"] | None = None
    """Split, as eval.split."""
    num_problems: PositiveInt | None = None
    """Maximum number of problems, as eval.num_problems."""
    subset_frac: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of the split, as eval.subset_frac."""
    num_samples: PositiveInt | None = None
    """Completions per problem, as eval.num_samples."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature, as eval.temperature."""


class BackupStage(_Settings):
    """Back up the run (``grpo-train backup``)."""

    to: str | None = None
    """Destination in ``backup.yaml``. Default: the default destination there."""


class CleanupStage(_Settings):
    """Remove checkpoints from this disk that were just read back from a backup (``grpo-train cleanup``)."""

    keep_latest: bool = True
    """Keep the latest checkpoint."""
    keep: PositiveInt | None = None
    """Keep the newest N checkpoints instead."""
    to: str | None = None
    """Destination in ``backup.yaml`` whose copies count. Default: the default destination there."""

    @model_validator(mode="after")
    def _keeps_something(self) -> CleanupStage:
        if not self.keep_latest and self.keep is None:
            raise conflict("a cleanup keeps at least the latest checkpoint: keep_latest: true, or keep: N", "workflow")
        return self


class RepeatStage(_Settings):
    """Repeat stages every N steps."""

    every: PositiveInt
    """Steps between two rounds."""
    until: PositiveInt | None = None
    """Last step. Default: run.total_steps."""
    stages: list[WorkflowStage] = Field(min_length=1)
    """The stages of a round; ``train`` trains to the round's step."""


class _OneOf(Section):
    """A mapping with one key, written alone where it needs no settings (``- train``)."""

    model_config = ConfigDict(json_schema_extra={"type": ["object", "string"], "minProperties": 1, "maxProperties": 1})

    @model_validator(mode="before")
    @classmethod
    def _one_key(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {value: None}
        if not isinstance(value, dict):
            return value
        if len(value) != 1:
            names = ", ".join(map(str, value)) or "none"
            raise PydanticCustomError("one_key", "expected one of {known}, got {given}",
                                      {"known": ", ".join(cls.model_fields), "given": names})  # fmt: skip
        return {key: {} if settings is None else settings for key, settings in value.items()}

    @model_serializer(mode="wrap")
    def _only_what_is_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        (kind,) = self.model_fields_set
        return {kind: handler(self)[kind]}

    @property
    def kind(self) -> str:
        """The one key that is set."""
        (kind,) = self.model_fields_set
        return kind


class WorkflowStage(_OneOf):
    """One stage: ``train``, ``eval``, ``backup`` or ``cleanup``, alone or with settings, or ``repeat``."""

    repeat: RepeatStage | None = None
    """Stages every N steps."""
    train: TrainStage | None = None
    """Training."""
    eval: EvalStage | None = None
    """Evaluation."""
    backup: BackupStage | None = None
    """Backup."""
    cleanup: CleanupStage | None = None
    """Removal of checkpoints that are in a backup."""


RepeatStage.model_rebuild()  # its stages are known by now: messages name the keys of theirs


class Plateau(Section):
    """Stop when a metric no longer rises: its mean over the last steps against the mean over as many before."""

    metric: str = "reward"
    """Key of train_log.jsonl."""
    steps: Annotated[int, Field(ge=2)]
    """Steps of each of the two means."""
    min_gain: NonNegativeFloat = 0.0
    """Smallest gain that counts."""


class Collapse(Section):
    """Stop when a metric has fallen far below its best: the best mean over as many steps."""

    metric: str = "reward"
    """Key of train_log.jsonl."""
    below: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the best."""
    for_: PositiveInt = Field(alias="for")
    """Steps in a row."""

    @model_serializer(mode="plain")
    def _by_name(self) -> dict[str, Any]:
        return {"metric": self.metric, "below": self.below, "for": self.for_}


class StopRule(_OneOf):
    """A rule that stops a run: ``plateau`` or ``collapse``."""

    plateau: Plateau | None = None
    """The metric no longer rises."""
    collapse: Collapse | None = None
    """The metric fell far below its best."""


class Workflow(Section):
    """What a run does, stage by stage; docs/workflows.md. Empty: train, with the evaluations of run.eval_every."""

    stages: list[WorkflowStage] = Field(default_factory=list)
    """Stages in order. Steps up to run.total_steps that no stage trains are trained at the end."""
    stop_when: list[StopRule] = Field(default_factory=list)
    """Rules that save and stop the run."""

    @field_validator("stages")
    @classmethod
    def _repeats_are_flat(cls, stages: list[WorkflowStage]) -> list[WorkflowStage]:
        for stage in stages:
            if stage.repeat and any(inner.repeat for inner in stage.repeat.stages):
                raise conflict("workflow.stages: a repeat inside a repeat is not supported", "workflow.stages")
            if stage.repeat and not any(inner.train for inner in stage.repeat.stages):
                raise conflict("workflow.stages: a repeat needs a train stage", "workflow.stages")
            if stage.repeat and any(inner.train and inner.train.until for inner in stage.repeat.stages):
                raise conflict("workflow.stages: train.until has no effect in a repeat; remove it", "workflow.stages")
        return stages

    @property
    def last_step(self) -> int:
        """The last step that a stage names; 0 without one."""
        named = [stage.train or stage.repeat for stage in self.stages]
        return max((each.until or 0 for each in named if each), default=0)


class Budget(Section):
    """Limits of a run over all its starts. At a limit, the run saves and stops."""

    hours: PositiveFloat | None = None
    """Maximum time that the run is supervised."""
    dollars: PositiveFloat | None = None
    """Maximum cost of that time; requires price_per_hour."""
    price_per_hour: PositiveFloat | None = None
    """Price of this machine per hour, in dollars."""

    @model_validator(mode="after")
    def _has_a_price(self) -> Budget:
        if self.dollars is not None and self.price_per_hour is None:
            raise conflict("budget.dollars needs budget.price_per_hour", "budget.dollars")
        return self

    @property
    def limit_hours(self) -> float | None:
        """Hours that the budget allows; None = no limit."""
        by_price = self.dollars / self.price_per_hour if self.dollars and self.price_per_hour else None
        return min((hours for hours in (self.hours, by_price) if hours is not None), default=None)
