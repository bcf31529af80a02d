"""TRL's own code, executed without its trainer: what surrounds it, and lines cut out of a method."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@functools.cache
def trl() -> Any:
    """TRL's module of its trainer."""
    from trl.trainer import grpo_trainer

    return grpo_trainer


@contextmanager
def float64_default() -> Iterator[None]:
    """Default dtype float64: TRL divides counts, which torch rounds to the default dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class Accelerator:
    """Accelerator of one process; the values it reduces and gathers are only logged."""

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def reduce(self, tensor: torch.Tensor, reduction: str) -> torch.Tensor:
        return tensor


@functools.cache
def compiled_lines(first: str, until: str) -> Any:
    lines = inspect.getsource(trl().GRPOTrainer._generate_and_score_completions).splitlines()
    for marker in (first, until):
        assert any(marker in line for line in lines), f"'{marker}' is gone from TRL's source: find its successor"
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines) if i > start and until in line)
    return compile(textwrap.dedent("\n".join(lines[start:end])), "lines of TRL", "exec")


def trl_lines(first: str, until: str, **names: Any) -> dict[str, Any]:
    """Execute the lines from the one with ``first`` up to the one with ``until``; returns their namespace."""
    namespace = {**vars(trl()), **names}
    with float64_default():
        exec(compiled_lines(first, until), namespace)
    return namespace
