"""Policy losses by name. The docstring of each module states the estimator and its source.

``docs/algorithms.md`` compares them with what other libraries call by the same name.
"""

from grpo_train.algorithm.losses.bnpo import BNPO
from grpo_train.algorithm.losses.cispo import CISPO
from grpo_train.algorithm.losses.dapo import DAPO
from grpo_train.algorithm.losses.dr_grpo import DR_GRPO
from grpo_train.algorithm.losses.grpo import GRPO
from grpo_train.algorithm.losses.gspo import GSPO
from grpo_train.algorithm.losses.parts import LossSpec

LOSS_TYPES: dict[str, LossSpec] = {
    "dr_grpo": DR_GRPO,
    "grpo": GRPO,
    "bnpo": BNPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
}

__all__ = ["LOSS_TYPES", "LossSpec"]
