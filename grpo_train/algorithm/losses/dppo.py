"""DPPO with the binary total variation: a token is left out by how far its probability has moved, not its ratio.

    kept_it = pi_it - old_it <= eps_high where A_i > 0, else old_it - pi_it <= eps      (probabilities, not logs)
    loss = 1 / sum_i |o_i| * sum_i sum_t -sg(min(rho_it, 20)) A_i kept_it logp_it       (sg = stop gradient)

A ratio says little of a rare token: 1e-6 to 2e-6 has ratio 2 and moves nothing. ``epsilon`` and ``epsilon_high`` bound
the change of the probability; the config default 0.2 is prime-rl's. ``delta`` is unused.

Qi et al. 2026, arXiv 2602.04879; verl's ``dppo_tv`` (its bound of 20 is that of section 5.4), prime-rl's default loss.
"""

import torch

from grpo_train.algorithm.losses.parts import Clip, LossSpec, Surrogate, per_token, token_ratio

MAX_RATIO = 20.0


def divergence_surrogate(ratio: torch.Tensor, advantage: torch.Tensor, logps: torch.Tensor, clip: Clip) -> Surrogate:
    """-sg(min(rho, 20)) A logp for tokens whose probability has moved at most as far as the bounds."""
    probability = logps.detach().exp()
    moved = probability - probability / ratio.detach()
    low = (moved < -clip.low) & (advantage <= 0)
    high = (moved > clip.high) & (advantage > 0)
    value = -ratio.clamp(max=MAX_RATIO).detach() * advantage * logps * ~(low | high)
    return Surrogate(value, low & (advantage < 0), high)


DPPO = LossSpec(token_ratio, divergence_surrogate, per_token, counts_tokens=True, bounds="probability")
