"""Memory: what is free, and doing the same work in smaller parts when it runs out."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar
from weakref import WeakSet

import torch

from grpo_train.policy.locate import PolicyError

NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Out-of-memory messages of the CPU allocator and of CUDA libraries that bypass torch's allocator."""
Result = TypeVar("Result")


class Keeper(Protocol):
    """Keeps memory between two uses, to save time."""

    def kept_bytes(self, device: torch.device) -> int:
        """What it keeps there and does not use now."""
        ...

    def release(self, *, for_good: bool) -> bool:
        """Give it back, and keep nothing from now on if ``for_good``; False where there is nothing."""
        ...


KEEPERS: WeakSet[Keeper] = WeakSet()
"""All of this process."""


def kept_bytes(device: torch.device) -> int:
    """What is kept between two uses, in bytes."""
    return sum(keeper.kept_bytes(device) for keeper in KEEPERS)


def release_kept(*, for_good: bool = False) -> bool:
    """Give back what is kept, as :meth:`Keeper.release`; False where there is nothing."""
    is_released = sum(keeper.release(for_good=for_good) for keeper in list(KEEPERS)) > 0
    if is_released:
        release_memory()
    return is_released


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a batch was too large, on a GPU or a CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in NO_MEMORY)
    )


@contextmanager
def surviving_out_of_memory() -> Iterator[None]:
    """Continue after the block where memory runs out in it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not is_out_of_memory(error):
            raise


def release_memory() -> None:
    """Give back what the failed work held. Call it outside of the handler: the traceback references its tensors."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class RowLimit:
    """How many completions one pass may take: halved whenever memory runs out, for the rest of the run."""

    def __init__(self, rows: int, name: str, recompute: Callable[[], bool] = lambda: False) -> None:
        """``recompute`` is called when a single row does not fit.

        Args:
            rows: the configured number, at least 1.
            name: the config key that sets it.
            recompute: recomputes activations from now on; False where they are already.
        """
        self.rows = self.configured = rows
        self._name, self._recompute = name, recompute

    def run(self, work: Callable[[int], Result]) -> Result:
        """``work(rows)``, done again from the start when memory runs out: with as many once what is kept
        (:class:`Keeper`) is given back, then with half as many, or with all of them once activations are recomputed.

        Raises PolicyError (``no_memory``) if a single row does not fit.
        """
        while True:
            try:
                return work(self.rows)
            except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_out_of_memory(error):
                    raise
                if release_kept(for_good=True):
                    message = f"{self._name} stays, without what rollouts kept"
                elif self.rows > 1:
                    self.rows = math.ceil(self.rows / 2)
                    message = f"{self._name} is too large; passes take {self.rows} completions now"
                elif self._recompute():
                    self.rows = self.configured
                    message = "one completion does not fit; activations are recomputed from now on"
                else:
                    raise PolicyError(
                        "one completion does not fit into memory; lower rollout.max_completion_length, or set "
                        "train.gradient_checkpointing: true",
                        code="no_memory",
                    ) from error
            print(f"out of memory: {message}", flush=True)
            release_memory()


class PeakMemory:
    """Peak memory of this process since :meth:`reset`, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._before = 0

    def reset(self) -> None:
        """Begin again from what is in use now."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = int(torch.cuda.memory_allocated(self.device))
            return
        with suppress(OSError):  # a read-only /proc: the peak of the whole process remains
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM (proc(5))

    def used(self) -> int:
        """Allocated on the GPU, or resident in RAM."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return resident_bytes("VmHWM")

    def above(self) -> int | None:
        """Allocated above what was in use at the reset; None on a CPU, where freed memory may stay with the process."""
        return self.used() - self._before if self.device.type == "cuda" else None

    def reserved(self) -> int | None:
        """Taken from the GPU by torch's allocator; None on a CPU."""
        return int(torch.cuda.max_memory_reserved(self.device)) if self.device.type == "cuda" else None


def resident_bytes(field: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (peak) of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(lines[field].split()[0]) * 1024


def total_bytes(device: torch.device) -> int:
    """Memory of the GPU in bytes, or what this machine has for this process."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return free_bytes(device) + resident_bytes("VmRSS")


def free_bytes(device: torch.device) -> int:
    """Free memory in bytes: of the GPU, or of this machine and the container the process runs in.

    What is kept (:class:`Keeper`) is free: it is given back before it is missed.
    """
    return _unused_bytes(device) + kept_bytes(device)


def _unused_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return available
    return min(available, int(limit) - int(used)) if limit.isdigit() else available
