"""Automatic batch size: the number of completions that fit into memory at once, estimated before generating."""

from __future__ import annotations

from typing import Any

import torch

from grpo_train.policy.memory import free_bytes

MEMORY_SHARE = {"cuda": 0.85, "cpu": 0.4}
"""Share of the free memory that a batch may use; on a CPU other processes need some of it."""
MAX_BATCH = {"cuda": 4096, "cpu": 256}
"""A larger batch is not faster."""
CACHE_COPIES = 1.25
"""A growing cache holds an old and a new tensor of one layer at a time, and fragments."""
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
    config = inner.config.get_text_config()
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    itemsize = inner.dtype.itemsize
    cache = 2 * config.num_hidden_layers * kv_heads * head_dim * itemsize * (prompt + budget) * CACHE_COPIES
    width = 4 * config.hidden_size + 3 * int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    mask = 1 + itemsize  # a byte per pair of positions, and the kernel's copy of it; eager attention needs more
    return float(cache + config.vocab_size * LOGIT_BYTES + prompt * (width * itemsize + prompt * mask))
