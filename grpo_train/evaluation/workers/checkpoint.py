"""Loading a checkpoint for evaluation, and describing how its samples are generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan
from grpo_train.evaluation.targets import Target
from grpo_train.policy.loading import Policy, load_policy, pick_device
from grpo_train.policy.locate import base_of_checkpoint, check_weights, recorded_base


def load_checkpoint(plan: EvalPlan, config: Config, path: Path | None) -> Policy:
    """Load a checkpoint's policy, checksums verified; the backbone if ``path`` is None. Raises PolicyError."""
    root = Path(plan.root)
    return load_policy(
        config.model,
        root,
        pick_device(config.model.device),
        weights=check_weights(path) if path else None,
        base=plan.base or (base_of_checkpoint(path, root) if path else None),
        trainable=False,
    )


def load_target(plan: EvalPlan, config: Config, target: Target) -> Policy:
    """Load a target's policy. Raises PolicyError."""
    return load_checkpoint(plan, config, None if plan.is_backbone(target) else Path(target.path))


def layout_of(
    chunks: list[list[int]], batch_size: int, plan: EvalPlan, target: Target, policy: Policy
) -> dict[str, Any]:
    """Which items are generated together, from which weights, and on what machine."""
    backbone = plan.is_backbone(target)
    return {
        "chunks": chunks,
        "batch_size": batch_size,
        "checkpoint": policy.base if backbone else recorded_base(target.path, Path(plan.root)),
        "device": str(policy.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
