"""Health records of a step's metrics."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_train.algorithm import GradientNoiseScale
from grpo_train.config import load_config
from grpo_train.train.health import health
from tests.support.engine import config_text

WELL: dict[str, Any] = {
    "loss": 0.02, "reward": 1.0, "grad_norm": 0.1, "ess/token": 0.99, "ess/sequence": 0.2, "mismatch/kl": 1e-5,
    "mismatch/outside_0.9_1.1": 0.3, "frac_reward_zero_std": 0.25, "groups/all_correct": 0.25, "groups/all_wrong": 0.0,
    "groups/all_equal": 0.0, "groups/unscored": 0.0, "completions/clipped_ratio": 0.1,
}  # fmt: skip

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = {
    "nothing stands out": ({}, {}, []),
    "NaN": (
        {"grad_norm": float("nan")},
        {},
        [
            (
                "alarm",
                "gradient_not_finite",
                "the gradient is not finite; the update was skipped. Try a lower learning rate",
            )
        ],
    ),
    "no reward": (
        {"groups/unscored": 0.5},
        {},
        [("alarm", "unscored_groups", "no reward function applied to 50 % of the groups")],
    ),
    "all groups unscored": (
        {"groups/unscored": 1.0, "frac_reward_zero_std": 1.0, "groups/all_correct": 0.0},
        {},
        [
            ("alarm", "unscored_groups", "no reward function applied to 100 % of the groups"),
            ("warning", "dead_groups", "100 % of the groups carry no signal"),
        ],
    ),
    "off-policy": (
        {"ess/token": 0.4},
        {},
        [
            (
                "warning",
                "low_ess",
                "effective sample size is 40 % of the tokens: the policy has drifted from the sampler",
            )
        ],
    ),
    "far off-policy": (
        {"ess/token": 0.2},
        {},
        [("alarm", "low_ess", "effective sample size is 20 % of the tokens: the policy has drifted from the sampler")],
    ),
    "sequence weights": (
        {},
        {"algorithm__rollout_correction": "sequence_truncate"},
        [
            (
                "alarm",
                "low_ess",
                "effective sample size is 20 % of the sequences: the policy has drifted from the sampler",
            )
        ],
    ),
    "hard-coded answers": (
        {"hacking/hardcoded": 0.3, "hacking/multiple_answers": 0.1},
        {},
        [
            (
                "warning",
                "hardcoded_answers",
                "30 % of the completions pass the visible tests and fail the hidden ones: hard-coded answers?",
            )
        ],
    ),
    "attack on the sandbox": (
        {"sandbox/denied_socket": 0.02, "sandbox/denied_process": 0.5, "hacking/canary": 0.01},
        {},
        [
            (
                "alarm",
                "sandbox_leak",
                "a program's output contains the secret canary: the sandbox leaks. Stop the run",
            ),
            (
                "warning",
                "sandbox_probing",
                "programs are probing the sandbox (0.5 denied process attempts per program)",
            ),
        ],
    ),
    "weak sandbox": (
        {"sandbox/isolation": "medium", "completions/clipped_ratio": 0.5},
        {},
        [
            (
                "alarm",
                "weak_sandbox",
                "programs run in a medium sandbox and can read your files (sandbox.allow_weak)",
            ),
            (
                "warning",
                "truncated_completions",
                "50 % of the completions are truncated; raise rollout.max_completion_length",
            ),
        ],
    ),
    "strong sandbox": ({"sandbox/isolation": "strong"}, {}, []),
    "illegal moves": (
        {"self_play/invalid_rate": 0.4},
        {},
        [("warning", "illegal_moves", "40 % of the games end with an illegal move")],
    ),
    "invalid programs of the code game": (
        {"code_game/valid": 0.1},
        {},
        [
            (
                "warning",
                "invalid_programs",
                "only 10 % of the programs follow the game's rules; see the reasons in the rollouts",
            )
        ],
    ),
    "self-play without reasoning": (
        {"self_play/no_reasoning": 0.9, "self_play/same_opening": 0.95},
        {},
        [
            ("warning", "no_reasoning", "90 % of the turns have no reasoning: the policy is unlearning it"),
            (
                "warning",
                "same_opening",
                "95 % of the games start with the same moves: little exploration. Try a lower learning rate",
            ),
        ],
    ),
    "a bare board needs no reasoning": ({"self_play/no_reasoning": 1.0}, {"task__template": "compact"}, []),
    "mismatch": (
        {"mismatch/kl": 0.02},
        {},
        [
            (
                "warning",
                "sampler_mismatch",
                "sampler and trainer disagree (KL 0.02, 30 % of tokens differ by over 10 %); set "
                "algorithm.rollout_correction to correct for it",
            )
        ],
    ),
    "truncated sampling disagrees by design": (
        {"mismatch/kl": 0.02},
        {"rollout__top_p": 0.9, "algorithm__rollout_correction": "token_truncate"},
        [],
    ),
    "dead groups": (
        {"frac_reward_zero_std": 0.75, "groups/all_correct": 0.5, "groups/all_wrong": 0.25},
        {},
        [("info", "dead_groups", "75 % of the groups carry no signal (50 % all correct, 25 % all wrong)")],
    ),
    "all wrong": (
        {"frac_reward_zero_std": 0.75, "groups/all_correct": 0.25, "groups/all_wrong": 0.5},
        {},
        [("warning", "dead_groups", "75 % of the groups carry no signal (25 % all correct, 50 % all wrong)")],
    ),
    "a collapse": (
        {
            "frac_reward_zero_std": 0.999,
            "groups/all_correct": 0.0,
            "groups/all_wrong": 0.999,
            "completions/clipped_ratio": 1.0,
        },
        {},
        [
            ("warning", "dead_groups", ">99 % of the groups carry no signal (>99 % all wrong)"),
            (
                "warning",
                "truncated_completions",
                "100 % of the completions are truncated; read them: a higher limit does not help a policy that no "
                "longer ends its answers",
            ),
        ],
    ),
    "truncation": (
        {"completions/clipped_ratio": 0.3},
        {},
        [
            (
                "warning",
                "truncated_completions",
                "30 % of the completions are truncated; raise rollout.max_completion_length",
            )
        ],
    ),
    "loss near zero": (
        {"loss": 1e-5},
        {},
        [("info", "loss_near_zero", "a loss near zero is expected: on-policy, only its gradient matters")],
    ),
    "loss near zero, off-policy": ({"loss": 1e-5}, {"algorithm__num_iterations": 2}, []),
    "zero loss without signal": (
        {"loss": 0.0, "frac_reward_zero_std": 1.0, "groups/all_correct": 1.0},
        {},
        [("warning", "dead_groups", "100 % of the groups carry no signal (100 % all correct)")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_records(case: str) -> None:
    metrics, changes, expected = CASES[case]
    records = health({**WELL, **metrics}, load_config(config_text(**changes)))
    assert [(record["level"], record["code"], record["message"]) for record in records] == expected


def test_records_carry_their_numbers() -> None:
    metrics = {**WELL, "mismatch/kl": 0.02, "completions/clipped_ratio": 0.3}
    mismatch, truncated = health(metrics, load_config(config_text()))
    assert (mismatch["kl"], mismatch["share"], truncated["share"]) == (0.02, 0.3, 0.3)


def test_noise_scale_advice_needs_data() -> None:
    config = load_config(config_text())
    probe = GradientNoiseScale(decay=0.95)
    assert health(WELL, config, probe) == []
    for step in range(12):
        probe.update([3.0 + 0.1 * (step % 3), 2.0], 1.6 + 0.05 * (step % 2), 2)
    (record,) = health(WELL, config, probe)
    assert (record["code"], record["level"]) == ("noise_scale", "info")
    assert record["message"].startswith("The gradient noise scale recommends about")
    alone = GradientNoiseScale(decay=0.95)  # one micro-batch has the whole gradient: the rest is rounding
    for _ in range(12):
        alone.update([4.0 * (1 - 3e-8), 0.0], 1.0, 2)
    assert health(WELL, config, alone) == []
