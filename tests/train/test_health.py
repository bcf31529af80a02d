"""Health: what a step's numbers are said to mean."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_train.algorithm import GradientNoiseScale
from grpo_train.config import load_config
from grpo_train.train.health import health
from tests.support.engine import config_text

WELL: dict[str, Any] = {
    "loss": 0.02, "reward": 1.0, "grad_norm": 0.1, "ess/token": 0.99, "ess/sequence": 0.2, "mismatch/kl": 1e-5,
    "mismatch/outside_0.9_1.1": 0.3, "frac_reward_zero_std": 0.25, "groups/all_right": 0.25, "groups/all_wrong": 0.0,
    "groups/all_equal": 0.0, "groups/unscored": 0.0, "completions/clipped_ratio": 0.1,
}  # fmt: skip

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "nothing stands out": ({}, {}, []),
    "NaN": (
        {"grad_norm": float("nan")},
        {},
        ["alarm: the gradient is not finite: this update was left out; a lower learning rate?"],
    ),
    "no reward": ({"groups/unscored": 0.5}, {}, ["alarm: no reward function applied to 50% of the groups"]),
    "nothing but unscored groups": (
        {"groups/unscored": 1.0, "frac_reward_zero_std": 1.0, "groups/all_right": 0.0},
        {},
        ["alarm: no reward function applied to 100% of the groups", "warning: 100% of the groups teach nothing"],
    ),
    "off-policy": (
        {"ess/token": 0.4},
        {},
        ["warning: effective sample size 40% of the tokens: far off the policy that sampled them"],
    ),
    "far off-policy": (
        {"ess/token": 0.2},
        {},
        ["alarm: effective sample size 20% of the tokens: far off the policy that sampled them"],
    ),
    "weights by sequence": (
        {},
        {"algorithm__rollout_correction": "sequence_truncate"},
        ["alarm: effective sample size 20% of the sequences: far off the policy that sampled them"],
    ),
    "hard-coded answers": (
        {"hacking/hardcoded": 0.3, "hacking/multiple_answers": 0.1},
        {},
        [
            "warning: 30% of the completions pass the visible tests and fail the hidden ones: hard-coded answers?",
        ],
    ),
    "an attack on the sandbox": (
        {"sandbox/denied_socket": 0.02, "sandbox/denied_process": 0.5, "hacking/canary": 0.01},
        {},
        [
            "alarm: an output holds the canary that no program may see: the sandbox leaks, stop the run",
            "warning: programs are probing the sandbox (0.5 process attempts a program denied)",
        ],
    ),
    "a weak sandbox": (
        {"sandbox/isolation": "medium", "completions/clipped_ratio": 0.5},
        {},
        [
            "alarm: programs run in a medium sandbox: they can read what you can (sandbox.allow_weak)",
            "warning: 50% of the completions hit the budget: raise rollout.max_completion_length",
        ],
    ),
    "a strong one": ({"sandbox/isolation": "strong"}, {}, []),
    "games that end illegally": (
        {"self_play/invalid_rate": 0.4},
        {},
        ["warning: 40% of the games end with an illegal move"],
    ),
    "programs that break the code game's rules": (
        {"code_game/valid": 0.1},
        {},
        ["warning: 10% of the programs keep the game's rules: the rollouts say which they broke"],
    ),
    "self-play that stopped thinking": (
        {"self_play/no_reasoning": 0.9, "self_play/same_opening": 0.95},
        {},
        [
            "warning: 90% of the turns are without reasoning: it has stopped thinking",
            "warning: 95% of the games open alike: it explores little, a lower learning rate?",
        ],
    ),
    "a bare board asks for no reasoning": ({"self_play/no_reasoning": 1.0}, {"task__template": "compact"}, []),
    "mismatch": (
        {"mismatch/kl": 0.02},
        {},
        [
            "warning: sampler and trainer disagree (KL 0.02, 30% of tokens off by over 10 %): "
            "algorithm.rollout_correction would weigh it out"
        ],
    ),
    "a cut distribution disagrees by design": (
        {"mismatch/kl": 0.02},
        {"rollout__top_p": 0.9, "algorithm__rollout_correction": "token_truncate"},
        [],
    ),
    "dead groups": (
        {"frac_reward_zero_std": 0.75, "groups/all_right": 0.5, "groups/all_wrong": 0.25},
        {},
        ["warning: 75% of the groups teach nothing (50% all right, 25% all wrong)"],
    ),
    "truncation": (
        {"completions/clipped_ratio": 0.3},
        {},
        ["warning: 30% of the completions hit the budget: raise rollout.max_completion_length"],
    ),
    "a loss near zero": (
        {"loss": 1e-5},
        {},
        ["a loss near zero is expected here: on-policy its value says nothing, its gradient does"],
    ),
    "a loss near zero, off-policy": ({"loss": 1e-5}, {"algorithm__num_iterations": 2}, []),
    "a loss of zero because nothing was learned": (
        {"loss": 0.0, "frac_reward_zero_std": 1.0, "groups/all_right": 1.0},
        {},
        ["warning: 100% of the groups teach nothing (100% all right)"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said(case: str) -> None:
    metrics, changes, lines = CASES[case]
    assert health({**WELL, **metrics}, load_config(config_text(**changes))) == lines


def test_the_noise_scale_advises_once_it_knows() -> None:
    config = load_config(config_text())
    probe = GradientNoiseScale(decay=0.95)
    assert health(WELL, config, probe) == []
    for step in range(12):
        probe.update([3.0 + 0.1 * (step % 3), 2.0], 1.6 + 0.05 * (step % 2), 2)
    (line,) = health(WELL, config, probe)
    assert line.startswith("The gradient noise scale recommends about")
    alone = GradientNoiseScale(decay=0.95)  # one micro-batch has all the gradient: the rest is rounding
    for _ in range(12):
        alone.update([4.0 * (1 - 3e-8), 0.0], 1.0, 2)
    assert health(WELL, config, alone) == []
