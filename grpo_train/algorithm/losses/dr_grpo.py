"""Dr. GRPO: the clipped surrogate with a constant normalizer.

    loss = 1 / (N L) * sum_i sum_t -min(rho_it A_i, clip(rho_it, 1 - eps, 1 + eps_high) A_i)

N = completions of the step, L = the generation budget, A_i = reward minus the group's mean (``scale_rewards: none``).
A constant instead of each completion's length removes GRPO's preference for long wrong answers.

Liu et al. 2025, arXiv 2503.20783, §3.2; reference: sail-sg/understand-r1-zero, ``masked_sum`` with
``constant_normalizer = generate_max_length``.
"""

from grpo_train.algorithm.losses.parts import LossSpec, clipped_surrogate, per_budget, token_ratio

DR_GRPO = LossSpec(token_ratio, clipped_surrogate, per_budget)
