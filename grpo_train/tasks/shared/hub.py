"""Datasets from the Hugging Face hub."""

from __future__ import annotations

import os
from typing import Any

from grpo_train.tasks.shared.base import TaskError


def load_hub_dataset(name: str, config: str, *, split: str | None = None, otherwise: str) -> Any:
    """``datasets.load_dataset(name, config)``; ``otherwise`` tells what to do without the hub. Raises TaskError."""
    try:
        from datasets import load_dataset  # takes a second to import

        return load_dataset(name, config, split=split)
    except Exception as error:  # datasets, the hub client and the network raise many types; the fix is the same
        offline = any(
            os.environ.get(variable) in {"1", "true"} for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
        )
        reason = "HF_HUB_OFFLINE is set and the dataset is not in the cache" if offline else str(error).split("\n")[0]
        raise TaskError(
            f"task.path is not set and {name} could not be loaded from the hub ({reason}); {otherwise}"
        ) from error
