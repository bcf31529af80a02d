"""``eval``: evaluation of checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo_train.config.sections.base import NonNegativeFloat, PositiveFloat, PositiveInt, Section


class Eval(Section):
    """Evaluation, always in a separate process."""

    datasets: list[str] = Field(default_factory=list)
    """Tasks of the scheduled evaluations (run.eval_every). Empty: the trained task, or each task of a mixture."""
    split: Literal["test", "validation", "train"] = "test"
    """Split to evaluate; train shows whether a run has overfitted."""
    batch_size: PositiveInt | Literal["auto"] = 32
    """Completions generated at once; auto = as many as memory holds."""
    max_completion_length: PositiveInt | None = None
    """Generation budget in tokens. Default: rollout.max_completion_length."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; 0 = greedy. Default: set by the task (0; mbpp: 0.2)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling."""
    num_samples: PositiveInt = 1
    """Completions per problem, for pass@k and maj@k."""
    subset_frac: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the split (seeded, nested subsets)."""
    num_problems: PositiveInt | Literal["auto"] | None = None
    """Maximum number of problems (seeded, nested subsets); auto = 256 on a CPU and on GPUs older than the A100, all on
    others."""
    opponents: list[str] = Field(default_factory=list)
    """Games: opponents, by name (random, minimax, …) or checkpoint directory (training_runs/RUN/training_state/step_N).
    Empty: all built-in opponents of the game."""
    problem_seconds: PositiveFloat = 10.0
    """Tasks that run code: CPU time limit of all tests of one problem, in seconds."""
    nproc: PositiveInt = 1
    """Number of processes, one per GPU; the problems are divided among them."""
    timeout: PositiveFloat = 3600.0
    """Time limit of one checkpoint's evaluation, in seconds."""
