"""Data order of a run: a pure function of seed and position, so that a resume needs only the position."""

from __future__ import annotations

import random
from functools import lru_cache


def data_order(size: int, seed: int, position: int) -> int:
    """Index of the problem at ``position`` (0, 1, 2, … over all epochs): each epoch has its own seeded permutation.

    Touches no global random state. Raises ValueError for a size below 1 or a negative position.
    """
    if size < 1 or position < 0:
        raise ValueError(f"data_order needs size >= 1 and position >= 0, got size {size}, position {position}")
    epoch, offset = divmod(position, size)
    return _permutation(size, seed, epoch)[offset]


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> list[int]:
    indices = list(range(size))
    # A string seed goes through SHA-512, so the order is the same on every platform and Python version.
    random.Random(f"data_order {seed} {epoch}").shuffle(indices)
    return indices
