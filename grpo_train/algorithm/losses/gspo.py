"""GSPO: one importance ratio per completion, clipped as a whole.

    s_i = exp(1 / |o_i| * sum_t (logp_it - old_logp_it))
    loss = 1 / N * sum_i -min(s_i A_i, clip(s_i, 1 - eps, 1 + eps_high) A_i)

The ratio is a geometric mean over tokens and varies far less than a token's ratio. Its clip range is about a thousandth
of PPO's; the config defaults are the paper's 3e-4 and 4e-4.

Zheng et al. 2025, arXiv 2507.18071, eq. 5-7; TRL: ``importance_sampling_level="sequence"``, ``loss_type="grpo"``.
"""

from grpo_train.algorithm.losses.parts import LossSpec, clipped_surrogate, per_completion, sequence_ratio

GSPO = LossSpec(sequence_ratio, clipped_surrogate, per_completion)
