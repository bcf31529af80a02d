"""Health of a step: conditions a person should know about, from the step's metrics. Torch-free.

A condition is a record ``{"code", "level", "message", ...numbers}`` with level ``alarm``, ``warning`` or ``info``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from grpo_train.algorithm.noise_scale import GradientNoiseScale
from grpo_train.config.schema import Config
from grpo_train.run_dir.display import percent
from grpo_train.sandbox.results import TOO_WEAK

Record = dict[str, Any]

BLOCKS = "blocks"
"""Name of the trial of compiled transformer blocks."""
LEVELS = ("alarm", "warning", "info")
"""Worst first."""
ESS_WARN, ESS_ALARM = 0.5, 0.3
DEAD_GROUPS = 0.5
NO_SIGNAL = 0.9
"""Share of dead groups up to which a run whose groups are mostly all correct still learns from the others."""
TRUNCATED = 0.2
MISMATCH_KL = 0.01
NEAR_ZERO = 1e-3
HARDCODED = 0.05
MULTIPLE_ANSWERS = 0.2
DENIALS = 0.05
ILLEGAL_MOVES = 0.2
VALID_PROGRAMS = 0.5
SAME_OPENING = 0.8
NO_REASONING = 0.5


def health(
    metrics: Mapping[str, Any],
    config: Config,
    noise_scale: GradientNoiseScale | None = None,
    fallbacks: Mapping[str, str] = MappingProxyType({}),
) -> list[Record]:
    """Conditions of a step, worst first; empty if nothing stands out.

    ``fallbacks``: see :attr:`grpo_train.train.state.TrainingState.fallbacks`.
    """
    records = [
        *_gradient(metrics, config),
        *_groups(metrics),
        *_completions(metrics),
        *_hacking(metrics),
        *_self_play(metrics, config),
        *_notes(metrics, config, noise_scale),
        *(_record("info", "training_fallback", text) for name, text in fallbacks.items() if name == BLOCKS),
        *(_record("info", "rollout_fallback", text) for name, text in fallbacks.items() if name != BLOCKS),
    ]
    return sorted(records, key=lambda record: LEVELS.index(record["level"]))


def _gradient(metrics: Mapping[str, Any], config: Config) -> Iterator[Record]:
    if not math.isfinite(_value(metrics, "grad_norm", 0.0)) and "loss_scale" in metrics:
        message = "the scaled gradient was too large for float16; the update was skipped and the loss scale halved"
        yield _record("info", "loss_scale_lowered", message, loss_scale=metrics["loss_scale"])
    elif not math.isfinite(_value(metrics, "grad_norm", 0.0)):
        message = "the gradient is not finite; the update was skipped. Try a lower learning rate"
        yield _record("alarm", "gradient_not_finite", message)
    correction = config.algorithm.rollout_correction
    unit = "sequence" if correction.startswith("sequence") else "token"
    ess = _value(metrics, f"ess/{unit}", 1.0)
    if ess < ESS_WARN:
        message = f"effective sample size is {percent(ess)} of the {unit}s: the policy has drifted from the sampler"
        yield _record("alarm" if ess < ESS_ALARM else "warning", "low_ess", message, ess=ess)
    kl = _value(metrics, "mismatch/kl", 0.0)
    if kl > MISMATCH_KL and config.rollout.top_p == 1 and config.rollout.top_k == 0:
        outside = _value(metrics, "mismatch/outside_0.9_1.1", 0.0)
        fix = "set algorithm.rollout_correction to correct for it" if correction == "none" else "corrected for"
        message = f"sampler and trainer disagree (KL {kl:.3g}, {percent(outside)} of tokens differ by over 10 %); {fix}"
        yield _record("warning", "sampler_mismatch", message, kl=kl, share=outside)


def _groups(metrics: Mapping[str, Any]) -> Iterator[Record]:
    if (unscored := _value(metrics, "groups/unscored", 0.0)) > 0:
        message = f"no reward function applied to {percent(unscored)} of the groups"
        yield _record("alarm", "unscored_groups", message, share=unscored)
    dead = _value(metrics, "frac_reward_zero_std", 0.0)
    if dead > DEAD_GROUPS:
        reasons = {"all correct": "all_correct", "all wrong": "all_wrong", "equal rewards": "all_equal"}
        shares = {name: _value(metrics, f"groups/{key}", 0.0) for name, key in reasons.items()}
        why = ", ".join(f"{percent(share)} {name}" for name, share in shares.items() if share)
        message = f"{percent(dead)} of the groups carry no signal" + (f" ({why})" if why else "")
        is_good = dead < NO_SIGNAL and shares["all correct"] > dead / 2
        yield _record("info" if is_good else "warning", "dead_groups", message, share=dead)


def _completions(metrics: Mapping[str, Any]) -> Iterator[Record]:
    if (truncated := _value(metrics, "completions/clipped_ratio", 0.0)) > TRUNCATED:
        fix = "raise rollout.max_completion_length"
        if _value(metrics, "groups/all_wrong", 0.0) > DEAD_GROUPS:
            fix = "read them: a higher limit does not help a policy that no longer ends its answers"
        message = f"{percent(truncated)} of the completions are truncated; {fix}"
        yield _record("warning", "truncated_completions", message, share=truncated)
    if (valid := _value(metrics, "code_game/valid", 1.0)) < VALID_PROGRAMS:
        message = f"only {percent(valid)} of the programs follow the game's rules; see the reasons in the rollouts"
        yield _record("warning", "invalid_programs", message, share=valid)


def _hacking(metrics: Mapping[str, Any]) -> Iterator[Record]:
    """Signs of reward hacking and of attacks on the sandbox."""
    if (isolation := metrics.get("sandbox/isolation")) in TOO_WEAK:
        message = f"programs run in a {isolation} sandbox and can read your files (sandbox.allow_weak)"
        yield _record("alarm", "weak_sandbox", message)
    if (leaked := _value(metrics, "hacking/canary", 0.0)) > 0:
        message = "a program's output contains the secret canary: the sandbox leaks. Stop the run"
        yield _record("alarm", "sandbox_leak", message, share=leaked)
    if (hardcoded := _value(metrics, "hacking/hardcoded", 0.0)) > HARDCODED:
        share = percent(hardcoded)
        message = f"{share} of the completions pass the visible tests and fail the hidden ones: hard-coded answers?"
        yield _record("warning", "hardcoded_answers", message, share=hardcoded)
    if (multiple := _value(metrics, "hacking/multiple_answers", 0.0)) > MULTIPLE_ANSWERS:
        message = f"{percent(multiple)} of the completions give several answers"
        yield _record("warning", "multiple_answers", message, share=multiple)
    prefix = "sandbox/denied_"
    denied = {key.removeprefix(prefix): _value(metrics, key, 0.0) for key in metrics if key.startswith(prefix)}
    if denied and max(denied.values()) > DENIALS:
        kind = max(denied, key=lambda name: denied[name])
        message = f"programs are probing the sandbox ({denied[kind]:.2g} denied {kind} attempts per program)"
        yield _record("warning", "sandbox_probing", message, attempts=denied[kind])


def _self_play(metrics: Mapping[str, Any], config: Config) -> Iterator[Record]:
    """Known failure modes of self-play."""
    if (invalid := _value(metrics, "self_play/invalid_rate", 0.0)) > ILLEGAL_MOVES:
        message = f"{percent(invalid)} of the games end with an illegal move"
        yield _record("warning", "illegal_moves", message, share=invalid)
    silent = _value(metrics, "self_play/no_reasoning", 0.0)
    if silent > NO_REASONING and config.task.template != "compact":
        message = f"{percent(silent)} of the turns have no reasoning: the policy is unlearning it"
        yield _record("warning", "no_reasoning", message, share=silent)
    if (same := _value(metrics, "self_play/same_opening", 0.0)) > SAME_OPENING:
        message = (
            f"{percent(same)} of the games start with the same moves: little exploration. Try a lower learning rate"
        )
        yield _record("warning", "same_opening", message, share=same)


def _notes(metrics: Mapping[str, Any], config: Config, noise_scale: GradientNoiseScale | None) -> Iterator[Record]:
    is_all_dead = _value(metrics, "frac_reward_zero_std", 0.0) >= 1
    if config.steps_per_buffer == 1 and not is_all_dead and abs(_value(metrics, "loss", 1.0)) < NEAR_ZERO:
        yield _record("info", "loss_near_zero", "a loss near zero is expected: on-policy, only its gradient matters")
    if noise_scale is not None and math.isfinite(noise_scale.interval()[1]):
        prompts = config.rollout.buffer_size // config.algorithm.updates_per_buffer
        yield _record("info", "noise_scale", noise_scale.advice(prompts, config.rollout.num_generations))


def _record(level: str, code: str, message: str, **numbers: float) -> Record:
    return {"code": code, "level": level, "message": message, **numbers}


def _value(metrics: Mapping[str, Any], key: str, default: float) -> float:
    value = metrics.get(key, default)
    return float(value) if isinstance(value, (int, float)) else default
