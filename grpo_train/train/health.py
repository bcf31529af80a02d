"""A step's state of health in plain words, from its metrics. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpo_train.algorithm.noise_scale import GradientNoiseScale
from grpo_train.config.schema import Config
from grpo_train.sandbox.results import TOO_WEAK

ESS_WARN, ESS_ALARM = 0.5, 0.3
DEAD_GROUPS = 0.5
TRUNCATED = 0.2
MISMATCH_KL = 0.01
NEAR_ZERO = 1e-3
HACKING = {
    "hacking/hardcoded": (0.05, "pass the visible tests and fail the hidden ones: hard-coded answers?"),
    "hacking/multiple_answers": (0.2, "give several answers"),
}
"""Share of a buffer's completions from which an indicator is worth a word, and the word."""
DENIALS = 0.05
INVALID_GAMES = 0.2
VALID_PROGRAMS = 0.5
SAME_OPENING = 0.8
NO_REASONING = 0.5


def health(metrics: Mapping[str, Any], config: Config, noise_scale: GradientNoiseScale | None = None) -> list[str]:
    """What a person should know about a step, the worst first; an empty list says that nothing stands out."""
    lines: list[str] = []
    if not math.isfinite(_value(metrics, "grad_norm", 0.0)):
        lines.append("alarm: the gradient is not finite: this update was left out; a lower learning rate?")
    unscored = _value(metrics, "groups/unscored", 0.0)
    if unscored > 0:
        lines.append(f"alarm: no reward function applied to {unscored:.0%} of the groups")
    correction = config.algorithm.rollout_correction
    level = "sequence" if correction.startswith("sequence") else "token"
    ess = _value(metrics, f"ess/{level}", 1.0)
    if ess < ESS_WARN:
        word = "alarm" if ess < ESS_ALARM else "warning"
        lines.append(f"{word}: effective sample size {ess:.0%} of the {level}s: far off the policy that sampled them")
    mismatch = _value(metrics, "mismatch/kl", 0.0)
    if mismatch > MISMATCH_KL and config.rollout.top_p == 1 and config.rollout.top_k == 0:
        outside = _value(metrics, "mismatch/outside_0.9_1.1", 0.0)
        lines.append(
            f"warning: sampler and trainer disagree (KL {mismatch:.3g}, {outside:.0%} of tokens off by over 10 %)"
            + (": algorithm.rollout_correction would weigh it out" if correction == "none" else "; it is corrected for")
        )
    dead = _value(metrics, "frac_reward_zero_std", 0.0)
    if dead > DEAD_GROUPS:
        causes = {
            "all right": "groups/all_right",
            "all wrong": "groups/all_wrong",
            "equal rewards": "groups/all_equal",
        }
        shares = [f"{_value(metrics, key, 0.0):.0%} {name}" for name, key in causes.items() if metrics.get(key)]
        why = f" ({', '.join(shares)})" if shares else ""
        lines.append(f"warning: {dead:.0%} of the groups teach nothing{why}")
    truncated = _value(metrics, "completions/clipped_ratio", 0.0)
    if truncated > TRUNCATED:
        lines.append(f"warning: {truncated:.0%} of the completions hit the budget: raise rollout.max_completion_length")
    if (valid := _value(metrics, "code_game/valid", 1.0)) < VALID_PROGRAMS:
        lines.append(f"warning: {valid:.0%} of the programs keep the game's rules: the rollouts say which they broke")
    lines += _hacking(metrics)
    lines += _self_play(metrics, config)
    if config.steps_per_buffer == 1 and dead < 1 and abs(_value(metrics, "loss", 1.0)) < NEAR_ZERO:
        lines.append("a loss near zero is expected here: on-policy its value says nothing, its gradient does")
    if noise_scale is not None and math.isfinite(noise_scale.interval()[1]):
        prompts = config.rollout.buffer_size // config.algorithm.updates_per_buffer
        lines.append(noise_scale.advice(prompts, config.rollout.num_generations))
    return sorted(lines, key=lambda line: (not line.startswith("alarm"), not line.startswith("warning")))


def _hacking(metrics: Mapping[str, Any]) -> list[str]:
    """Signs that a policy is after the reward instead of the answer, the worst first."""
    lines: list[str] = []
    if metrics.get("sandbox/isolation") in TOO_WEAK:
        lines.append(
            f"alarm: programs run in a {metrics['sandbox/isolation']} sandbox: they can read what you can "
            "(sandbox.allow_weak)"
        )
    if _value(metrics, "hacking/canary", 0.0) > 0:
        lines.append("alarm: an output holds the canary that no program may see: the sandbox leaks, stop the run")
    for key, (share, what) in HACKING.items():
        if (value := _value(metrics, key, 0.0)) > share:
            lines.append(f"warning: {value:.0%} of the completions {what}")
    denied = {
        key.removeprefix("sandbox/denied_"): _value(metrics, key, 0.0)
        for key in metrics
        if key.startswith("sandbox/denied_")
    }
    if denied and max(denied.values()) > DENIALS:
        most = max(denied, key=lambda kind: denied[kind])
        lines.append(f"warning: programs are probing the sandbox ({denied[most]:.2g} {most} attempts a program denied)")
    return lines


def _self_play(metrics: Mapping[str, Any], config: Config) -> list[str]:
    """What self-play is known to go wrong by."""
    lines: list[str] = []
    if (invalid := _value(metrics, "self_play/invalid_rate", 0.0)) > INVALID_GAMES:
        lines.append(f"warning: {invalid:.0%} of the games end with an illegal move")
    silent = _value(metrics, "self_play/no_reasoning", 0.0)
    if silent > NO_REASONING and config.task.template != "compact":
        lines.append(f"warning: {silent:.0%} of the turns are without reasoning: it has stopped thinking")
    if (same := _value(metrics, "self_play/same_opening", 0.0)) > SAME_OPENING:
        lines.append(f"warning: {same:.0%} of the games open alike: it explores little, a lower learning rate?")
    return lines


def _value(metrics: Mapping[str, Any], key: str, default: float) -> float:
    value = metrics.get(key, default)
    return float(value) if isinstance(value, (int, float)) else default
