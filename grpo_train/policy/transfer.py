"""From the host to the device: many small arrays in one copy that the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Bytes: a view of any type begins at a multiple of its size."""


class Moved:
    """An array on its way."""

    tensor: Tensor
    """On the device, once :meth:`ArrayTransfer.send` has been called."""


class ArrayTransfer:
    """Collects arrays and sends them together: to a GPU in one asynchronous copy from page-locked memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._waiting: list[tuple[Moved, Tensor]] = []

    def add(self, values: np.ndarray | Tensor) -> Moved:
        """Add an array of the host; it must not change before :meth:`send`."""
        host = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
        moved = Moved()
        self._waiting.append((moved, host))
        return moved

    def send(self) -> None:
        """Make the tensors of what was added."""
        waiting, self._waiting = self._waiting, []
        if self.device.type == "cpu":
            for moved, host in waiting:
                moved.tensor = host
            return
        arrays = [host for _, host in waiting]
        # torch keeps page-locked memory until a copy from it is done.
        arrived = join_arrays(arrays, pin=self.device.type == "cuda").to(self.device, non_blocking=True)
        for start, (moved, host) in zip(starts_of(arrays), waiting, strict=True):
            moved.tensor = part_of(arrived, start, host)


def starts_of(arrays: Sequence[Tensor]) -> list[int]:
    """Offsets in bytes of arrays in one memory."""
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    return [0, *accumulate(sizes)][:-1]


def join_arrays(arrays: Sequence[Tensor], *, pin: bool = False) -> Tensor:
    """Arrays one after the other as bytes; ``pin`` for page-locked memory."""
    starts = starts_of(arrays)
    size = starts[-1] + -(-arrays[-1].nbytes // _ALIGNMENT) * _ALIGNMENT if arrays else 0
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
    for start, array in zip(starts, arrays, strict=True):
        part_of(memory, start, array).copy_(array)
    return memory


def part_of(memory: Tensor, start: int, like: Tensor) -> Tensor:
    """A view of bytes in the type and shape of an array."""
    return memory[start : start + like.nbytes].view(like.dtype).view(like.shape)
