"""DAPO: the clipped surrogate with a higher upper bound, averaged over the tokens of the step.

    loss = 1 / sum_i |o_i| * sum_i sum_t -min(rho_it A_i, clip(rho_it, 1 - eps, 1 + eps_high) A_i)

The sums run over all completions of the optimizer step. The config default of ``epsilon_high`` is DAPO's 0.28
("clip-higher"). DAPO's other parts are ``mask_truncated_completions``, ``overlong_buffer``, ``scale_rewards: group``
and its dynamic sampling, ``rollout.filter_groups``.

Yu et al. 2025, arXiv 2503.14476, eq. 8.
"""

from grpo_train.algorithm.losses.parts import LossSpec, clipped_surrogate, per_token, token_ratio

DAPO = LossSpec(token_ratio, clipped_surrogate, per_token, counts_tokens=True)
