"""Linear layers of one input as one product: queries, keys and values; the gate and the values of an MLP.

A step of few rows is bound by reading weights, which larger matrices do nearer to the memory's rate, and by the number
of kernels.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one input in transformers' models, in the order of their calls."""


class First(Linear):
    """The first layer of a group, which computes all of them."""

    whole: Tensor
    """Weights of the group, one below the other; the layers' own are views."""
    whole_bias: Tensor | None
    others: dict[str, Tensor]
    """Results for the other layers, until they are called."""
    sizes: dict[str, int]
    """Results of each layer, the first one first."""

    def forward(self, input: Tensor) -> Tensor:
        whole = linear(input, self.whole, self.whole_bias)
        first: Tensor
        first, *others = whole.split(list(self.sizes.values()), dim=-1)
        self.others.update(zip(list(self.sizes)[1:], others, strict=True))
        return first


class Other(Linear):
    """Another layer of the group."""

    others: dict[str, Tensor]
    name: str

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self.others.pop(self.name)
        return result


def fuse(model: torch.nn.Module, own: Container[int]) -> dict[int, Tensor]:
    """Compute each group of ``model``'s layers together.

    Args:
        own: addresses of the weights that belong to ``model`` alone; layers with others stay as they are.

    Returns the views that took the place of weights and biases, by the address of these.
    """
    moved: dict[int, Tensor] = {}
    for parent in list(model.modules()):
        for names in GROUPS:
            layers = {name: getattr(parent, name, None) for name in names}
            if all(type(layer) is Linear and layer.weight.data_ptr() in own for layer in layers.values()):
                _fuse(layers, moved)
    return moved


def _fuse(layers: dict[str, Any], moved: dict[int, Tensor]) -> None:
    (first, *others), sizes = layers.values(), {name: layer.out_features for name, layer in layers.items()}
    if len({layer.bias is None for layer in layers.values()}) > 1:
        return
    wholes: dict[str, Tensor | None] = {"bias": None}
    for key in ("weight", "bias") if first.bias is not None else ("weight",):
        whole = wholes[key] = torch.cat([getattr(layer, key).detach() for layer in layers.values()])
        for layer, view in zip(layers.values(), whole.split(list(sizes.values())), strict=True):
            moved[getattr(layer, key).data_ptr()] = view
            setattr(layer, key, torch.nn.Parameter(view, requires_grad=False))
    results: dict[str, Tensor] = {}
    first.__class__, first.whole, first.whole_bias = First, wholes["weight"], wholes["bias"]
    first.others, first.sizes = results, sizes
    for name, layer in zip(list(layers)[1:], others, strict=True):
        layer.__class__, layer.others, layer.name = Other, results, name
