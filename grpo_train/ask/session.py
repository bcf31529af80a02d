"""What a command that asks works on: the run's task and settings, and its checkpoints, loaded beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grpo_train.ask.checkpoint import AskedCheckpoint, Sampling
from grpo_train.ask.questions import Question, QuestionError, held_out_question, own_question
from grpo_train.config import with_changes
from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan, plan_evaluation, task_of
from grpo_train.evaluation.request import EvalError, EvalRequest
from grpo_train.evaluation.results.keys import decoding
from grpo_train.rewards import load_rewards
from grpo_train.run_dir import list_runs, observe
from grpo_train.tasks import Task


@dataclass(frozen=True)
class AskSession:
    """Checkpoints of a run, or a model without one."""

    plan: EvalPlan
    task: Task
    config: Config
    root: Path
    shares_gpu: bool
    """Whether the GPU is used beside a run that is training."""

    def load(self) -> list[AskedCheckpoint]:
        """Load the checkpoints; they share the reward functions. Raises PolicyError, TaskError."""
        rewards = load_rewards(self.task, self.config)
        return [AskedCheckpoint(target, self.plan, self.config, self.task, rewards) for target in self.plan.targets]

    def question(self, text: str) -> Question:
        """A question of one's own. Raises QuestionError."""
        return own_question(text, self.task, self.config)

    def problem(self, index: int) -> Question:
        """A held-out problem. Raises QuestionError."""
        return held_out_question(index, self.task, self.config)

    def sampling(
        self, count: int, temperature: float | None, top_p: float | None, longest: int | None, seed: int
    ) -> Sampling:
        """The evaluation's way of decoding, with what is given. Raises QuestionError for samples that are all equal."""
        used = decoding(self.config, self.task)
        temperature = used["temperature"] if temperature is None else temperature
        if count > 1 and not temperature:
            raise QuestionError(f"{count} completions at temperature 0 are all the same; set a temperature")
        return Sampling(
            count,
            temperature,
            used["top_p"] if top_p is None else top_p,
            longest or used["max_completion_length"],
            seed,
        )

    def check_gpu(self) -> None:
        """Leave the GPU to a run that is training on this machine. Raises EvalError ``gpu_busy``."""
        import torch

        if self.shares_gpu or self.config.model.device == "cpu" or not torch.cuda.is_available():
            return
        for run in list_runs(self.root):
            observed = observe(run.read_status() or {})
            if observed.is_live and not observed.host:
                raise EvalError(
                    f"run {run.name} is training on this machine; use --device cpu, or --device cuda to share its GPU",
                    code="gpu_busy",
                )


def open_session(root: Path, request: EvalRequest, device: str | None) -> AskSession:
    """The session of a request; nothing is loaded yet.

    Args:
        device: ``cpu`` or ``cuda``; None = as the run's config says, but no GPU of a run that is training is taken.

    Raises EvalError (``gpu_busy``: a run is training), RunDirError, ConfigError, PolicyError, TaskError.
    """
    plan, unusable = plan_evaluation(root, request)
    if unusable:
        raise EvalError(unusable[0].error, code=unusable[0].code)
    config = Config.model_validate(plan.config)
    config = with_changes(config, model={"device": device or config.model.device})
    session = AskSession(plan, task_of(config), config, root, shares_gpu=device is not None)
    session.check_gpu()
    return session
