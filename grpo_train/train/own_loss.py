"""The loss of a config: a built-in one, or one of the user's file, which is tried before a run is made.

``python -m grpo_train.train.own_loss NAME`` tries one and prints what is wrong with it.
"""

from __future__ import annotations

import sys
from functools import lru_cache

import torch

from grpo_train.algorithm.losses import LOSS_TYPES, LossSpec
from grpo_train.algorithm.policy_loss import policy_loss
from grpo_train.rewards.types import TaskError
from grpo_train.rewards.user_code import load_function, raising_task_error
from grpo_train.run_dir.errors import exiting_on_error

KEY = "algorithm.loss_type"
TOLERANCE = 1e-9
"""Relative, in float64."""


@lru_cache(maxsize=8)
def find_loss(name: str) -> LossSpec:
    """A built-in loss, or what the user's function ``file.py:function`` returns. Raises TaskError."""
    if ":" not in name:
        return LOSS_TYPES[name]
    with raising_task_error(f"{KEY}: {name} failed:"):
        found = load_function(name, KEY)()
    if not isinstance(found, LossSpec):
        raise TaskError(f"{KEY}: {name} returns {type(found).__name__}; it must return a LossSpec (docs/algorithms.md)")
    return found


def try_loss(name: str) -> None:
    """Compute a loss and its gradient of a made-up step, whole and in two parts. Raises TaskError.

    The parts of a step are summed: a loss that depends on how a step is split trains otherwise on each machine.
    """
    loss, random = find_loss(name), torch.Generator().manual_seed(0)
    with raising_task_error(f"{KEY}: {name} failed on a step of 4 completions:"):
        found = [_step(loss, parts, random.manual_seed(0)) for parts in ([4], [1, 3])]
    (whole, gradient), (summed, other) = found
    if not (torch.isfinite(whole) and torch.isfinite(gradient).all()):
        raise TaskError(f"{KEY}: the loss or the gradient of {name} is not finite on a step of 4 completions")
    if not gradient.any():
        raise TaskError(f"{KEY}: the gradient of {name} is zero on a step of 4 completions: nothing would be learned")
    scale = max(abs(whole.item()), 1.0)
    if abs(whole - summed) > TOLERANCE * scale or not torch.allclose(gradient, other, rtol=1e-7, atol=TOLERANCE):
        raise TaskError(
            f"{KEY}: {name} gives {whole:.6g} for a step of 4 completions, and {summed:.6g} for the sum of two parts; "
            "weights must come from the counts of the whole step, not from the batch"
        )


def _step(loss: LossSpec, parts: list[int], random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    shape, budget = (4, 6), 8
    logps = -torch.rand(shape, generator=random, dtype=torch.float64)
    old = logps + 0.1 * torch.randn(shape, generator=random, dtype=torch.float64)
    mask = (torch.arange(6) < torch.tensor([6, 3, 5, 1]).unsqueeze(1)).double()
    advantages = torch.tensor([1.0, -0.5, 0.25, -0.75], dtype=torch.float64)
    logps.requires_grad_()
    total = logps.new_zeros(())
    for rows in torch.arange(4).split(parts):
        total = total + policy_loss(
            logps[rows], old[rows], advantages[rows], mask[rows], loss_type=loss, epsilon=0.2, epsilon_high=0.28,
            max_completion_length=budget, num_completions=4, num_tokens=float(mask.sum()),
        ).loss  # fmt: skip
    return total.detach(), torch.autograd.grad(total, logps)[0]


if __name__ == "__main__":
    with exiting_on_error(""):
        try_loss(sys.argv[1])
