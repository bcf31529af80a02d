"""Compiled transformer blocks, one compiled code for all blocks of a model and for all lengths of a row; and blocks in
float32, which tell how far rounding takes the others.

Packed attention stays out of the compiled code: its plan depends on the lengths. Only passes with a gradient use other
blocks than plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_train.policy.packing import ATTENTION, packed_attention

FORWARD_IS_WRAPPED = "__call__" not in vars(GradientCheckpointingLayer)
"""transformers 5.23 recomputes activations in a wrapper of ``forward``, 5.17 in ``__call__``."""


class Blocks:
    """A context in which the blocks of a decoder run another ``forward``."""

    def __init__(self, decoder: torch.nn.Module) -> None:
        """Raises ValueError for a decoder without blocks that transformers could checkpoint."""
        self.blocks = [block for block in decoder.modules() if isinstance(block, GradientCheckpointingLayer)]
        if not self.blocks or any("forward" in vars(block) for block in self.blocks):
            raise ValueError(f"{type(decoder).__name__} has no blocks of its own kind")

    def run(self, block: Any, recomputes: bool, *args: Any, **kwargs: Any) -> Any:
        """In place of ``block.forward``; ``recomputes``: the backward pass is to compute activations again."""
        raise NotImplementedError

    def __enter__(self) -> None:
        """Recomputing is left to :meth:`run`: transformers' own would run the plain block, once the context is left."""
        self._recomputing = [block.gradient_checkpointing for block in self.blocks]
        for block, recomputes in zip(self.blocks, self._recomputing, strict=True):
            block.gradient_checkpointing = False
            vars(block)["forward"] = partial(self.run, block, recomputes and block.training)

    def __exit__(self, *_: object) -> None:
        for block, recomputes in zip(self.blocks, self._recomputing, strict=True):
            block.gradient_checkpointing = recomputes
            vars(block).pop("forward", None)


class CompiledBlocks(Blocks):
    """The first passes in it compile."""

    def __init__(self, decoder: torch.nn.Module) -> None:
        super().__init__(decoder)
        # Without it, a compiler would trace through the plan of each row.
        AttentionInterface.register(ATTENTION, torch.compiler.disable(packed_attention))
        self._forwards = {
            kind: compile_function(plain_forward(kind)) for kind in {type(block) for block in self.blocks}
        }

    def run(self, block: Any, recomputes: bool, *args: Any, **kwargs: Any) -> Any:
        compiled = self._forwards[type(block)]
        if recomputes:
            return block._gradient_checkpointing_func(partial(compiled, block, **kwargs), *args)
        return compiled(block, *args, **kwargs)


class Float32Blocks(Blocks):
    """Blocks that compute in float32 from the same weights, which are cast for one block at a time."""

    def run(self, block: Any, recomputes: bool, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(partial(_in_float32, block), *args, use_reentrant=False, **kwargs)


def _in_float32(block: Any, *args: Any, **kwargs: Any) -> Any:
    forward = vars(block).pop("forward", None)  # none in the backward pass: the context was left
    recomputes, block.gradient_checkpointing = block.gradient_checkpointing, False
    try:
        with torch.autocast(next(block.parameters()).device.type, enabled=False):
            return functional_call(block, _float32(dict(block.named_parameters())), _float32(args), _float32(kwargs))
    finally:
        block.gradient_checkpointing = recomputes
        if forward is not None:
            vars(block)["forward"] = forward


def _float32(values: Any) -> Any:
    """Tensors of floating-point numbers as float32, in tuples and dicts, too."""
    if isinstance(values, torch.Tensor):
        return values.float() if values.is_floating_point() else values
    if isinstance(values, dict):
        return {name: _float32(value) for name, value in values.items()}
    return tuple(map(_float32, values)) if isinstance(values, tuple) else values


def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` for changing lengths, by kernels whose choice does not depend on measured times: another
    process must compute the same numbers."""
    from torch._inductor import config

    options: dict[str, Any] | None = {"deterministic": True} if hasattr(config, "deterministic") else None
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True, options=options)
    return compiled


def plain_forward(kind: type) -> Callable[..., Any]:
    """``forward`` of a class of blocks, without transformers' wrapper that recomputes activations."""
    forward: Any = vars(kind)["forward"]
    plain: Callable[..., Any] = forward.__wrapped__ if FORWARD_IS_WRAPPED else forward
    return plain


def is_compile_error(error: BaseException) -> bool:
    """Whether an exception comes from the compiler: no C++ compiler, an unsupported operation, …"""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
