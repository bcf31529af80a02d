"""GRPO: the clipped surrogate, averaged over each completion's tokens, then over completions.

    loss = 1 / N * sum_i 1 / |o_i| * sum_t -min(rho_it A_i, clip(rho_it, 1 - eps, 1 + eps_high) A_i)

As published, the advantage is divided by the group's standard deviation (``scale_rewards: group``).

Shao et al. 2024, arXiv 2402.03300, eq. 3.
"""

from grpo_train.algorithm.losses.parts import LossSpec, clipped_surrogate, per_completion, token_ratio

GRPO = LossSpec(token_ratio, clipped_surrogate, per_completion)
