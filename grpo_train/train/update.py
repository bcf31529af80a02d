"""From a part of the rollout buffer to the gradient of one optimizer step.

micro-batches → (pieces within the token budget) → log-probabilities → loss → backward. Nothing here knows how the
completions came about, so that recorded ones give the same gradient, however they are split among micro-batches,
pieces and ranks.
"""

from __future__ import annotations

import torch

from grpo_train.algorithm import policy_loss, rollout_correction
from grpo_train.config.schema import Config
from grpo_train.policy.logprobs import LogprobForward, pad_values, split_by_tokens
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.gradients import GradientSum
from grpo_train.train.metrics import TokenSums


def accumulate_gradients(
    forward: LogprobForward, buffer: RolloutBuffer, update: int, gradients: GradientSum, config: Config
) -> TokenSums:
    """Add this rank's share of update number ``update`` of a pass to ``gradients``; returns what is to be logged."""
    part = buffer.part(update, config.algorithm.updates_per_buffer)
    size = config.train.microbatch_size * config.rollout.num_generations
    sums = TokenSums()
    for first in range(part.start, part.stop, size):
        gradients.start_microbatch()
        rows = [i for i in range(first, first + size) if _takes_part(buffer, i, config)]
        pieces = split_by_tokens([buffer.completions[i] for i in rows], config.train.token_budget)
        for number, piece in enumerate(pieces):
            _backward(
                forward,
                buffer,
                [rows[i] for i in piece],
                gradients,
                config,
                num_completions=max(1, buffer.completions_per_update[update]),
                num_tokens=buffer.tokens_per_update[update],
                last_piece=number == len(pieces) - 1,
                sums=sums,
            )
    return sums


def score_old_policy(forward: LogprobForward, buffer: RolloutBuffer, config: Config) -> list[torch.Tensor]:
    """Log-probabilities before the buffer's first update, (T_i,) a completion; zeros for those that take no part."""
    rows = [i for i in range(len(buffer.completions)) if _takes_part(buffer, i, config)]
    scored = forward.score([buffer.completions[i] for i in rows], config.train.tf_micro_batch)
    by_row = dict(zip(rows, scored, strict=True))
    return [by_row.get(i, torch.zeros(len(c.ids))) for i, c in enumerate(buffer.completions)]


def _takes_part(buffer: RolloutBuffer, i: int, config: Config) -> bool:
    """False for a completion whose gradient is exactly zero: it need not be computed, only counted."""
    if not config.train.skip_zero_advantages:
        return len(buffer.completions[i].ids) > 0
    moves = bool(buffer.advantages[i] != 0) or config.algorithm.beta > 0 or config.algorithm.entropy_coef > 0
    return moves and bool(buffer.counted[i]) and len(buffer.completions[i].ids) > 0


def _backward(
    forward: LogprobForward,
    buffer: RolloutBuffer,
    rows: list[int],
    gradients: GradientSum,
    config: Config,
    *,
    num_completions: int,
    num_tokens: float,
    last_piece: bool,
    sums: TokenSums,
) -> None:
    """One forward and backward."""
    algorithm = config.algorithm
    completions = [buffer.completions[i] for i in rows]
    tokens = forward(completions, entropy_gradient=algorithm.entropy_coef > 0)
    device, width_T = tokens.logps.device, tokens.logps.shape[1]
    mask = tokens.mask * buffer.counted[rows].to(device).unsqueeze(1)
    rollout_logps = pad_values([c.logps for c in completions], width_T, device)
    if buffer.old_logps:
        old_logps = pad_values([buffer.old_logps[i] for i in rows], width_T, device)
    else:
        old_logps = tokens.logps.detach()  # strictly on-policy: the old policy is this one
    weights = rollout_correction(
        old_logps, rollout_logps, mask, mode=algorithm.rollout_correction, cap=algorithm.rollout_correction_cap
    )
    assert algorithm.epsilon is not None  # the config resolves its default
    loss = policy_loss(
        tokens.logps,
        old_logps,
        buffer.advantages[rows].to(device),
        mask,
        loss_type=algorithm.loss_type,
        epsilon=algorithm.epsilon,
        epsilon_high=algorithm.epsilon_high,
        delta=algorithm.delta,
        max_completion_length=config.rollout.max_completion_length,
        num_completions=num_completions,
        num_tokens=num_tokens,
        beta=algorithm.beta,
        ref_logps=pad_values([buffer.ref_logps[i] for i in rows], width_T, device) if buffer.ref_logps else None,
        importance_weights=weights,
        entropy=tokens.entropy if algorithm.entropy_coef else None,
        entropy_coef=algorithm.entropy_coef,
    )
    gradients.backward(loss.loss, last_piece=last_piece)
    sums.add(loss, tokens, old_logps, rollout_logps, weights)
