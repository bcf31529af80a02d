"""Schema of a training config: the sections, every key documented, unknown keys rejected. Torch-free.

The docstrings of sections and keys (:mod:`grpo_train.config.sections`) are user documentation: ``grpo-train schema``
prints them.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from grpo_train.config.sections.algorithm import LOSSES, Algorithm, Optimizer, Train
from grpo_train.config.sections.backup import Backup
from grpo_train.config.sections.base import Section, conflict
from grpo_train.config.sections.evaluation import Eval
from grpo_train.config.sections.model import Model, Rollout
from grpo_train.config.sections.notify import Notify
from grpo_train.config.sections.run import Run
from grpo_train.config.sections.task import Curriculum, EveryTask, PassRate, Sandbox, TaskConfig
from grpo_train.config.sections.tracking import Tracking
from grpo_train.config.sections.workflow import Budget, Workflow

__all__ = [
    "LOSSES", "Algorithm", "Backup", "Budget", "Config", "Curriculum", "Eval", "EveryTask", "Model", "Notify",
    "Optimizer", "PassRate", "Rollout", "Run", "Sandbox", "Section", "TaskConfig", "Tracking", "Train", "Workflow",
]  # fmt: skip


class Config(Section):
    """Training config."""

    run: Run = Field(default_factory=Run)
    model: Model = Field(default_factory=Model)
    rollout: Rollout = Field(default_factory=Rollout)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    train: Train = Field(default_factory=Train)
    task: TaskConfig = Field(default_factory=TaskConfig)
    curriculum: Curriculum = Field(default_factory=Curriculum)
    sandbox: Sandbox = Field(default_factory=Sandbox)
    eval: Eval = Field(default_factory=Eval)
    tracking: Tracking = Field(default_factory=Tracking)
    notify: Notify = Field(default_factory=Notify)
    workflow: Workflow = Field(default_factory=Workflow)
    budget: Budget = Field(default_factory=Budget)
    backup: Backup = Field(default_factory=Backup)

    @model_validator(mode="after")
    def _check_workflow(self) -> Config:
        last, run = self.workflow.last_step, self.run
        if self.workflow.stages and run.eval_every:
            raise conflict("run.eval_every has no effect with workflow.stages; use an eval stage", "run.eval_every")
        if last and "total_steps" not in run.model_fields_set:
            run.total_steps = last
        if last > run.total_steps:
            raise conflict(
                f"workflow.stages train to step {last}, beyond run.total_steps {run.total_steps}",
                *("run.total_steps", "workflow.stages"),
            )
        return self

    @model_validator(mode="after")
    def _check_divisibility(self) -> Config:
        updates = self.algorithm.updates_per_buffer
        prompts = 1 if self.train.microbatch_size == "auto" else self.train.microbatch_size
        per_pass = self.run.nproc * prompts * updates
        below = self.rollout.buffer_size // per_pass * per_pass
        if below != self.rollout.buffer_size:
            nearest = [str(size) for size in (below, below + per_pass) if size]
            raise conflict(
                f"rollout.buffer_size {self.rollout.buffer_size} is not divisible by run.nproc {self.run.nproc} x "
                f"train.microbatch_size {prompts} "
                + (f"x algorithm.updates_per_buffer {updates} " if updates > 1 else "")
                + f"= {per_pass}; every process must make the same number of forward and backward passes "
                f"(nearest sizes: {' or '.join(nearest)})",
                *("rollout.buffer_size", "run.nproc", "train.microbatch_size", "algorithm.updates_per_buffer"),
            )
        return self

    @model_validator(mode="after")
    def _check_sampling(self) -> Config:
        if self.model.lora_dropout and self.steps_per_buffer > 1:
            raise conflict(
                f"model.lora_dropout {self.model.lora_dropout} with {self.steps_per_buffer} updates per buffer: "
                "dropout noise would trigger clipping; set it to 0, or num_iterations and updates_per_buffer to 1",
                *("model.lora_dropout", "algorithm.num_iterations", "algorithm.updates_per_buffer"),
            )
        if self.rollout.vllm_urls and not self.rollout.vllm_shared_dir:
            raise conflict(
                "rollout.vllm_urls: the weights go over as files; name a directory that this machine and the servers "
                "see in rollout.vllm_shared_dir",
                "rollout.vllm_urls",
            )
        if self.rollout.backend == "vllm" and self.run.deterministic:
            raise conflict(
                "rollout.backend vllm does not repeat bit for bit; use native, or leave out run.deterministic",
                *("rollout.backend", "run.deterministic"),
            )
        sampling = (("top_p", self.rollout.top_p, 1.0), ("top_k", self.rollout.top_k, 0))
        truncated = {f"rollout.{key}": value for key, value, full in sampling if value != full}
        if truncated and self.algorithm.rollout_correction == "none":
            raise conflict(
                f"{' and '.join(f'{key} {value:g}' for key, value in truncated.items())}: truncated sampling with an "
                "untruncated gradient is biased; remove it or set algorithm.rollout_correction (token_truncate, …)",
                *truncated,
            )
        if self.run.deterministic and self.rollout.top_p < 1:
            raise conflict(
                f"rollout.top_p {self.rollout.top_p:g} with run.deterministic: its cumulative sums do not repeat on a "
                "GPU; leave one of them out (rollout.top_k repeats)",
                *("rollout.top_p", "run.deterministic"),
            )
        if self.algorithm.overlong_buffer >= self.rollout.max_completion_length:
            raise conflict(
                f"algorithm.overlong_buffer {self.algorithm.overlong_buffer} must be shorter than "
                f"rollout.max_completion_length {self.rollout.max_completion_length}",
                *("algorithm.overlong_buffer", "rollout.max_completion_length"),
            )
        return self

    @model_validator(mode="after")
    def _check_token_budget(self) -> Config:
        rollout, budget = self.rollout, self.token_budget
        longest = rollout.max_prompt_length + rollout.max_completion_length
        if 0 < budget < longest:
            raise conflict(
                f"train.token_budget {budget} is below rollout.max_prompt_length {rollout.max_prompt_length} + "
                f"rollout.max_completion_length {rollout.max_completion_length}; set auto, or at least {longest}",
                *("train.token_budget", "rollout.max_prompt_length", "rollout.max_completion_length"),
            )
        return self

    @model_validator(mode="after")
    def _check_curriculum(self) -> Config:
        curriculum, labels = self.curriculum, [part.part_label for part in self.task.parts or [self.task]]
        if curriculum.threshold is None:
            unused = [key for key, value in curriculum if value != Curriculum.model_fields[key].default]
            if unused:
                key = f"curriculum.{unused[0]}"
                raise conflict(f"{key} has no effect without curriculum.threshold", key)
        elif curriculum.task is None and len(labels) > 1:
            raise conflict(
                f"curriculum.task is not set: name one of {', '.join(labels)}",
                "curriculum.task",
                "curriculum.threshold",
            )
        elif curriculum.task is not None and curriculum.task not in labels:
            raise conflict(
                f"curriculum.task: the run has no task {curriculum.task}; name one of {', '.join(labels)}",
                "curriculum.task",
            )
        else:
            parts = dict(zip(labels, self.task.parts or [self.task], strict=True))
            if parts[curriculum.task or labels[0]].pass_rate is not None:
                message = "task.pass_rate and a curriculum of the same task: other levels were not measured; remove one"
                raise conflict(message, "task.pass_rate", "curriculum.threshold")
        return self

    @property
    def eval_datasets(self) -> list[str]:
        """Tasks of a scheduled evaluation: ``eval.datasets``, or the parts of a mixture, or "", the trained task."""
        return self.eval.datasets or [part.part_label for part in self.task.parts] or [""]

    @property
    def microbatch_size(self) -> int:
        """``train.microbatch_size`` of a config without ``auto`` (:mod:`grpo_train.platforms.choices`)."""
        return _number(self.train.microbatch_size, "train.microbatch_size")

    @property
    def tf_micro_batch(self) -> int:
        """``train.tf_micro_batch`` of a config without ``auto``."""
        return _number(self.train.tf_micro_batch, "train.tf_micro_batch")

    @property
    def token_budget(self) -> int:
        """``train.token_budget`` where it is fixed; 0 = no limit, or measured (:mod:`grpo_train.train.budget`)."""
        return 0 if self.train.token_budget == "auto" else self.train.token_budget

    @property
    def eval_problems(self) -> int | None:
        """``eval.num_problems`` of a config without ``auto``; None = all."""
        problems = self.eval.num_problems
        return None if problems is None else _number(problems, "eval.num_problems")

    @property
    def grad_accum_steps(self) -> int:
        """Micro-batches per process and optimizer update."""
        updates = self.algorithm.updates_per_buffer
        return self.rollout.buffer_size // (updates * self.run.nproc * self.microbatch_size)

    @property
    def steps_per_buffer(self) -> int:
        """Optimizer updates made from one rollout buffer."""
        return self.algorithm.num_iterations * self.algorithm.updates_per_buffer


def _number(value: int | str, key: str) -> int:
    if isinstance(value, str):
        raise ValueError(f"{key} is still {value}: a launch resolves it")
    return value
