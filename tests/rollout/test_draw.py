"""The draw: the requested distribution, and the same tokens for every size of the vocabulary."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_train.rollout import draw
from grpo_train.rollout.draw import Draw

SETTINGS = [Draw(1.0), Draw(0.7), Draw(1.5), Draw(1.0, top_p=0.8), Draw(1.0, top_k=7), Draw(1.3, top_p=0.9, top_k=20)]


def g_statistic(counts: torch.Tensor, probabilities: torch.Tensor) -> tuple[float, int]:
    """The G statistic, and its degrees of freedom."""
    seen = probabilities > 0
    expected = probabilities[seen] * counts.sum()
    observed = counts[seen].double()
    terms = torch.where(observed > 0, observed * (observed / expected).log(), torch.zeros_like(expected))
    return 2 * float(terms.sum()), int(seen.sum()) - 1


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("by_block", [False, True])
def test_draws_have_the_distribution(setting: Draw, by_block: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A G-test of 200,000 draws of 50 tokens at 1e-4; expected probabilities are computed without the code tested."""
    if by_block:
        monkeypatch.setattr(draw, "SMALL_VOCABULARY", 0)
        monkeypatch.setattr(draw, "BLOCK", 8)
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(50, generator=generator, dtype=torch.float64)
    scores = (logits.float() / setting.temperature).double()
    kept = torch.ones(50, dtype=torch.bool)
    if setting.top_k:
        kept &= scores >= scores.sort(descending=True).values[setting.top_k - 1]
    if setting.top_p < 1:
        shares = scores.masked_fill(~kept, -math.inf).softmax(0)
        order = shares.argsort(descending=True)
        kept[order[shares[order].cumsum(0) - shares[order] >= setting.top_p]] = False
    probabilities = scores.masked_fill(~kept, -math.inf).softmax(0)
    uniform = torch.rand(200_000, generator=generator, dtype=torch.float64)
    token, logp = setting(logits.float().expand(200_000, -1), uniform)
    assert logp is not None
    counts = torch.bincount(token, minlength=50)
    assert not counts[~kept].any()
    statistic, freedom = g_statistic(counts, probabilities)
    # Wilson and Hilferty's approximation of the chi-square quantile at 1 - 1e-4, whose normal quantile is 3.719.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit
    torch.testing.assert_close(logp.double(), probabilities[token].log(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("vocabulary", [4097, 8192, 10_001])
def test_blocks_choose_the_token_of_one_cumulative_sum(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 5 * torch.randn(500, vocabulary, generator=generator)
    logits[:, ::3] = -math.inf
    probs = logits.softmax(-1)
    uniform = torch.rand(500, 1, dtype=torch.float64, generator=generator)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    expected = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    token, logp = Draw(1.0)(logits, uniform.squeeze(1))
    assert logp is not None
    torch.testing.assert_close(logp, probs.log().gather(1, token.unsqueeze(1)).squeeze(1), atol=1e-5, rtol=0)
    found = token.unsqueeze(1)
    same = found == expected
    # Where they differ, the uniform number lies at the boundary of two tokens, as exactly as float32 can tell.
    at = cumulative.gather(1, torch.minimum(found, expected))
    assert bool((same | ((at - uniform * cumulative[:, -1:]).abs() < 1e-6)).all())
    assert float(same.double().mean()) > 0.99


def test_cumulative_sums_by_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """With run.deterministic on a GPU, whose cumsum does not repeat bit for bit."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(200, 10_001, generator=generator)
    uniform = torch.rand(200, dtype=torch.float64, generator=generator)
    expected, _ = Draw(1.0)(logits, uniform)
    monkeypatch.setattr(draw, "_may_vary", lambda values: False)
    assert int((Draw(1.0)(logits, uniform)[0] != expected).sum()) <= 1


def test_damaged_logits_are_seen() -> None:
    """The caller reports NaN."""
    logits = torch.zeros(3, 5000)
    logits[0, 4321], logits[1, 7] = math.nan, math.inf
    token, logp = Draw(1.0)(logits, torch.full((3,), 0.5, dtype=torch.float64))
    assert logp is not None
    assert logp.isnan().tolist() == [True, True, False]
    assert bool(((token >= 0) & (token < 5000))[2])


@pytest.mark.parametrize("vocabulary", [5, 5000])
@pytest.mark.parametrize("uniform", [0.0, 0.4999, 0.5, 1 - 2**-53])
def test_tokens_of_probability_0_are_never_drawn(vocabulary: int, uniform: float) -> None:
    logits = torch.full((1, vocabulary), -math.inf)
    logits[0, [1, vocabulary - 2]] = 1.0
    token, logp = Draw(1.0)(logits, torch.tensor([uniform], dtype=torch.float64))
    assert logp is not None
    assert token.tolist() == [1 if uniform < 0.5 else vocabulary - 2]
    assert logp.tolist() == pytest.approx([math.log(0.5)])
