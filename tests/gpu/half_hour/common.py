"""What checks and measurements share: the device, models with random weights, times, captures."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from torch import Tensor

from grpo_train.bench.floors import Rates
from grpo_train.bench.measure import machine_rates
from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.policy.memory import release_kept
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.graphs import Record, Step
from tests.support.engine import REPOSITORY
from tests.support.tiny import kept_tiny_model

T = TypeVar("T")
DRY = os.environ.get("GPU_DRY") == "1"
"""Whether this runs on a CPU with a tiny model, to find errors of these files."""
DEVICE = torch.device("cpu") if DRY else torch.device("cuda", 0)
DTYPE = torch.float32 if DRY else torch.bfloat16
ROOT = Path(os.environ.get("LOCALFS_ROOT") or tempfile.gettempdir())
"""Of the runs of the checks."""
OUT = Path(os.environ.get("OUT") or tempfile.gettempdir())
"""Folder of the results."""
SHARE = 2**30
"""Bytes in a GiB."""


def sized(value: T, dry: T) -> T:
    """A size, and the one of a dry run."""
    return dry if DRY else value


LARGE, SMALL = sized("qwen2_5_15", "tiny"), sized("qwen2_5_05", "tiny")
"""Shapes of the measured models."""


def bench_config(backbone: str, adapter: str = "lora", **sections: dict[str, Any]) -> Config:
    """The config of a measurement, with changes to its sections."""
    length = {"max_prompt_length": sized(128, 32), "max_completion_length": sized(512, 32)}
    document: dict[str, dict[str, Any]] = {
        "model": {"backbone": backbone, "adapter": adapter, "dtype": str(DTYPE).removeprefix("torch.")},
        "rollout": {"buffer_size": sized(32, 2), "num_generations": sized(8, 4), **length},
        "train": {"microbatch_size": 2},
    }
    for section, keys in sections.items():
        document.setdefault(section, {}).update(keys)
    return load_config(yaml.safe_dump(document), source="half hour")


def tiny_root() -> Path:
    """The root, with the tests' tiny model."""
    target = ROOT / "models" / "tiny"
    if not target.is_dir():
        shutil.copytree(kept_tiny_model(REPOSITORY / ".pytest_cache" / "d" / "tiny-model"), target)
    return ROOT


@cache
def rates() -> Rates:
    """What this machine does in a second."""
    return machine_rates(DEVICE, DTYPE, Path(tempfile.gettempdir()))


def sync() -> None:
    """Wait for the device."""
    if not DRY:
        torch.cuda.synchronize()


class Marks:
    """Points in time of the device, and the milliseconds between them."""

    @staticmethod
    def now() -> Any:
        if DRY:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def between(first: Any, second: Any) -> float:
        return (second - first) * 1e3 if DRY else first.elapsed_time(second)


def milliseconds(work: Callable[[], object], repeats: int = 20, warm: int = 3) -> float:
    """Median time of ``work()``."""
    for _ in range(sized(warm, 0)):
        work()
    pairs = []
    for _ in range(sized(repeats, 1)):
        first = Marks.now()
        work()
        pairs.append((first, Marks.now()))
    sync()
    return sorted(Marks.between(*pair) for pair in pairs)[len(pairs) // 2]


def seconds_of(work: Callable[[], T]) -> tuple[T, float]:
    """What ``work()`` returns, and its time."""
    sync()
    began = time.perf_counter()
    found = work()
    sync()
    return found, time.perf_counter() - began


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """The attribute of an object or class, replaced in the block."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


@contextmanager
def captures_of(backend: NativeBackend) -> Iterator[list[float]]:
    """The seconds of each capture of a decoding step in the block. What is kept from before is released.

    On a CPU a step is repeated as it is. None where the trial of CUDA graphs has failed.
    """
    make = backend._recorder or ((lambda: lambda step: step) if DRY else None)
    spent: list[float] = []

    def recorder() -> Record:
        assert make is not None
        record = make()

        def timed(step: Step) -> Step:
            replay, seconds = seconds_of(lambda: record(step))
            spent.append(seconds)
            return replay

        return timed

    release_kept()
    with replaced(backend, "_recorder", make and recorder):
        yield spent
    release_kept()


@contextmanager
def little_memory(left: int) -> Iterator[None]:
    """``left`` bytes of the GPU are free in the block."""
    if DRY:
        yield
        return
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, free - left), dtype=torch.uint8, device=DEVICE)
    try:
        yield
    finally:
        del ballast
        torch.cuda.empty_cache()


def gib(count: float) -> str:
    return f"{count / SHARE:.2f} GiB"


def distance(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference, as a share of the second one's norm."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())
