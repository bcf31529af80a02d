"""Compiled transformer blocks: one compiled code for all blocks of a model and for all lengths of a row.

Packed attention stays out of it: its plan depends on the lengths. Only passes with a gradient use compiled blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_train.policy.packing import ATTENTION, packed_attention


class CompiledBlocks:
    """A context in which the blocks of a decoder run compiled; the first passes in it compile."""

    def __init__(self, decoder: torch.nn.Module) -> None:
        """Raises ValueError for a decoder without blocks that transformers could checkpoint."""
        self.blocks = [block for block in decoder.modules() if isinstance(block, GradientCheckpointingLayer)]
        if not self.blocks or any("forward" in vars(block) for block in self.blocks):
            raise ValueError(f"{type(decoder).__name__} has no blocks of its own kind")
        # Without it, a compiler would trace through the plan of each row.
        AttentionInterface.register(ATTENTION, torch.compiler.disable(packed_attention))
        kinds = {kind: compile_function(plain_forward(kind)) for kind in {type(block) for block in self.blocks}}
        self._forwards = [partial(_run, block, kinds[type(block)]) for block in self.blocks]

    def __enter__(self) -> None:
        for block, forward in zip(self.blocks, self._forwards, strict=True):
            vars(block)["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for block in self.blocks:
            vars(block).pop("forward", None)


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
    plain: Callable[..., Any] = getattr(forward, "__wrapped__", forward)
    return plain


def is_compile_error(error: BaseException) -> bool:
    """Whether an exception comes from the compiler: no C++ compiler, an unsupported operation, …"""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def _run(block: Any, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The block's ``forward``; recomputed in the backward pass where the model is set so."""
    if block.gradient_checkpointing and block.training:
        return block._gradient_checkpointing_func(partial(compiled, block, **kwargs), *args)
    return compiled(block, *args, **kwargs)
