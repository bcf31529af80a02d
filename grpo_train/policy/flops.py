"""Model FLOPs of a training pass, and the rate of matrix products that they are compared with.

Model FLOPs count what the mathematics needs and nothing that an implementation adds (recomputed logits, activation
checkpointing, padding): 2 per weight and token forward, 2 for the gradient of the inputs, 2 for the gradient of trained
weights. Attention's products are left out. Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section
2.1; Chowdhery et al., "PaLM" (2022), appendix B, for MFU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

SIDE = {"cuda": 8192, "cpu": 512}
"""Rows and columns of the measured product by device type."""
SECONDS = 0.03
"""How long products are repeated."""


@dataclass(frozen=True)
class ModelSize:
    """Weights of a dense causal language model."""

    body: int
    """In the layers, without embedding, head and adapters."""
    head: int
    """Hidden size times vocabulary."""
    adapter: int
    """In LoRA adapters; 0 = all weights are trained."""

    def training_flops(self, tokens: int, predicted: int) -> float:
        """FLOPs of a forward and backward pass.

        6 per weight if all weights are trained. With an adapter 4, as frozen weights have no gradient, and 6 per weight
        of the adapter.

        Args:
            tokens: that go through the layers.
            predicted: that go through the head.
        """
        passes = 4 if self.adapter else 6
        return float(passes * (self.body * tokens + self.head * predicted) + 6 * self.adapter * tokens)


def model_size(model: Any) -> ModelSize | None:
    """The size of a transformers model, with or without a peft adapter; None for a mixture of experts, of whose weights
    a token uses a part."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    text = base.config.get_text_config()
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    weights = dict(model.named_parameters())  # shared ones once
    adapter = sum(weight.numel() for name, weight in weights.items() if "lora_" in name)
    outer = {id(module.weight): module.weight.numel() for module in _outer(base)}
    body = sum(weight.numel() for weight in weights.values()) - sum(outer.values()) - adapter
    return ModelSize(body, int(text.hidden_size) * int(text.vocab_size), adapter)


def _outer(base: Any) -> list[Any]:
    modules = [base.get_input_embeddings(), base.get_output_embeddings()]
    return [module for module in modules if getattr(module, "weight", None) is not None]


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs per second of the fastest of several square matrix products, after a warm-up.

    Draws no random numbers, so that a run is the same with and without this measurement.
    """
    side = SIDE[device.type]
    left = torch.arange(side * side, device=device).remainder(251).sub(125).div(125).to(dtype).view(side, side)
    right, out = left.t().contiguous(), torch.empty_like(left)
    best, end = float("inf"), time.perf_counter() + SECONDS
    torch.mm(left, right, out=out)
    while best == float("inf") or time.perf_counter() < end:
        best = min(best, timed(device, lambda: torch.mm(left, right, out=out))[1])
    return 2 * side**3 / best


def timed(device: torch.device, work: Callable[[], Result]) -> tuple[Result, float]:
    """The result of ``work()`` and the seconds it takes, its kernels included."""
    start = now(device)
    result = work()
    return result, now(device) - start


def now(device: torch.device) -> float:
    """The clock in seconds, once the device's pending kernels are done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
