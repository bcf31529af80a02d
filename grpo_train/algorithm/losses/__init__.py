"""Policy losses by name. The docstring of each module states the estimator and its source.

A loss of a user's file is made of the same parts (``docs/algorithms.md``, "Your own loss").

``docs/algorithms.md`` compares them with what other libraries call by the same name.
"""

from grpo_train.algorithm.losses.bnpo import BNPO
from grpo_train.algorithm.losses.cispo import CISPO
from grpo_train.algorithm.losses.dapo import DAPO
from grpo_train.algorithm.losses.dppo import DPPO
from grpo_train.algorithm.losses.dr_grpo import DR_GRPO
from grpo_train.algorithm.losses.grpo import GRPO
from grpo_train.algorithm.losses.gspo import GSPO
from grpo_train.algorithm.losses.parts import (
    Clip,
    Counts,
    LossSpec,
    Surrogate,
    clipped_surrogate,
    per_budget,
    per_completion,
    per_token,
    reinforce_surrogate,
    sequence_ratio,
    token_ratio,
)
from grpo_train.algorithm.losses.sapo import SAPO

LOSS_TYPES: dict[str, LossSpec] = {
    "dr_grpo": DR_GRPO,
    "grpo": GRPO,
    "bnpo": BNPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "sapo": SAPO,
    "dppo": DPPO,
}

__all__ = [
    "LOSS_TYPES", "Clip", "Counts", "LossSpec", "Surrogate", "clipped_surrogate", "per_budget", "per_completion",
    "per_token", "reinforce_surrogate", "sequence_ratio", "token_ratio",
]  # fmt: skip
