"""Importance weights from the sampler's probabilities to the trainer's."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_train.algorithm import policy_loss, rollout_correction

# p / q per token: 2, 1/4, 4; in the second completion 3 and padding to ignore. As sequences: 2 and 3.
P = torch.tensor([[0.8, 0.1, 0.4], [0.6, math.nan, math.inf]], dtype=torch.float64)
Q = torch.tensor([[0.4, 0.4, 0.1], [0.2, 0.5, math.nan]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_truncate", [[2, 0.25, 2.5], [2.5, 1, 1]]),
        ("token_mask", [[2, 0.25, 0], [0, 1, 1]]),
        ("sequence_truncate", [[2], [2.5]]),
        ("sequence_mask", [[2], [0]]),
    ],
)
def test_weights_by_hand(mode: str, expected: list[list[float]]) -> None:
    weights = rollout_correction(P.log().requires_grad_(), Q.log(), MASK, mode=mode, cap=2.5)
    assert weights is not None
    assert not weights.requires_grad
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_equal_policies_have_weight_one(mode: str) -> None:
    logps = -torch.rand(3, 5, dtype=torch.float64)
    weights = rollout_correction(logps, logps, torch.ones(3, 5), mode=mode, cap=2.0)
    assert weights is not None
    assert (weights == 1).all()


def test_overflowing_ratio_is_capped_or_rejected() -> None:
    far = (torch.zeros(1, 1), torch.full((1, 1), -1e4), torch.ones(1, 1))
    assert rollout_correction(*far, mode="sequence_truncate", cap=2.0) == 2
    assert rollout_correction(*far, mode="token_mask", cap=2.0) == 0


def test_none_and_unknown_modes() -> None:
    assert rollout_correction(P, Q, MASK, mode="none", cap=2.0) is None
    with pytest.raises(ValueError, match="unknown rollout correction 'tis'; known: none, token_truncate"):
        rollout_correction(P, Q, MASK, mode="tis", cap=2.0)


def test_weights_give_the_trained_policys_gradient() -> None:
    """Exact over a vocabulary of 5: weighting samples from q by p/q gives the policy gradient of p."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    rewards = torch.randn(5, generator=generator, dtype=torch.float64)
    q = torch.randn(5, generator=generator, dtype=torch.float64).softmax(0)
    logps = logits.log_softmax(0).unsqueeze(1)
    (wanted,) = torch.autograd.grad(-(logits.softmax(0) * rewards).sum(), logits)

    weights = rollout_correction(
        logps.detach(), q.log().unsqueeze(1), torch.ones(5, 1), mode="token_truncate", cap=math.inf
    )
    assert weights is not None
    loss = policy_loss(
        logps, logps.detach(), rewards, torch.ones(5, 1), loss_type="bnpo", epsilon=0.2, num_tokens=1,
        importance_weights=weights * q.unsqueeze(1),
    ).loss  # fmt: skip
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=0)
