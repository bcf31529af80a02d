"""SAPO: a smooth gate in place of the clip, so that no token's gradient ends at a bound.

    f(rho) = 4 / tau * sigmoid(tau (rho - 1)),  tau = 1.0 where A > 0, else 1.05
    loss = 1 / N * sum_i 1 / |o_i| * sum_t -f(rho_it) A_i

The gate's slope is 1 at rho = 1 and falls off on both sides, faster where the advantage is not positive. The
temperatures are the defaults of TRL and verl. ``epsilon``, ``epsilon_high`` and ``delta`` are unused.

Gao et al. 2025, arXiv 2511.20347, eq. 5-7; TRL's ``loss_type="sapo"``, verl's ``sapo`` (exponents bounded by 20).
"""

import torch

from grpo_train.algorithm.losses.parts import Clip, LossSpec, Surrogate, per_completion, token_ratio

TEMPERATURE, NEGATIVE_TEMPERATURE = 1.0, 1.05


def gated_surrogate(ratio: torch.Tensor, advantage: torch.Tensor, logps: torch.Tensor, clip: Clip) -> Surrogate:
    """-f(rho) A; clips nothing."""
    temperature = torch.full_like(advantage, NEGATIVE_TEMPERATURE).masked_fill(advantage > 0, TEMPERATURE)
    gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    return Surrogate(-gate * advantage, nothing, nothing)


SAPO = LossSpec(token_ratio, gated_surrogate, per_completion, bounds="nothing")
