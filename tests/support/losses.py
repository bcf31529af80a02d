"""Policy losses in float64: tensors, their comparison, and means over completion tokens."""

from __future__ import annotations

from typing import Any

import torch

from grpo_train.algorithm import PolicyLoss

TOLERANCE = 1e-12


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def share(tokens: torch.Tensor, result: PolicyLoss) -> float:
    """Share of the completion tokens."""
    return (tokens.sum() / result.mask.sum().clamp(min=1)).item()


def kl_mean(result: PolicyLoss) -> float:
    """Token mean of the KL estimate."""
    assert result.kl_per_token is not None
    return share(result.kl_per_token, result)
