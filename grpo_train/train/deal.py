"""Which rank trains which micro-batch: dealt by tokens, so that no rank waits for another.

Micro-batches stay as they are, since the noise scale compares their gradients: they are moved, not mixed.
"""

from __future__ import annotations

from collections.abc import Sequence


def deal(tokens: Sequence[int], ranks: int, updates: int) -> list[int]:
    """The rank of each of a buffer's micro-batches, which every rank computes alike.

    In each update, the longest micro-batch that is left goes to the rank with the fewest tokens so far, unless that
    leaves the busiest rank as busy as before: then, and where nothing is computed, micro-batches stay where they were
    generated.

    Args:
        tokens: what each micro-batch computes, 0 = nothing; those of the first update first, and of an update those
            that rank 0 generated first.
        updates: updates of one pass over the buffer.
    """
    part = len(tokens) // updates
    home = [rank for rank in range(ranks) for _ in range(part // ranks)]
    found: list[int] = []
    for update in range(updates):
        work = tokens[update * part : (update + 1) * part]
        dealt, loads = list(home), [0] * ranks
        for index in sorted(range(part), key=lambda index: (-work[index], index)):
            if work[index]:
                dealt[index] = min(range(ranks), key=lambda rank: (loads[rank], rank != home[index], rank))
                loads[dealt[index]] += work[index]
        busiest = max(sum(w for w, rank in zip(work, home, strict=True) if rank == each) for each in range(ranks))
        found += home if busiest <= max(loads) else dealt
    return found
