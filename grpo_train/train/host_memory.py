"""Copies of a training state in the host's memory, kept from one save to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from grpo_train.policy.memory import free_bytes


class HostMemory:
    """Page-locked for tensors of a GPU, whose copies then run at the speed of the bus."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}

    def has_room(self, value: Any) -> bool:
        """Whether the tensors in dicts, lists and tuples fit into this memory as far as it grows."""
        held = sum(_taken(buffer.nbytes, buffer.is_pinned()) for buffer in self._buffers)
        needed = sum(_taken(tensor.nbytes, tensor.is_cuda) for tensor in _tensors(value))
        return needed <= held + free_bytes(torch.device("cpu")) // 2

    def copy(self, value: Any) -> Any:
        """The value with every tensor replaced by a copy, which the next call overwrites.

        Tensors at the same place of a value of the same structure take the same memory. One that occurs twice is
        copied once.
        """
        self._used, self._copies = 0, {}
        copied = self._copy(value)
        del self._buffers[self._used :]
        self._copies = {}
        if any(buffer.is_pinned() for buffer in self._buffers):
            torch.cuda.synchronize()
        return copied

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach())
        if isinstance(value, dict):
            return {key: self._copy(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._copy, value))
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), str(tensor.device))
        if tensor.numel() and key in self._copies:
            return self._copies[key]
        index, self._used = self._used, self._used + 1
        held = self._buffers[index] if index < len(self._buffers) else None
        if held is None or (held.shape, held.dtype) != (tensor.shape, tensor.dtype):
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[index:] = [held]  # what follows is of another structure
        self._copies[key] = held.copy_(tensor, non_blocking=True)
        return held


def _taken(nbytes: int, is_pinned: bool) -> int:
    """Bytes that a tensor takes here: torch rounds page-locked blocks up to a power of two."""
    return 1 << (nbytes - 1).bit_length() if is_pinned else nbytes


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif type(value) in (list, tuple):
        for item in value:
            yield from _tensors(item)
