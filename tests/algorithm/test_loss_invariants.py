"""Policy losses: invariants of any batch, clipping, KL and entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from grpo_train.algorithm import PolicyLoss, policy_loss
from grpo_train.algorithm.losses import LOSS_TYPES
from grpo_train.algorithm.losses.parts import token_ratio
from grpo_train.config.schema import LOSSES
from grpo_train.config.sections.algorithm import NO_DELTA
from tests.support.losses import TOLERANCE, close, kl_mean, share, tensor

# ---------------------------------------------------------------------------------------------------------- any batch


@dataclass(frozen=True)
class Case:
    """A random ragged batch and settings."""

    logps: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    entropy: torch.Tensor
    weights: torch.Tensor | None
    settings: dict[str, Any]

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of the whole batch, for its parts."""
        return {"num_completions": len(self.logps), "num_tokens": float(self.mask.sum())}

    def rows(self, index: Any) -> Case:
        parts = {key: getattr(self, key)[index] for key in ("logps", "old", "ref", "advantages", "mask", "entropy")}
        return replace(self, **parts, weights=None if self.weights is None else self.weights[index])

    def loss(self, **changes: Any) -> tuple[PolicyLoss, torch.Tensor, torch.Tensor]:
        """The loss and its gradients with respect to logps and entropy."""
        logps, entropy = self.logps.clone().requires_grad_(), self.entropy.clone().requires_grad_()
        settings = {"importance_weights": self.weights, "entropy": entropy, "ref_logps": self.ref, **self.settings}
        result = policy_loss(logps, self.old, self.advantages, self.mask, **{**settings, **changes})
        gradients = torch.autograd.grad(result.loss, (logps, entropy), allow_unused=True, materialize_grads=True)
        return result, *gradients


@st.composite
def cases(draw: st.DrawFn, *, on_policy: bool = False) -> Case:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, width = draw(st.integers(1, 7)), draw(st.integers(1, 6))
    spread = 0.0 if on_policy else draw(st.sampled_from([0.0, 0.01, 0.5, 3.0]))

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)

    logps = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 4
    lengths = torch.randint(0 if draw(st.booleans()) else 1, width + 1, (rows, 1), generator=generator)
    mask = (torch.arange(width) < lengths).long()
    if draw(st.booleans()):  # holes, as tokens of a tool's answer
        mask = mask * (torch.rand(rows, width, generator=generator) < 0.8)
    loss_type = draw(st.sampled_from(sorted(LOSS_TYPES)))
    epsilon, epsilon_high = draw(st.sampled_from([(0.2, None), (0.2, 0.28), (0.1, 0.6), (3e-4, 4e-4)]))
    settings: dict[str, Any] = {
        "loss_type": loss_type,
        "epsilon": epsilon,
        "epsilon_high": draw(st.sampled_from([5.0, 1.2])) if loss_type == "cispo" else epsilon_high,
        "delta": draw(st.sampled_from([None, 2.0, 4.0])),
        "max_completion_length": draw(st.integers(width, 20)),
    }
    if not on_policy:
        settings |= {"beta": draw(st.sampled_from([0.0, 0.04])), "entropy_coef": draw(st.sampled_from([0.0, 0.01]))}
    shape = draw(st.sampled_from([None, (rows, 1), (rows, width)])) if not on_policy else None
    return Case(
        logps=logps,
        old=logps + normal(spread),
        ref=logps + normal(0.5),
        advantages=normal(1.0)[:, 0],
        mask=mask,
        entropy=torch.rand(rows, width, generator=generator, dtype=torch.float64),
        weights=None if shape is None else torch.rand(shape, generator=generator, dtype=torch.float64) * 2,
        settings=settings,
    )


@given(cases(), st.data())
def test_any_split_gives_the_same_step(case: Case, data: st.DataObject) -> None:
    """Completions are assigned to parts at random; parts may be uneven or empty."""
    whole, gradient, entropy_gradient = case.loss()
    parts = data.draw(st.integers(1, 4))
    size = len(case.logps)
    owner = torch.tensor(data.draw(st.lists(st.integers(0, parts - 1), min_size=size, max_size=size)))
    for world_size in (1, parts):  # summed, or averaged over ranks
        loss, pieces, entropy_pieces = 0.0, torch.zeros_like(gradient), torch.zeros_like(gradient)
        for part in range(parts):
            mine = owner == part
            result, pieces[mine], entropy_pieces[mine] = case.rows(mine).loss(**case.counts, world_size=world_size)
            loss += result.loss.item()
        assert loss / world_size == pytest.approx(whole.loss.item(), abs=TOLERANCE, rel=TOLERANCE)
        close(pieces / world_size, gradient)
        close(entropy_pieces / world_size, entropy_gradient)


@given(cases(), st.integers(0, 3), st.sampled_from([7.0, -1e30, math.inf, -math.inf, math.nan]))
def test_padding_is_ignored(case: Case, extra: int, garbage: float) -> None:
    result, gradient, entropy_gradient = case.loss()
    assert (gradient[case.mask == 0] == 0).all()
    assert (entropy_gradient[case.mask == 0] == 0).all()

    def padded(values: torch.Tensor, fill: float) -> torch.Tensor:
        values = values.masked_fill(case.mask == 0, fill) if values.shape == case.mask.shape else values
        return torch.cat([values, values.new_full((len(values), extra), fill)], dim=1)

    fields = {key: padded(getattr(case, key), garbage) for key in ("logps", "old", "ref", "entropy")}
    weights = case.weights if case.weights is None or case.weights.shape[1] == 1 else padded(case.weights, garbage)
    other = replace(case, **fields, weights=weights, mask=padded(case.mask, 0))
    wider, wider_gradient, wider_entropy_gradient = other.loss()
    width = case.mask.shape[1]
    close(wider.loss, result.loss)
    assert kl_mean(wider) == pytest.approx(kl_mean(result), abs=TOLERANCE, rel=TOLERANCE)
    assert wider.per_token.isfinite().all()
    close(wider.per_token[:, :width], result.per_token)
    close(wider_gradient, torch.nn.functional.pad(gradient, (0, extra)))
    close(wider_entropy_gradient, torch.nn.functional.pad(entropy_gradient, (0, extra)))
    for name in ("clipped_low", "clipped_high"):
        assert not getattr(wider, name)[other.mask == 0].any()


@given(cases(on_policy=True))
def test_on_policy_gradient_is_the_policy_gradient(case: Case) -> None:
    kind, mask = case.settings["loss_type"], case.mask.double()
    completions, lengths = len(mask), mask.sum(dim=1, keepdim=True).clamp(min=1)
    scale = {
        "dr_grpo": 1 / (completions * case.settings["max_completion_length"]),
        "grpo": 1 / (completions * lengths),
        "gspo": 1 / (completions * lengths),
        "sapo": 1 / (completions * lengths),
    }.get(kind, 1 / max(float(mask.sum()), 1))
    result, gradient, _ = case.loss()
    close(gradient, -case.advantages.unsqueeze(1) * mask * scale)
    assert not (result.clipped_low | result.clipped_high).any()
    # The same tensor may be the old policy: it is a constant.
    logps = case.logps.clone().requires_grad_()
    policy_loss(logps, logps, case.advantages, case.mask, **case.settings).loss.backward()
    close(logps.grad, gradient)


@given(cases())
def test_masked_completion_still_counts(case: Case) -> None:
    """The tokens of truncated completions are masked; N still counts them."""
    kept = replace(case, mask=case.mask * (torch.arange(len(case.mask)) > 0).unsqueeze(1))
    result, gradient, _ = kept.loss()
    assert (gradient[0] == 0).all()
    rest = kept.rows(slice(1, None))
    without, rest_gradient, _ = rest.loss(num_completions=len(case.mask), num_tokens=float(kept.mask.sum()))
    close(result.loss, without.loss)
    close(gradient[1:], rest_gradient)


@given(cases())
def test_token_losses_match_plain_python(case: Case) -> None:
    """Plain Python, token by token."""
    kind, epsilon = case.settings["loss_type"], case.settings["epsilon"]
    high = epsilon if case.settings["epsilon_high"] is None else case.settings["epsilon_high"]
    delta, beta, coefficient = (case.settings[key] for key in ("delta", "beta", "entropy_coef"))
    tokens, completions, total, entropy = max(int(case.mask.sum()), 1), len(case.mask), 0.0, 0.0
    low_clipped = high_clipped = 0
    for i in range(completions):
        positions = [t for t in range(case.mask.shape[1]) if case.mask[i, t]]
        advantage = case.advantages[i].item()
        logs = {t: case.logps[i, t].item() - case.old[i, t].item() for t in positions}
        for t in positions:
            ratio = math.exp(sum(logs.values()) / len(logs) if kind == "gspo" else logs[t])
            if kind == "cispo":
                value = -min(ratio, high) * advantage * case.logps[i, t].item()
                high_clipped += ratio > high and advantage > 0
            elif kind == "sapo":
                temperature = 1.0 if advantage > 0 else 1.05
                value = -4 / temperature / (1 + math.exp(-temperature * (ratio - 1))) * advantage
            elif kind == "dppo":
                moved = math.exp(case.logps[i, t].item()) - math.exp(case.old[i, t].item())
                is_kept = moved <= high if advantage > 0 else moved >= -epsilon
                value = -min(ratio, 20.0) * advantage * case.logps[i, t].item() * is_kept
                low_clipped += not is_kept and advantage < 0
                high_clipped += not is_kept and advantage > 0
            else:
                first = min(ratio, delta or math.inf) * advantage
                value = -min(first, min(max(ratio, 1 - epsilon), 1 + high) * advantage)
                low_clipped += ratio < 1 - epsilon and advantage < 0
                high_clipped += ratio > 1 + high and advantage > 0
            if case.weights is not None:
                value *= case.weights.expand(case.mask.shape)[i, t].item()
            difference = case.ref[i, t].item() - case.logps[i, t].item()
            value += beta * (math.exp(difference) - difference - 1)
            total += value / {
                "dr_grpo": completions * case.settings["max_completion_length"],
                "grpo": completions * len(positions),
                "gspo": completions * len(positions),
                "sapo": completions * len(positions),
            }.get(kind, tokens)
            entropy += case.entropy[i, t].item() / tokens
    result, _, _ = case.loss()
    assert result.loss.item() == pytest.approx(total - coefficient * entropy, abs=1e-11, rel=1e-11)
    assert share(result.clipped_low, result) == pytest.approx(low_clipped / tokens)
    assert share(result.clipped_high, result) == pytest.approx(high_clipped / tokens)


# ------------------------------------------------------------------------------------------------------ clipping and KL


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss", "clipped"),
    [
        (0.25, 1, -1.28, "high"),  # exp(.25) = 1.284 is above 1.28
        (0.22, 1, -math.exp(0.22), ""),  # 1.246 is above 1.2, but not above 1.28
        (0.25, -1, math.exp(0.25), ""),  # no clipping when a worse action became more likely
        (-0.5, -1, 0.8, "low"),
        (-0.5, 1, -math.exp(-0.5), ""),
        (-0.22, -1, math.exp(-0.22), ""),  # .803
        (-0.25, -1, 0.8, "low"),  # .779 is below 1 - .2 and above 1 - .28
        (0.25, 0, 0, ""),
        (-0.5, 0, 0, ""),
    ],
)
def test_clip_range(log_ratio: float, advantage: float, loss: float, clipped: str) -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    for kind in ("dr_grpo", "grpo", "bnpo", "dapo", "gspo"):
        result = policy_loss(
            one * log_ratio, one * 0, one[0] * advantage, one,
            loss_type=kind, epsilon=0.2, epsilon_high=0.28, max_completion_length=1,
        )  # fmt: skip
        assert result.loss.item() == pytest.approx(loss)
        assert (bool(result.clipped_low), bool(result.clipped_high)) == (clipped == "low", clipped == "high")


@given(cases(), st.sampled_from([3.0, 10.0]))
def test_delta_bounds_every_token(case: Case, delta: float) -> None:
    assume(LOSS_TYPES[case.settings["loss_type"]].bounds == "range")
    changes = {"delta": delta, "importance_weights": None, "beta": 0.0, "entropy_coef": 0.0}
    result = case.loss(**changes)[0]
    assert (result.per_token <= delta * case.advantages.abs().unsqueeze(1) + TOLERANCE).all()
    free = case.loss(**{**changes, "delta": None})[0]
    assert (result.per_token <= free.per_token + TOLERANCE).all()
    inside = token_ratio(case.logps, case.old, case.mask).amax(dim=1) <= delta  # bounds the sequence ratio, too
    close(result.per_token[inside], free.per_token[inside])
    positive = case.advantages >= 0  # delta applies to negative advantages only
    close(result.per_token[positive], free.per_token[positive])


def test_config_accepts_every_loss() -> None:
    assert set(LOSSES) == set(LOSS_TYPES)
    assert set(NO_DELTA) == {name for name, loss in LOSS_TYPES.items() if loss.bounds != "range"}


@pytest.mark.parametrize("kind", LOSS_TYPES)
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("delta", [None, 4.0])
def test_overflowing_ratio_is_not_nan(kind: str, advantage: float, delta: float | None) -> None:
    logps = torch.tensor([[-0.1, -1.0]]).requires_grad_()
    result = policy_loss(
        logps, torch.tensor([[-300.0, -1.0]]), torch.tensor([advantage]), torch.ones(1, 2),
        loss_type=kind, epsilon=0.2, epsilon_high=1.5, delta=delta, max_completion_length=2,
    )  # fmt: skip
    result.loss.backward()
    assert result.loss.isfinite()
    assert logps.grad is not None
    assert logps.grad.isfinite().all()


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=20), st.floats(-20, 20))
def test_k3_is_not_negative(values: list[float], shift: float) -> None:
    logps = tensor([values])
    kl = golden_kl(logps, logps + shift)
    assert (kl >= 0).all()
    assert (kl[logps + shift == logps] == 0).all()
    if abs(shift) > 1e-3:
        assert (kl > 0).all()


def golden_kl(logps: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    mask, zero = torch.ones_like(logps), torch.zeros(len(logps))
    kl = policy_loss(logps, logps, zero, mask, loss_type="bnpo", epsilon=0.2, ref_logps=ref).kl_per_token
    assert kl is not None
    return kl


@given(st.integers(0, 2**31))
def test_k3_mean_is_the_kl_divergence(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, 1, 9, generator=generator, dtype=torch.float64).log_softmax(-1)
    close((p.exp() * golden_kl(p, q)).sum(), (p.exp() * (p - q)).sum())


@given(cases())
def test_kl_term_gradient(case: Case) -> None:
    """d k3 / d logp = 1 - exp(ref - logp), without importance weights."""
    with_kl, without = case.loss(beta=0.5), case.loss(beta=0.0)
    ones = replace(case, advantages=-torch.ones_like(case.advantages), old=case.logps, weights=None)
    weight = ones.loss(beta=0.0, entropy_coef=0.0, loss_type=kl_weight_type(case), epsilon_high=5.0, delta=None)[1]
    close(with_kl[1] - without[1], 0.5 * weight * (1 - torch.exp(case.ref - case.logps)), 1e-10)


def kl_weight_type(case: Case) -> str:
    """A loss whose on-policy gradient at A = -1 is the token's weight."""
    kind: str = case.settings["loss_type"]
    return {"gspo": "grpo", "sapo": "grpo", "cispo": "bnpo", "dppo": "bnpo"}.get(kind, kind)


@given(cases())
def test_entropy_bonus_is_a_token_mean(case: Case) -> None:
    with_bonus, without = case.loss(entropy_coef=0.3), case.loss(entropy_coef=0.0)
    mask = case.mask.double()
    mean = (case.entropy * mask).sum() / mask.sum().clamp(min=1)
    close(with_bonus[0].loss, without[0].loss - 0.3 * mean)
    close(with_bonus[2], -0.3 * mask / mask.sum().clamp(min=1))
    close(with_bonus[1], without[1])


def test_cispo_bounds_weights_and_keeps_gradients() -> None:
    logps = tensor([[-0.1, -0.1]]).requires_grad_()
    result = policy_loss(
        logps, tensor([[-4.0, -0.1]]), tensor([1.0]), torch.ones(1, 2), loss_type="cispo", epsilon=0.2, epsilon_high=5.0
    )  # fmt: skip
    result.loss.backward()
    assert logps.grad is not None
    close(logps.grad, tensor([[-2.5, -0.5]]))
    assert result.clipped_high.tolist() == [[True, False]]
