"""The least time that the hardware needs for a piece of work, from rates that are measured in the same call.

Torch-free. Attention's products and all activations are left out, so the real floor is a little higher.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo_train.platforms.memory import Shape


@dataclass(frozen=True)
class Rates:
    """What the machine does at best."""

    copy: float
    """Bytes read and written per second by a copy in the device's memory."""
    products: float
    """FLOPs per second of matrix products in the compute type."""
    disk: float
    """Bytes per second of a sequential write, flushed."""


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    name: str
    rows: int
    """Completions or prompts at once; 0 where there are none."""
    amount: float
    """Tokens or bytes."""
    unit: str
    """``tokens`` or ``bytes``."""
    seconds: float
    floor_seconds: float
    bandwidth_floor_seconds: float | None = None
    """Of reading weights, keys and values alone."""

    @property
    def share(self) -> float:
        """How near to the floor: 1 is as fast as the hardware allows."""
        return self.floor_seconds / self.seconds


def decode_floor(shape: Shape, rates: Rates, rows: int, context: float, width: int) -> tuple[float, float]:
    """Seconds of a decoding step, and those of its memory traffic alone.

    max(weights / copy, 2 · parameters · rows / products) + keys and values / copy: every step reads each weight once
    and the keys and values of every row.

    Args:
        context: mean tokens that a row attends to.
        width: bytes of a number.
    """
    weights = _parameters(shape) * width / rates.copy
    cache = rows * context * shape.cache_numbers * width / rates.copy
    products = 2 * _parameters(shape) * rows / rates.products
    return max(weights, products) + cache, weights + cache


def prefill_floor(shape: Shape, rates: Rates, prompts: int, tokens: int, width: int) -> float:
    """Seconds to read ``prompts`` of ``tokens`` in all; the head computes one token of each."""
    weights = _parameters(shape) * width / rates.copy
    layers = 2 * shape.layers * shape.layer_parameters * tokens
    return max(weights, (layers + 2 * shape.vocabulary * shape.hidden * prompts) / rates.products)


def _parameters(shape: Shape) -> int:
    """Weights that every token is multiplied by: the layers' and the head's."""
    return shape.layers * shape.layer_parameters + shape.vocabulary * shape.hidden
