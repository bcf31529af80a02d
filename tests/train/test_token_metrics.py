"""Token metrics of hand-made tensors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
import torch

from grpo_train.algorithm import PolicyLoss
from grpo_train.policy.logprobs import TokenLogprobs
from grpo_train.train.token_metrics import TokenSums, token_metrics
from grpo_train.train.update import Piece
from tests.train.test_metrics_of_runs import assert_logged

MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
NOW = torch.tensor([[-0.5, -1.0, -2.0, 9.0], [-0.2, -0.3, 9.0, 9.0], [9.0] * 4])
OLD = torch.tensor([[-0.6, -1.0, -1.5, 8.0], [-0.2, -0.8, 8.0, 8.0], [8.0] * 4])
SAMPLED = torch.tensor([[-0.5, -1.2, -1.5, 7.0], [-0.3, -0.8, 7.0, 7.0], [7.0] * 4])
"""Three completions with three, two and no counted tokens. Values outside the mask must be ignored."""


def parts_of(weights: torch.Tensor | None = None, ranks: int = 1) -> list[TokenSums]:
    """Two forward passes per rank: 2 x 5 tokens, 6 of them clipped low, 2 high; losses 0.25 and -1."""
    parts = []
    for _ in range(ranks):
        sums = TokenSums()
        for loss in (0.25, -1.0):
            low, high = MASK.bool() & (torch.tensor([0, 1, 1, 1]) > 0), MASK.bool() & (MASK.cumsum(dim=1) == 3)
            kl = torch.full(MASK.shape, 0.3) * MASK
            policy_loss = PolicyLoss(torch.tensor(loss), MASK * 0.0, low, high, kl, MASK.float())
            entropy = torch.tensor([[1.0, 2.0, 3.0, 50.0], [4.0, 5.0, 50.0, 50.0], [50.0] * 4])
            piece = Piece(torch.zeros(3), MASK, SAMPLED, OLD, None, weights)
            sums.add(policy_loss, TokenLogprobs(NOW, entropy, MASK), piece)
        parts.append(sums.collect())
    return parts


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_become_means_over_tokens(ranks: int) -> None:
    """The loss is already normalized; everything else is per token, over all forward passes and ranks."""
    line, ratios = token_metrics(parts_of(ranks=ranks), cap=2.0)
    assert line["loss"] == -0.75 * ranks
    assert line["entropy"] == pytest.approx(3.0)
    assert line["kl"] == pytest.approx(0.3)
    assert line["clip_ratio/low_mean"] == pytest.approx(0.6)
    assert line["clip_ratio/high_mean"] == pytest.approx(0.2)
    assert line["clip_ratio/region_mean"] == pytest.approx(0.8)
    assert ratios["tokens"] == 10 * ranks
    assert "mismatch/correction_mean" not in line


@pytest.mark.parametrize("cap", [1.05, 2.0])
def test_ratios_of_tokens_and_sequences(cap: float) -> None:
    line, ratios = token_metrics(parts_of(ranks=2), cap=cap)
    now, old = [[0.0, 0.2, -0.5], [0.1, 0.5]], [-0.1, 0.2, 0.0, 0.1, 0.0]

    def ess(logs: Sequence[float], low: float = 0.0, high: float = math.inf) -> float:
        weights = [min(max(math.exp(value), low), high) for value in logs]
        return sum(weights) ** 2 / (len(weights) * sum(weight**2 for weight in weights))

    tokens, sequences = [*now[0], *now[1]], [math.fsum(values) for values in now]
    expected = {
        "ess/token": ess(tokens),
        "ess/sequence": ess(sequences),
        "ess/token_clipped": ess(tokens, 1 / cap, cap),
        "ess/sequence_clipped": ess(sequences, 1 / cap, cap),
        "mismatch/kl": statistics.fmean(math.exp(value) - value - 1 for value in old),
        "mismatch/ratio_mean": statistics.fmean(map(math.exp, old)),
        "mismatch/ratio_min": math.exp(-0.1),
        "mismatch/ratio_max": math.exp(0.2),
        "mismatch/outside_0.9_1.1": 2 / 5,  # exp(-0.1) is 0.905
    }
    assert_logged(line, expected)
    assert_logged(
        ratios,
        {
            "ratio/mean": statistics.fmean(map(math.exp, tokens)),
            "ratio/min": math.exp(-0.5),
            "ratio/max": math.exp(0.5),
            "ratio/outside_0.9_1.1": 4 / 5,
            "logp_difference/mean": 0.08,
            "logp_difference/max": 0.2,
            **expected,
        },
    )


def test_correction_weights_are_averaged_over_tokens() -> None:
    per_token = torch.tensor([[1.0, 2.0, 3.0, 70.0], [4.0, 5.0, 70.0, 70.0], [70.0] * 4])
    per_sequence = torch.tensor([[1.0], [2.0], [70.0]])
    for weights, mean in ((per_token, 3.0), (per_sequence, 7 / 5)):
        assert token_metrics(parts_of(weights, ranks=2), cap=2.0)[0]["mismatch/correction_mean"] == pytest.approx(mean)


def test_without_tokens_only_loss_and_kl() -> None:
    for parts in ([TokenSums()], [TokenSums().collect(), TokenSums().collect()]):
        assert token_metrics(parts, cap=2.0) == ({"loss": 0.0, "kl": 0.0}, {"tokens": 0.0})


def test_a_rank_without_tokens_adds_nothing() -> None:
    assert token_metrics([TokenSums(), *parts_of()], cap=2.0) == token_metrics(parts_of(), cap=2.0)
