"""The world: the data-parallel processes of a run, one a device, started by torchrun or alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Its functions have ``group=group.WORLD`` as a default. Imported after the group exists (transformers does), they would
# keep it alive past leave(), and a thread of the group that runs at interpreter exit aborts the process.
import torch.distributed.nn

from grpo_train.run_dir.errors import UserError

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""A rank that waits longer than this for the others fails instead of hanging."""


@dataclass(frozen=True)
class World:
    """This process's rank among all. Every method also works for a single process."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> World:
        """Join the world that torchrun's environment describes (gloo on CPUs; on GPUs nccl, with gloo for objects)."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        world = cls(int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0")), size)
        if size > 1:
            if world.local_rank < torch.cuda.device_count():  # fewer GPUs: pick_device refuses, or model.device is cpu
                torch.cuda.set_device(world.local_rank)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
        return world

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()

    def sum_(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the ranks in place, in one all-reduce."""
        if self.size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_main(self, work: Callable[[], Any]) -> Any:
        """Rank 0's result of ``work``, on every rank. Its UserError is raised on every rank, too."""
        outcome = None
        if self.is_main:
            try:
                outcome = work()
            except UserError as error:
                outcome = error
        outcome = self.broadcast(outcome)
        if isinstance(outcome, UserError):
            raise outcome
        return outcome

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]
