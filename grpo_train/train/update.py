"""From a part of the rollout buffer to the loss of one forward pass.

Nothing here depends on how the completions were made: recorded ones give the same gradient, however they are split
among micro-batches, pieces and ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from grpo_train.algorithm import PolicyLoss, policy_loss, rollout_correction
from grpo_train.config.schema import Config
from grpo_train.policy.logprobs import LogprobForward, TokenLogprobs, pad_values, split_by_tokens
from grpo_train.policy.transfer import ArrayTransfer, Moved
from grpo_train.train.buffer import RolloutBuffer, taking_part
from grpo_train.train.own_loss import find_loss


def microbatches(
    buffer: RolloutBuffer, update: int, config: Config, *, max_rows: int = 0, max_tokens: int = 0
) -> Iterator[list[list[int]]]:
    """Micro-batches of this rank's share of an update, each as pieces of at most ``max_rows`` completions and
    ``max_tokens`` tokens (0 = no limit).

    A piece is the list of its completions' indices in the buffer. A micro-batch without gradient has no pieces.
    """
    takes_part = taking_part(buffer, config)
    for microbatch in buffer.microbatches(update, config):
        rows = [i for i in microbatch if takes_part[i]]
        pieces = split_by_tokens([buffer.completions[i] for i in rows], max_tokens, max_rows)
        yield [[rows[i] for i in piece] for piece in pieces]


@dataclass(frozen=True)
class Piece:
    """Tensors of one forward pass, padded to the width T of its log-probabilities; (B, T) unless noted."""

    advantages: torch.Tensor
    """(B,)."""
    mask: torch.Tensor
    """1 for tokens in the loss."""
    rollout_logps: torch.Tensor
    """Of the sampler."""
    old_logps: torch.Tensor
    """Of the trainer before the buffer's first update."""
    ref_logps: torch.Tensor | None
    """Of the reference model."""
    weights: torch.Tensor | None
    """Importance weights of the rollout correction: (B, T) or (B, 1)."""


def make_piece(buffer: RolloutBuffer, rows: Sequence[int], tokens: TokenLogprobs, config: Config) -> Piece:
    """Pad what the loss needs of the completions ``rows``, whose log-probabilities are ``tokens``."""
    width_T, transfer = tokens.logps.shape[1], ArrayTransfer(tokens.logps.device)

    def padded(logps: Sequence[Sequence[float] | torch.Tensor]) -> Moved:
        return transfer.add(pad_values(logps, width_T))

    counted, advantages = (transfer.add(values[rows]) for values in (buffer.counted, buffer.advantages))
    sampled = padded([buffer.completions[i].logps for i in rows])
    old = padded([buffer.old_logps[i] for i in rows]) if buffer.old_logps else None
    reference = padded([buffer.ref_logps[i] for i in rows]) if buffer.ref_logps else None
    transfer.send()
    rollout_logps = sampled.tensor
    # strictly on-policy: the old policy is the current one
    old_logps = old.tensor if old is not None else tokens.logps.detach()
    mask = tokens.mask * counted.tensor.unsqueeze(1)
    return Piece(
        advantages=advantages.tensor,
        mask=mask,
        rollout_logps=rollout_logps,
        old_logps=old_logps,
        ref_logps=reference.tensor if reference is not None else None,
        weights=rollout_correction(
            old_logps,
            rollout_logps,
            mask,
            mode=config.algorithm.rollout_correction,
            cap=config.algorithm.rollout_correction_cap,
        ),
    )


def piece_loss(tokens: TokenLogprobs, piece: Piece, buffer: RolloutBuffer, update: int, config: Config) -> PolicyLoss:
    """A piece's contribution to the loss of update ``update``, normalized over the whole update."""
    algorithm = config.algorithm
    assert algorithm.epsilon is not None  # the config resolves its default
    return policy_loss(
        tokens.logps,
        piece.old_logps,
        piece.advantages,
        piece.mask,
        loss_type=find_loss(algorithm.loss_type),
        epsilon=algorithm.epsilon,
        epsilon_high=algorithm.epsilon_high,
        delta=algorithm.delta,
        max_completion_length=config.rollout.max_completion_length,
        num_completions=max(1, buffer.completions_per_update[update]),
        num_tokens=buffer.tokens_per_update[update],
        beta=algorithm.beta,
        ref_logps=piece.ref_logps,
        importance_weights=piece.weights,
        entropy=tokens.entropy if algorithm.entropy_coef else None,
        entropy_coef=algorithm.entropy_coef,
    )


def score_old_policy(
    forward: LogprobForward, buffer: RolloutBuffer, config: Config, max_rows: int
) -> list[torch.Tensor]:
    """Log-probabilities before the buffer's first update, (T_i,) per completion; zeros where the gradient is zero.

    A pass takes at most ``max_rows`` completions.
    """
    rows = np.flatnonzero(taking_part(buffer, config)).tolist()
    scored = forward.score([buffer.completions[i] for i in rows], max_rows)
    by_row = dict(zip(rows, scored, strict=True))
    return [by_row.get(i, torch.zeros(len(c.ids))) for i, c in enumerate(buffer.completions)]
