"""CISPO: REINFORCE with bounded importance weights; every token keeps its gradient.

    loss = 1 / sum_i |o_i| * sum_i sum_t -sg(min(rho_it, eps_high)) A_i logp_it        (sg = stop gradient)

``epsilon_high`` is the bound itself (TRL's convention; 5.0 is ScaleRL's choice and the config default).
``epsilon`` and ``delta`` are unused. open-instruct bounds by 1 + eps_high, verl clips to [1 - eps, 1 + eps].

MiniMax-M1 2025, arXiv 2506.13585, eq. 4-5; TRL's ``loss_type="cispo"``.
"""

from grpo_train.algorithm.losses.parts import LossSpec, per_token, reinforce_surrogate, token_ratio

CISPO = LossSpec(token_ratio, reinforce_surrogate, per_token, counts_tokens=True, bounds="ratio")
