"""Parity with TRL in float64: values and gradients on random ragged batches.

``GRPOTrainer._compute_loss`` runs on a stub with the attributes it reads. Advantages, importance ratios and the
truncation mask are lines within ``_generate_and_score_completions``; they are cut out of TRL's source and executed.
Importing TRL takes about ten seconds on a slow core, so only these tests do, and not their collection.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.algorithm import combine_rewards, group_advantages, overlong_penalty, policy_loss, rollout_correction
from grpo_train.algorithm.rollout_correction import MODES
from tests.support.trl import Accelerator, float64_default, trl, trl_lines

TOLERANCE = 1e-12
TRL_NAMES = {  # our name: TRL's loss_type, importance_sampling_level
    "dr_grpo": ("dr_grpo", "token"),
    "grpo": ("grpo", "token"),
    "bnpo": ("bnpo", "token"),
    "dapo": ("dapo", "token"),
    "gspo": ("grpo", "sequence"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "token"),
}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)


@dataclass(frozen=True)
class Case:
    """A random ragged batch and settings."""

    logps: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    entropy: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    loss_type: str
    epsilon: float
    epsilon_high: float | None
    delta: float | None
    beta: float
    entropy_coef: float
    corrected: bool
    budget: int

    def rows(self, index: Any) -> Case:
        names = ("logps", "old", "ref", "entropy", "advantages", "mask", "weights")
        return replace(self, **{name: getattr(self, name)[index] for name in names})


@st.composite
def cases(draw: st.DrawFn, parts: int = 1) -> Case:
    """``parts`` divides the number of completions."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, width = parts * draw(st.integers(1, 6)), draw(st.integers(1, 7))
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    if draw(st.booleans()):  # mask_truncated_completions: whole rows, perhaps all of them
        lengths = lengths * (torch.rand(rows, 1, generator=generator) < 0.6)
    mask = (torch.arange(width) < lengths).long()
    if draw(st.booleans()):  # tool_mask: holes
        mask = mask * (torch.rand(rows, width, generator=generator) < 0.8)
    loss_type = draw(st.sampled_from(sorted(TRL_NAMES)))
    epsilon, epsilon_high = draw(st.sampled_from([(0.2, None), (0.2, 0.28), (0.1, 0.5), (3e-4, 4e-4)]))
    logps = -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)

    return Case(
        logps=logps,
        old=logps + normal(draw(st.sampled_from([0.0, 1e-3, 0.3, 2.0]))),
        ref=logps + normal(0.5),
        entropy=normal(1.0).abs(),
        advantages=normal(1.0)[:, 0] * draw(st.sampled_from([1.0, 0.0, 5.0])),
        mask=mask,
        weights=normal(1.0).abs()[:, : draw(st.sampled_from([1, width]))],
        loss_type=loss_type,
        epsilon=epsilon,
        epsilon_high=draw(st.sampled_from([5.0, 1.1])) if loss_type == "cispo" else epsilon_high,
        delta=draw(st.sampled_from([None, 1.6, 4.0])),
        beta=draw(st.sampled_from([0.0, 0.04, 1.0])),
        entropy_coef=draw(st.sampled_from([0.0, 0.01])),
        corrected=draw(st.booleans()),
        budget=draw(st.integers(width, 3 * width)),
    )


@dataclass(frozen=True)
class Outcome:
    loss: torch.Tensor
    by_logps: torch.Tensor
    by_entropy: torch.Tensor
    metrics: dict[str, float]


def outcome(loss: torch.Tensor, logps: torch.Tensor, entropy: torch.Tensor, metrics: dict[str, float]) -> Outcome:
    gradients = torch.autograd.grad(loss, (logps, entropy), allow_unused=True, materialize_grads=True)
    return Outcome(loss.detach(), *gradients, metrics)


def trl_loss(case: Case, *, num_tokens: int | None = None, accumulation: int = 1, num_processes: int = 1) -> Outcome:
    """TRL's loss of one micro-batch; ``num_tokens`` of the whole step, by default of ``case``."""
    logps, entropy = case.logps.clone().requires_grad_(), case.entropy.clone().requires_grad_()
    loss_type, level = TRL_NAMES[case.loss_type]
    metrics: dict[str, list[float]] = defaultdict(list)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logps, entropy, None),
        accelerator=Accelerator(num_processes),
        model=SimpleNamespace(training=True),
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=case.epsilon,
        epsilon_high=case.epsilon if case.epsilon_high is None else case.epsilon_high,  # as its __init__ does
        beta=case.beta,
        entropy_coef=case.entropy_coef,
        _entropy_bonus_enabled=case.entropy_coef != 0,
        use_adaptive_entropy=False,
        max_completion_length=case.budget,
        current_gradient_accumulation_steps=accumulation,
        use_vllm=case.corrected,
        vllm_importance_sampling_correction=True,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        args=SimpleNamespace(
            delta=case.delta,
            use_bias_correction_kl=False,
            steps_per_generation=accumulation,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,  # its defaults
        ),
        _metrics={"train": metrics},
    )
    trainer.accelerator.sync_gradients = True
    prompts = torch.ones(len(case.mask), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": prompts,
        "completion_ids": torch.zeros_like(case.mask),
        "completion_mask": case.mask,
        "advantages": case.advantages,
        "old_per_token_logps": case.old,
        "ref_per_token_logps": case.ref,
        "importance_sampling_ratio": case.weights,
        "num_items_in_batch": case.mask.sum() if num_tokens is None else torch.tensor(num_tokens),
    }
    with float64_default():
        loss = trl().GRPOTrainer._compute_loss(trainer, None, inputs)
    return outcome(loss, logps, entropy, {name: values[-1] for name, values in metrics.items()})


def our_loss(case: Case, **counts: Any) -> Outcome:
    logps, entropy = case.logps.clone().requires_grad_(), case.entropy.clone().requires_grad_()
    result = policy_loss(
        logps, case.old, case.advantages, case.mask,
        loss_type=case.loss_type, epsilon=case.epsilon, epsilon_high=case.epsilon_high, delta=case.delta,
        max_completion_length=case.budget, beta=case.beta, ref_logps=case.ref,
        importance_weights=case.weights if case.corrected else None,
        entropy=entropy, entropy_coef=case.entropy_coef, **counts,
    )  # fmt: skip

    def share(tokens: torch.Tensor) -> float:
        return (tokens.sum() / result.mask.sum().clamp(min=1)).item()

    high = "cispo_clip_ratio" if case.loss_type == "cispo" else "clip_ratio/high_mean"
    assert result.kl_per_token is not None
    metrics = {
        "kl": share(result.kl_per_token),
        "clip_ratio/low_mean": share(result.clipped_low),
        high: share(result.clipped_high),
    }
    return outcome(result.loss, logps, entropy, metrics)


# -------------------------------------------------------------------------------------------------------------- losses


@settings(max_examples=600)
@given(cases())
def test_loss_and_gradient_match_trl(case: Case) -> None:
    theirs, ours = trl_loss(case), our_loss(case)
    close(ours.loss, theirs.loss)
    close(ours.by_logps, theirs.by_logps)
    close(ours.by_entropy, theirs.by_entropy)
    if case.mask.shape[1] == 1:
        return  # TRL's metrics take a single column for one value per completion
    for name in set(ours.metrics) & set(theirs.metrics):
        if case.loss_type == "gspo" and name.startswith("clip_ratio"):
            continue  # TRL's is a share of completions, ours of tokens
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], abs=1e-6)  # TRL's are float32


@pytest.mark.parametrize("loss_type", TRL_NAMES)
def test_all_options_together_match_trl(loss_type: str) -> None:
    """A fixed case with truncated rows, KL, delta, correction and bonus together."""
    generator = torch.Generator().manual_seed(7)
    logps, noise, ref, entropy, weights = -torch.rand(5, 8, 16, generator=generator, dtype=torch.float64)
    mask = (torch.arange(16) < torch.tensor([16, 3, 0, 9, 1, 16, 0, 12]).unsqueeze(1)).long()
    case = Case(
        logps, logps + 4 * (noise + 0.5), ref, -entropy, noise[:, 0] + 0.5, mask, -2 * weights, loss_type,
        epsilon=0.2, epsilon_high=1.5 if loss_type == "cispo" else 0.28, delta=3.0, beta=0.1, entropy_coef=0.05,
        corrected=True, budget=20,
    )  # fmt: skip
    theirs, ours = trl_loss(case), our_loss(case)
    assert theirs.by_logps.abs().sum() > 0.01
    close(ours.loss, theirs.loss)
    close(ours.by_logps, theirs.by_logps)
    close(ours.by_entropy, theirs.by_entropy)


SPLIT = st.sampled_from([(1, 2), (2, 1), (2, 2), (3, 1)])
"""(processes, micro-batches each)."""


@settings(max_examples=300)
@given(cases(parts=12), SPLIT)
def test_accumulated_step_matches_trl(case: Case, split: tuple[int, int]) -> None:
    """Equal micro-batches, gradients summed in a process and averaged over processes; without BNPO and the bonus."""
    if case.loss_type == "bnpo":
        case = replace(case, loss_type="dapo")
    case = replace(case, entropy_coef=0.0)
    world_size, accumulation = split
    size, tokens = len(case.mask), int(case.mask.sum())
    whole = our_loss(case)
    for ours in (False, True):
        loss, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(case.logps)
        for rows in torch.arange(size).chunk(world_size * accumulation):
            if ours:
                part = our_loss(
                    case.rows(rows), num_completions=len(case.mask), num_tokens=tokens, world_size=world_size
                )
            else:
                part = trl_loss(
                    case.rows(rows), num_tokens=tokens, accumulation=accumulation, num_processes=world_size
                )  # fmt: skip
            loss += part.loss / world_size
            gradient[rows] = part.by_logps / world_size
        close(loss, whole.loss)
        close(gradient, whole.by_logps)


def uneven(loss_type: str, entropy_coef: float = 0.0) -> Case:
    """Two completions of 1 and 4 tokens."""
    generator = torch.Generator().manual_seed(1)
    logps, old, ref, entropy = -torch.rand(4, 2, 4, generator=generator, dtype=torch.float64)
    return Case(
        logps, old, ref, -entropy, torch.tensor([1.0, -1.0], dtype=torch.float64),
        torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]), torch.ones(2, 1, dtype=torch.float64), loss_type,
        epsilon=0.2, epsilon_high=None, delta=None, beta=0.0, entropy_coef=entropy_coef, corrected=False, budget=4,
    )  # fmt: skip


@pytest.mark.parametrize("case", [uneven("bnpo"), uneven("dapo", entropy_coef=0.1)], ids=["bnpo", "entropy bonus"])
def test_trl_depends_on_the_split_where_ours_does_not(case: Case) -> None:
    """TRL's BNPO and entropy bonus are means over micro-batches, ours over the step; equal for a single batch."""
    whole = our_loss(case)
    close(whole.loss, trl_loss(case).loss)
    theirs = [trl_loss(case.rows([i]), num_tokens=5, accumulation=2).loss for i in (0, 1)]
    assert abs(sum(theirs) - whole.loss) > 1e-3
    close(sum(our_loss(case.rows([i]), num_completions=2, num_tokens=5).loss for i in (0, 1)), whole.loss)


# --------------------------------------------------------------------------- lines of _generate_and_score_completions


def trl_advantages(rewards: torch.Tensor, weights: list[float], num_generations: int, scale: str) -> torch.Tensor:
    """(B, functions) rewards -> (B,) advantages, by TRL's code."""
    trainer = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize",
        scale_rewards=scale,
        reward_weights=torch.tensor(weights, dtype=torch.float64),
    )
    left = trl_lines(
        "unscorable_mask = torch.isnan(rewards_per_func)", "# Slice to keep only the local part of the data",
        self=trainer, rewards_per_func=rewards, num_generations=num_generations, device="cpu",
    )  # fmt: skip
    advantages: torch.Tensor = left["advantages"]
    return advantages


@settings(max_examples=300)
@given(st.data(), st.integers(2, 5), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["none", "group", "batch"]))
def test_advantages_match_trl(data: st.DataObject, generations: int, groups: int, functions: int, scale: str) -> None:
    value = st.one_of(st.sampled_from([0.0, 1.0, 0.1, -0.5, math.nan]), st.floats(-5, 5))
    size = generations * groups
    rewards = torch.tensor(
        data.draw(st.lists(st.lists(value, min_size=functions, max_size=functions), min_size=size, max_size=size)),
        dtype=torch.float64,
    )
    weights = data.draw(st.lists(st.sampled_from([1.0, 0.5, 2.0]), min_size=functions, max_size=functions))
    names = [f"function {k}" for k in range(functions)]
    combined = combine_rewards(
        dict(zip(names, rewards.T, strict=True)), dict(zip(names, weights, strict=True))
    )  # fmt: skip
    ours = group_advantages(combined, generations, scale)
    theirs = trl_advantages(rewards, weights, generations, scale)
    # Equal rewards: TRL divides the rounding of their mean by 1e-4; ours are 0.
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


@settings(max_examples=200)
@given(st.integers(0, 2**31), st.sampled_from(MODES[1:]), st.floats(0.2, 5), st.sampled_from([0.0, 0.3, 30.0]))
def test_rollout_correction_matches_trl(seed: int, mode: str, cap: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    old, noise = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    mask = (torch.arange(7) < torch.randint(0, 8, (5, 1), generator=generator)).long()
    trainer = SimpleNamespace(
        vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_clip_max=cap,
    )  # fmt: skip
    left = trl_lines(
        "per_token_logps_diff = (old_per_token_logps - sampling_per_token_logps) * mask",
        "# Compute the per-token log probabilities for the reference model",
        self=trainer, mask=mask, old_per_token_logps=old, sampling_per_token_logps=old + spread * noise,
    )  # fmt: skip
    ours = rollout_correction(old, old + spread * noise, mask, mode=mode, cap=cap)
    assert ours is not None
    close(ours, left["vllm_importance_sampling_ratio"])


def test_trl_masks_truncated_completions() -> None:
    """Truncated rows leave the mask and thereby the token count; the number of completions stays B."""
    ids = [[5, 6, 7], [5, 2], [5, 6, 7, 8]]  # 2 is end of sequence
    trainer = SimpleNamespace(
        mask_truncated_completions=True, eos_token_ids=[2], _tokenizer=SimpleNamespace(pad_token_id=0),
        accelerator=Accelerator(1),
    )  # fmt: skip
    left = trl_lines(
        "if self.mask_truncated_completions:", "# Concatenate prompt_mask with completion_mask",
        self=trainer, completion_ids_list=ids, device="cpu", tool_mask=None,
        completion_mask=torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]),
    )  # fmt: skip
    assert left["completion_mask"].tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert left["num_items_in_batch"] == 2


@given(st.lists(st.integers(0, 60), min_size=1), st.integers(2, 40), st.data())
def test_overlong_penalty_matches_trl(lengths: list[int], budget: int, data: st.DataObject) -> None:
    from trl.rewards import get_soft_overlong_punishment

    buffer = data.draw(st.integers(1, budget - 1))
    theirs = get_soft_overlong_punishment(budget, buffer)(completion_ids=[[1] * length for length in lengths])
    close(overlong_penalty(torch.tensor(lengths), budget, buffer), torch.tensor(theirs, dtype=torch.float64))
