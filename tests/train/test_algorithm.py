"""Advantages and the loss, against values computed twice by hand, and what must not change them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.algorithm import group_advantages, policy_loss

# Four completions, two prompts; zeros are padding. GRPO and Dr. GRPO differ in sign here, so that a wrong reduction
# cannot pass.
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
OLD = [[-0.5, -1.0, -0.2, 0], [-2.0, -0.3, 0, 0], [-0.1, -0.7, -1.2, -0.4], [-0.9, 0, 0, 0]]
NEW = [[-0.4, -1.3, -0.2, 0], [-1.5, -0.35, 0, 0], [-0.15, -0.7, -0.8, -0.9], [-0.6, 0, 0, 0]]
REWARDS = [1.0, 0.0, 1.0, 0.5]
LOSS = -0.0226560794042999
GRADIENT = [
    [-0.0172682955949, -0.0115752846982, -0.015625, 0],
    [0.0257612698547, 0.0148629597578, 0, 0],  # the second is exp(-0.05) / 64
    [-0.0074314798799, -0.0078125, 0, -0.0047385207790],
    [0.0105457719342, 0, 0, 0],
]


def tensor(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_of(rows: list[int], num_completions: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of some of the completions, in the normaliser of the whole step."""
    logps = tensor(NEW)[rows].requires_grad_()
    advantages = group_advantages(torch.tensor(REWARDS, dtype=torch.float64), 2)[rows]
    result = policy_loss(
        logps, tensor(OLD)[rows], advantages, MASK[rows], epsilon=0.2, max_completion_length=8,
        num_completions=num_completions,
    )  # fmt: skip
    result.loss.backward()
    assert logps.grad is not None
    return result.loss.detach(), logps.grad


def test_golden_loss_and_gradient() -> None:
    loss, gradient = loss_of([0, 1, 2, 3])
    assert loss.item() == pytest.approx(LOSS, abs=1e-12)
    torch.testing.assert_close(gradient, tensor(GRADIENT), atol=1e-12, rtol=0)


def test_golden_advantages() -> None:
    torch.testing.assert_close(group_advantages(torch.tensor(REWARDS), 2), torch.tensor([0.5, -0.5, 0.25, -0.25]))


def test_golden_clip_counts() -> None:
    advantages = torch.tensor([0.5, -0.5, 0.25, -0.25], dtype=torch.float64)
    result = policy_loss(tensor(NEW), tensor(OLD), advantages, MASK, epsilon=0.2, max_completion_length=8)
    assert (result.clipped_low.item(), result.clipped_high.item()) == (0, 1)


@pytest.mark.parametrize("parts", [[[0], [1, 2, 3]], [[0, 1], [2, 3]], [[3], [2], [1], [0]]])
def test_the_sum_over_ranks_or_micro_batches_is_the_step(parts: list[list[int]]) -> None:
    assert sum(loss_of(rows, 4)[0].item() for rows in parts) == pytest.approx(LOSS, abs=1e-12)


def test_padding_has_no_gradient_and_no_say() -> None:
    _, gradient = loss_of([0, 1, 2, 3])
    assert (gradient[MASK == 0] == 0).all()


def test_epsilon_high_widens_the_upper_side_only() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    args = {"epsilon": 0.2, "epsilon_high": 0.28, "max_completion_length": 1}
    assert policy_loss(one * 0.25, one * 0, one[0], one, **args).loss.item() == pytest.approx(-1.28)
    assert policy_loss(one * -0.5, one * 0, -one[0], one, **args).loss.item() == pytest.approx(0.8)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8), st.integers(2, 5))
def test_each_group_sums_to_zero(values: list[float], generations: int) -> None:
    rewards = torch.tensor([value * (k + 1) for value in values for k in range(generations)], dtype=torch.float64)
    groups = group_advantages(rewards, generations).view(-1, generations)
    torch.testing.assert_close(groups.sum(dim=1), torch.zeros(len(values), dtype=torch.float64), atol=1e-9, rtol=0)


def test_rewards_that_fill_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rewards are no whole number of groups of 2"):
        group_advantages(torch.zeros(5), 2)


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 3))
def test_on_policy_the_gradient_is_the_plain_policy_gradient(seed: int, groups: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logps = -torch.rand(groups * 2, 5, generator=generator, dtype=torch.float64)
    advantages = group_advantages(torch.rand(groups * 2, generator=generator, dtype=torch.float64), 2)
    mask = (torch.rand(groups * 2, 5, generator=generator) < 0.7).long()
    leaf = logps.clone().requires_grad_()
    policy_loss(leaf, logps, advantages, mask, epsilon=0.2, max_completion_length=7).loss.backward()
    torch.testing.assert_close(leaf.grad, -advantages.unsqueeze(1) * mask / (groups * 2 * 7))
