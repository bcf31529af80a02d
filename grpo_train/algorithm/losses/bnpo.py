"""BNPO: the clipped surrogate, averaged over the tokens of the batch.

    loss = 1 / sum_i |o_i| * sum_i sum_t -min(rho_it A_i, clip(rho_it, 1 - eps, 1 + eps_high) A_i)

The batch is the whole optimizer step, over all micro-batches and ranks, which makes it DAPO's token mean. TRL's
``bnpo`` divides by the tokens of the local micro-batch, so its gradient depends on how the step is split (equal to ours
where a step is one micro-batch on one process).

Xiao et al. 2025, arXiv 2506.02864; TRL's ``loss_type="bnpo"`` (``trl/trainer/grpo_trainer.py``).
"""

from grpo_train.algorithm.losses.parts import LossSpec, clipped_surrogate, per_token, token_ratio

BNPO = LossSpec(token_ratio, clipped_surrogate, per_token, counts_tokens=True)
