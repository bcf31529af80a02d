"""The learning rate of each step: a pure function of the step, ``optimizer`` and ``run.total_steps``. Torch-free."""

from __future__ import annotations

import math

from grpo_train.config.schema import Config, Optimizer
from grpo_train.run_dir.display import setting


def rate_factor(settings: Optimizer, done: int, total_steps: int) -> float:
    """The share of ``optimizer.learning_rate`` for the step after ``done`` ones.

    Warmup step k of n uses k / (n + 1); then the rate is constant, or falls to ``min_lr_ratio`` at ``total_steps``:
    linearly, or as half a cosine (Loshchilov and Hutter 2017, SGDR, without restarts).
    """
    warmup = settings.warmup_steps
    rising = min(1.0, (done + 1) / (warmup + 1))
    if settings.schedule == "constant" or done < warmup:
        return rising
    progress = min(1.0, (done - warmup) / max(1, total_steps - warmup))
    left = 1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return settings.min_lr_ratio + (1 - settings.min_lr_ratio) * left


def extension_note(before: Config, after: Config, step: int) -> str:
    """What another ``run.total_steps`` does to a decaying schedule from ``step`` on; "" where it changes nothing."""
    old, new = before.run.total_steps, after.run.total_steps
    settings = after.optimizer
    if settings.schedule == "constant" or old == new:
        return ""
    last, first = (
        settings.learning_rate * rate_factor(settings, done, total) for done, total in ((step - 1, old), (step, new))
    )
    return (
        f"optimizer.schedule: {settings.schedule} to step {new} instead of {old}: the learning rate is "
        f"{setting(first)} at step {step + 1} (it was {setting(last)} at step {step}); earlier steps stay as they were"
    )
