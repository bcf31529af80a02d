"""``tracking``: metrics besides the logs."""

from __future__ import annotations

from grpo_train.config.sections.base import PositiveFloat, Section


class Tracking(Section):
    """Metrics besides the JSONL logs."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    gpu_interval: PositiveFloat = 2.0
    """Seconds between GPU samples."""
