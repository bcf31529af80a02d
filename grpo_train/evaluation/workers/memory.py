"""Automatic batch size: the number of completions that fit into memory at once, estimated before generating."""

from __future__ import annotations

from typing import Any

import torch

from grpo_train.platforms.memory import CACHE_COPIES, Shape
from grpo_train.policy.memory import free_bytes

MEMORY_SHARE = {"cuda": 0.85, "cpu": 0.4}
"""Share of the free memory that a batch may use; on a CPU other processes need some of it."""
MAX_BATCH = {"cuda": 4096, "cpu": 256}
"""A larger batch is not faster."""
LOGIT_BYTES = 4 + 4 + 4 + 4 + 8
"""Per vocabulary entry of one row: logits in float32, scaled, as log-probabilities, as probabilities, and their
cumulative sum in float64."""


def automatic_batch_size(model: Any, device: torch.device, longest_prompt: int, budget: int, items: int) -> int:
    """Batch size for ``eval.batch_size: auto``: what fits by :func:`bytes_per_completion`, at least 1.

    ``longest_prompt`` and ``budget`` (of a completion) are in tokens; ``items`` is the number of completions needed.
    """
    available = free_bytes(device) * MEMORY_SHARE[device.type]
    fits = int(available // bytes_per_completion(model, longest_prompt, budget))
    return max(1, min(fits, MAX_BATCH[device.type], items))


def bytes_per_completion(model: Any, prompt: int, budget: int) -> float:
    """Memory of one row at its longest: keys and values of every layer, logits, and the prompt's activations."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    shape, itemsize = Shape.of_model(inner), inner.dtype.itemsize
    cache = shape.cache_numbers * itemsize * (prompt + budget) * CACHE_COPIES
    width = 4 * shape.hidden + 3 * shape.intermediate
    mask = 1 + itemsize  # a byte per pair of positions, and the kernel's copy of it; eager attention needs more
    return float(cache + shape.vocabulary * LOGIT_BYTES + prompt * (width * itemsize + prompt * mask))
