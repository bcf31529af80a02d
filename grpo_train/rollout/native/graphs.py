"""A decoding step as one CUDA graph: its kernels are launched together instead of one by one by the host.

A graph repeats the same kernels on the same addresses. A step therefore takes everything that changes from tensors that
stay where they are, and there is a graph for each of few shapes: a number of rows, which unused rows fill up, and a
number of positions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import torch

from grpo_train.policy.memory import is_out_of_memory

Step: TypeAlias = Callable[[], None]
Record: TypeAlias = Callable[[Step], Step]
"""Records a step without executing it, and returns what repeats it."""

WIDTH_STEP = 256
"""Granularity of the positions that a recorded step looks at."""


class StepGraphs:
    """Graphs of one :class:`~grpo_train.rollout.native.decoding.Decoding`, each recorded when its shape comes for the
    second time. They are dropped together: torch clears what the others of a stream use when one is dropped."""

    def __init__(self, record: Record | None) -> None:
        """Without ``record``, every step is executed as it is."""
        self._record = record
        self._recorded: dict[tuple[int, int], Step | None] = {}
        """By shape; None after the first step of a shape."""
        self.failure = ""
        """Why no more steps are recorded."""

    @property
    def count(self) -> int:
        """Number of graphs."""
        return sum(graph is not None for graph in self._recorded.values())

    def run(self, shape: tuple[int, int], step: Step) -> None:
        """Execute a step of this number of rows and positions. The first one of a shape initializes its kernels."""
        if shape not in self._recorded or self._record is None:
            self._recorded.setdefault(shape, None)
            step()
            return
        replay = self._recorded[shape]
        if replay is None:
            try:
                replay = self._recorded[shape] = self._record(step)
            except RuntimeError as error:  # nothing of the step was executed
                if is_out_of_memory(error):
                    raise
                self._record = None
                self.failure = (str(error) or repr(error)).strip().splitlines()[0]
                step()
                return
        replay()


def graph_rows(count: int, most: int) -> int:
    """Rows of the recorded step for ``count`` rows: the next power of two from 2 on, or all slots. Compiled code for a
    single row would be another one."""
    return min(most, 1 << max(1, (count - 1).bit_length()))


def cuda_recorder(stream: torch.cuda.Stream) -> Record:
    """Records CUDA graphs. They share a pool of memory, as a step leaves nothing there.

    ``stream``: one for all recordings, as each stream keeps workspaces of cuBLAS.
    """
    pool = torch.cuda.graph_pool_handle()
    graphs: list[torch.cuda.CUDAGraph] = []
    """Also those that failed: without a graph, the pool could not be used again."""

    def capture(step: Step) -> Step:
        """As ``torch.cuda.graph``, which clears the allocator's cache each time."""
        graph = torch.cuda.CUDAGraph()
        graphs.append(graph)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            # Other threads, such as the one that saves a checkpoint, use CUDA meanwhile.
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # the first error says why
                    graph.capture_end()
                raise
            graph.capture_end()
        replay: Step = graph.replay
        return replay

    def record(step: Step) -> Step:
        try:
            return capture(step)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # a recording cannot use what the allocator keeps
        return capture(step)

    return record
