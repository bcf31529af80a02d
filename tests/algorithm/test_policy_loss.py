"""Policy losses: values computed twice by hand, values of other libraries' tests, errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.algorithm import PolicyLoss, group_advantages, policy_loss
from grpo_train.algorithm.losses.parts import sequence_ratio
from tests.support.losses import TOLERANCE, close, kl_mean, share, tensor

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "losses.json"

# Four completions, two prompts; zeros are padding. GRPO and Dr. GRPO differ in sign, so a wrong reduction fails.
MASK = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
OLD = [[-0.5, -1.0, -0.2, 0], [-2.0, -0.3, 0, 0], [-0.1, -0.7, -1.2, -0.4], [-0.9, 0, 0, 0]]
NEW = [[-0.4, -1.3, -0.2, 0], [-1.5, -0.35, 0, 0], [-0.15, -0.7, -0.8, -0.9], [-0.6, 0, 0, 0]]
REF = [[-0.5, -1.0, -0.3, 0], [-1.8, -0.3, 0, 0], [-0.2, -0.7, -1.0, -0.6], [-0.9, 0, 0, 0]]
REWARDS = [1.0, 0.0, 1.0, 0.5]
GRADIENT = [
    [-0.0172682955949, -0.0115752846982, -0.015625, 0],
    # The golden file has 0.0148629598238, off by 6.6e-11: the token is not clipped, so exp(-0.05) / 64 is exact.
    [0.0257612698547, math.exp(-0.05) / 64, 0, 0],
    [-0.0074314798799, -0.0078125, 0, -0.0047385207790],
    [0.0105457719342, 0, 0, 0],
]
LOSSES: dict[str, tuple[float, dict[str, Any]]] = {
    "dr_grpo: sum/(4*8), unscaled advantages": (-0.0226560794042999, {"loss_type": "dr_grpo"}),
    "grpo: mean over completions of token mean, unscaled advantages": (0.0695652118261624, {"loss_type": "grpo"}),
    "grpo with group std (ddof 1, +1e-4)": (0.1346270077160805, {"loss_type": "grpo", "scale": "group"}),
    "bnpo / dapo: token mean over the whole batch": (-0.0724994540937598, {"loss_type": "bnpo"}),
    "dapo, epsilon_high 0.28": (-0.0744994540937598, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "gspo, epsilon 3e-4 / 4e-4, mean over completions of token mean": (
        0.0637684907609797, {"loss_type": "gspo", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "cispo, ratio capped at 5.0 (TRL's convention: the bound itself), token mean": (
        -0.0157413455008502, {"loss_type": "cispo", "epsilon_high": 5.0},
    ),
    "cispo, ratio capped at 1.2, token mean": (0.0143241379624741, {"loss_type": "cispo", "epsilon_high": 1.2}),
    "dr_grpo + 0.04 * k3": (-0.0223907541961223, {"loss_type": "dr_grpo", "beta": 0.04}),
}  # fmt: skip
DPPO = {0.2: -0.015741345500850216, 0.1: -0.04557783945367562}
"""By verl's own function at 1dda039b9 (verl/trainer/ppo/core_algos.py), in float64; by the bound of a move."""
KL = 0.0212260166542082
GSPO_RATIOS = [0.9355069850316177, 1.2523227161918644, 0.9631944177208217, 1.3498588075760032]
CLIP_FRACTIONS = [0.0, 0.1]


def golden(rows: list[int] | None = None, scale: str = "none", **arguments: Any) -> tuple[PolicyLoss, torch.Tensor]:
    """Loss and gradient of the golden completions, or of some of them."""
    rows = [0, 1, 2, 3] if rows is None else rows
    logps = tensor(NEW)[rows].requires_grad_()
    advantages = group_advantages(tensor(REWARDS), 2, scale)[rows]
    chosen = {"loss_type": "dr_grpo", "epsilon": 0.2, "max_completion_length": 8, "ref_logps": tensor(REF)[rows]}
    result = policy_loss(logps, tensor(OLD)[rows], advantages, tensor(MASK)[rows], **{**chosen, **arguments})
    (gradient,) = torch.autograd.grad(result.loss, logps)
    return result, gradient


# -------------------------------------------------------------------------------------------------------------- golden


@pytest.mark.parametrize("name", LOSSES)
def test_golden_losses(name: str) -> None:
    value, arguments = LOSSES[name]
    assert golden(**arguments)[0].loss.item() == pytest.approx(value, abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("epsilon", DPPO)
def test_losses_are_those_of_verl(epsilon: float) -> None:
    found = golden(loss_type="dppo", epsilon=epsilon)[0].loss.item()
    assert found == pytest.approx(DPPO[epsilon], abs=TOLERANCE, rel=0)


def test_gradients_are_those_of_verl() -> None:
    """At 1dda039b9; verl adds 1e-8 to the lengths of sapo's completions."""
    found = golden(loss_type="dppo", epsilon=0.1)[1]
    close(
        found,
        tensor([
            [-0.055258545903782375, -0.0370409110340859, -0.05, 0], [0.08243606353500642, 0.047561471225035706, 0, 0],
            [-0.023780735612517853, -0.025, 0, -0.015163266492815837], [0.03374647018940008, 0, 0, 0],
        ]),
    )  # fmt: skip
    result, gated = golden(loss_type="sapo")
    assert result.loss.item() == pytest.approx(0.04542513555326927, rel=1e-6)
    theirs = tensor([
        [-0.04592168696027446, -0.030354793400818196, -0.04166666652777778, 0],
        [0.09195948901025279, 0.059412879548063395, 0, 0],
        [-0.01485412507923699, -0.0156249999609375, -0.021955093285523707, -0.00911949827715646],
        [0.08158274051777277, 0, 0, 0],
    ])  # fmt: skip
    torch.testing.assert_close(gated, theirs, rtol=1e-8, atol=1e-9)


def test_bnpo_is_dapo_with_another_default() -> None:
    assert torch.equal(golden(loss_type="dapo")[0].loss, golden(loss_type="bnpo")[0].loss)


def test_golden_gradient() -> None:
    close(golden()[1], tensor(GRADIENT))


def test_golden_kl() -> None:
    assert kl_mean(golden()[0]) == pytest.approx(KL, abs=TOLERANCE, rel=0)
    assert golden(ref_logps=None)[0].kl_per_token is None


def test_golden_sequence_ratios() -> None:
    close(sequence_ratio(tensor(NEW), tensor(OLD), tensor(MASK)).squeeze(1), tensor(GSPO_RATIOS))


def test_golden_clip_fractions() -> None:
    result = golden()[0]
    fractions = [share(result.clipped_low, result), share(result.clipped_high, result)]
    assert fractions == pytest.approx(CLIP_FRACTIONS)
    assert result.clipped_high.nonzero().tolist() == [[2, 2]]


def test_golden_world_size() -> None:
    """Ranks hold completions 0 and 1-3; the mean over ranks is the step's loss."""
    ranks = [golden(rows, num_completions=4, world_size=2) for rows in ([0], [1, 2, 3])]
    value = LOSSES["dr_grpo: sum/(4*8), unscaled advantages"][0]
    assert sum(result.loss.item() for result, _ in ranks) / 2 == pytest.approx(value, abs=TOLERANCE, rel=0)
    close(torch.cat([gradient for _, gradient in ranks]) / 2, tensor(GRADIENT))


if GOLDEN.is_file():  # absent beside a clone

    def test_constants_match_the_golden_file() -> None:
        file = json.loads(GOLDEN.read_text())
        given_, expected = file["input"], file["expected"]
        assert [given_[key] for key in ("mask", "logps", "old_logps", "ref_logps", "rewards")] == [
            MASK, NEW, OLD, REF, REWARDS,
        ]  # fmt: skip
        assert (given_["num_generations"], given_["max_completion_length"], given_["epsilon"]) == (2, 8, 0.2)
        for name, (value, _) in LOSSES.items():
            assert expected.pop(name) == value
        assert expected.pop("k3 KL to ref, token mean") == KL
        assert expected.pop("gspo ratios") == GSPO_RATIOS
        assert expected.pop("clip fraction (of 10 tokens) low / high") == CLIP_FRACTIONS
        assert torch.equal(tensor(expected.pop("dr_grpo gradient wrt logps")).sub(tensor(GRADIENT)).abs() < 1e-10,
                           torch.ones(4, 4, dtype=torch.bool))  # fmt: skip
        world = "world size 2, ranks hold completions 0 | 1-3: mean over ranks of sum*W/(N_global*L)"
        assert expected.pop(world) == LOSSES["dr_grpo: sum/(4*8), unscaled advantages"][0]
        elsewhere = {"advantages_unscaled", "ess_ratio token / sequence / sequence clipped to [0.8, 1.2]"}
        assert set(expected) == elsewhere, "a golden value of the losses that is not asserted here"


# ------------------------------------------------------------------------------------- values of other libraries' tests


def reduced(values: list[list[float]], mask: list[list[int]], **arguments: Any) -> float:
    """Reduce a matrix of per-token losses."""
    zeros = torch.zeros(len(mask), len(mask[0]), dtype=torch.float64)
    weights = tensor(values)
    minus = -torch.ones(len(mask), dtype=torch.float64)
    return policy_loss(
        zeros, zeros, minus, tensor(mask), epsilon=0.2, importance_weights=weights, **arguments
    ).loss.item()  # fmt: skip


def test_verl_masked_sum_over_four_ranks() -> None:
    """verl, tests/trainer/ppo/test_loss_aggregation_on_cpu.py: token-sum 13; 52 with dp 4."""
    values, mask = [[1, 2, 30], [4, 50, 6]], [[1, 1, 0], [1, 0, 1]]
    arguments = {"loss_type": "dr_grpo", "max_completion_length": 1, "num_completions": 1}
    assert reduced(values, mask, **arguments) == pytest.approx(13)
    assert reduced(values, mask, **arguments, world_size=4) == pytest.approx(52)


def test_openrlhf_token_and_sequence_mean() -> None:
    """OpenRLHF, tests/test_loss_aggregation.py: 22/6 as a whole and as the mean over two uneven ranks; 13/3."""
    values, mask = [[1, 2, 0], [3, 4, 5], [7, 0, 0]], [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert reduced(values, mask, loss_type="dapo") == pytest.approx(22 / 6)
    ranks = [
        reduced(values[rows], mask[rows], loss_type="dapo", num_completions=3, num_tokens=6, world_size=2)
        for rows in (slice(0, 2), slice(2, 3))
    ]
    assert sum(ranks) / 2 == pytest.approx(22 / 6)
    values, mask = [[1, 3, 9], [2, 4, 0], [8, 0, 0]], [[1, 1, 0], [1, 1, 0], [1, 0, 0]]
    assert reduced(values, mask, loss_type="grpo") == pytest.approx(13 / 3)


def test_torchforge_single_token() -> None:
    one = torch.ones(1, 1)
    assert policy_loss(one * 0, one * 0, one[0], one, loss_type="grpo", epsilon=0.2).loss.item() == -1


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "ppo"}, "unknown loss_type 'ppo'; known: dr_grpo, grpo, bnpo, dapo, gspo, cispo"),
        ({"loss_type": "cispo"}, "cispo requires epsilon_high, the bound of the ratio"),
        ({"delta": 1.2}, "delta 1.2 must be greater than the upper clip bound 1 \\+ 0.2"),
        ({"delta": 1.25, "epsilon_high": 0.28}, "delta 1.25 must be greater than the upper clip bound 1 \\+ 0.28"),
        ({"beta": 0.1, "ref_logps": None}, "beta is 0.1, which requires ref_logps"),
        ({"entropy_coef": 0.1}, "entropy_coef is 0.1, which requires entropy"),
        ({"max_completion_length": None}, "divides by the generation budget; pass max_completion_length"),
        ({"world_size": 2}, "with world_size > 1 a batch is not the whole step; pass num_completions"),
        ({"loss_type": "grpo", "world_size": 2}, "with world_size > 1 a batch is not the whole step"),
        ({"loss_type": "dapo", "num_completions": 8}, "dapo divides by the tokens of the whole step; pass num_tokens"),
        ({"loss_type": "bnpo", "num_completions": 4, "world_size": 2}, "bnpo divides by the tokens of the whole step"),
        (
            {"entropy_coef": 0.1, "entropy": tensor(MASK), "num_completions": 8},
            "the entropy bonus divides by the tokens",
        ),
        ({"ref_logps": tensor(REF)[:2]}, r"ref_logps has shape \(2, 4\), logps \(4, 4\)"),
        ({"entropy": tensor(REF)[:, :2]}, r"entropy has shape \(4, 2\), logps \(4, 4\)"),
    ],
)
def test_invalid_arguments_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        golden(**changes)


def test_broadcastable_shapes_are_errors() -> None:
    new, old, mask = tensor(NEW), tensor(OLD), tensor(MASK)
    arguments: dict[str, Any] = {"loss_type": "grpo", "epsilon": 0.2}
    with pytest.raises(ValueError, match=r"advantages have shape \(4, 1\), not \(4,\)"):
        policy_loss(new, old, tensor(REWARDS).unsqueeze(1), mask, **arguments)
    with pytest.raises(ValueError, match=r"old_logps has shape \(1, 4\), logps \(4, 4\)"):
        policy_loss(new, old[:1], tensor(REWARDS), mask, **arguments)
    with pytest.raises(ValueError, match=r"mask has shape \(4,\), logps \(4, 4\)"):
        policy_loss(new, old, tensor(REWARDS), mask[0], **arguments)


def test_unneeded_counts_are_optional() -> None:
    assert golden(loss_type="dapo", num_completions=4)[0].loss == golden(loss_type="dapo")[0].loss
    assert golden(loss_type="dapo", num_tokens=10, world_size=2)[0].loss == golden(loss_type="dapo")[0].loss * 2
