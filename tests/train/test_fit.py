"""Which sizes fit: tried from small to large, the largest that fits is named. Not measured on a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_train.train.fit import FULL, SizeTrial, _largest, _Meter
from tests.support.engine import grpo_train, write_config


class Scale(_Meter):
    """Memory of 1,000 bytes, of which a piece of work of size n takes 100 + 10 n, and over 1,000 does not fit."""

    def __init__(self) -> None:
        self.device, self.total = torch.device("cuda"), 1_000
        self.size = 0

    def peak(self, work: Callable[[], None]) -> int | None:
        work()
        taken = 100 + 10 * self.size
        return taken if taken <= self.total else None


@pytest.mark.parametrize(
    ("sizes", "best", "tried"),
    [
        ([1, 2, 4, 8], 8, 4),
        ([1, 50, 80, 90], 80, 4),  # 90: nearly full
        ([1, 50, 200, 400], 50, 3),  # 200: out of memory, and 400 is not tried
        ([500], None, 1),
    ],
)
def test_the_largest_that_fits(sizes: list[int], best: int | None, tried: int) -> None:
    scale, trials = Scale(), list[SizeTrial]()

    def work(size: int) -> None:
        scale.size = size

    assert _largest("key", iter(sizes), work, scale, trials) == best
    assert [trial.size for trial in trials] == sizes[:tried]
    assert FULL["cuda"] == 0.92


def test_memory_of_a_piece_of_work_is_its_own() -> None:
    """The peak of an earlier, larger piece does not count."""
    meter = _Meter(torch.device("cpu"))
    large = meter.peak(lambda: bytes(torch.ones(64 << 20, dtype=torch.uint8).numpy()) and None)
    small = meter.peak(lambda: None)
    assert large is not None
    assert small is not None
    assert large > small + (32 << 20)


def test_the_command_prints_a_config(root: Path) -> None:
    cfg = write_config(root, train__microbatch_size="auto", rollout__max_completion_length=16)
    done = grpo_train("fit", "--cfg", cfg, "--json", root=root)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["device"], found["microbatch_size"], found["tf_micro_batch"]) == ("CPU", 4, 256)
    assert all(trial["peak_bytes"] > 0 for trial in found["trials"])
    assert not (root / "training_runs").exists(), "no run is made"


def test_a_model_must_be_named(root: Path) -> None:
    done = grpo_train("fit", "--cfg", write_config(root, model__backbone="auto"), root=root)
    assert done.returncode == 2
    assert "set model.backbone" in done.stderr
