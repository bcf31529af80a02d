"""The optimizer (fused AdamW) and its learning-rate schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from grpo_train.config.schema import Optimizer
from grpo_train.policy.loading import Policy
from grpo_train.train.schedule import rate_factor


def make_optimizer(policy: Policy, settings: Optimizer, total_steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Make the optimizer of the policy's trained parameters and its scheduler."""
    optimizer = torch.optim.AdamW(
        policy.trainable(),
        lr=settings.learning_rate,
        fused=True,
        **_besides_rate(settings),
    )
    return optimizer, LambdaLR(optimizer, lambda done: rate_factor(settings, done, total_steps))


def apply_settings(optimizer: torch.optim.Optimizer, scheduler: LambdaLR, settings: Optimizer) -> None:
    """Replace restored settings by those of the config; the restored state holds the ones it was saved with."""
    scheduler.base_lrs = [settings.learning_rate for _ in scheduler.base_lrs]
    for options in optimizer.param_groups:
        options["initial_lr"] = settings.learning_rate
        options["lr"] = settings.learning_rate * scheduler.lr_lambdas[0](scheduler.last_epoch)
        options.update(_besides_rate(settings))
    scheduler._last_lr = [options["lr"] for options in optimizer.param_groups]


def _besides_rate(settings: Optimizer) -> dict[str, Any]:
    """Options of AdamW: what a resume takes from the config, too."""
    betas = (settings.adam_beta1, settings.adam_beta2)
    return {"betas": betas, "eps": settings.adam_epsilon, "weight_decay": settings.weight_decay}
