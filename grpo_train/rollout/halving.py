"""Generation that goes on with fewer completions at once when memory runs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from grpo_train.policy.completion import Completion
from grpo_train.policy.locate import PolicyError
from grpo_train.policy.memory import is_out_of_memory, release_kept, release_memory

Flow = Callable[[list[int], int], Iterator[tuple[int, Completion]]]
"""Yields the completions of some indices, generated so many at once, each when it ends."""


class Halving:
    """How many completions a backend generates at once: halved whenever memory runs out and no other backend keeps some
    (:class:`~grpo_train.policy.memory.Keeper`), now and in later calls."""

    def __init__(self) -> None:
        self._max_rows: int | None = None
        """None before the first out-of-memory error."""

    def run(self, count: int, batch_size: int, flow: Flow) -> Iterator[tuple[int, Completion]]:
        """``count`` completions, each when it ends, ``batch_size`` at once (0 = all) if memory allows.

        Those that are left when memory runs out are generated from their start. Raises PolicyError if a single one does
        not fit.
        """
        missing = dict.fromkeys(range(count))
        while missing:
            size = min(len(missing), batch_size or len(missing), self._max_rows or len(missing))
            try:
                for index, completion in flow(list(missing), size):
                    del missing[index]
                    yield index, completion
                return
            except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_out_of_memory(error):
                    raise
                others = release_kept(for_good=True)
                if size == 1 and not others:
                    raise PolicyError("one completion does not fit into memory; lower max_completion_length") from error
            # Outside of the handler: the traceback references the batch's tensors.
            if not others:
                self._max_rows = size = math.ceil(size / 2)
            print(f"out of memory: continuing with {size} completions at once", flush=True)
            release_memory()
