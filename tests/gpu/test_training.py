"""Training on CUDA: ``python -m pytest tests/gpu`` on a machine with a GPU (not collected by default)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grpo_train.run_dir import RunDir
from tests.gpu import needs_gpu
from tests.support.engine import assert_same_run, resume_here, rows, steps_logged, train_here, write_config

pytestmark = needs_gpu


@pytest.mark.parametrize(
    ("adapter", "dtype", "compiled"),
    [("lora", "auto", "auto"), ("none", "auto", "off"), ("none", "float32", "off")],
)
def test_training_and_resume(root: Path, adapter: str, dtype: str, compiled: str) -> None:
    """Steps run on the GPU, sampler and trainer agree, and a resume ends with finite metrics.

    Compiling takes 10 to 20 s at every start.
    """
    cfg = write_config(
        root, model__adapter=adapter, model__dtype=dtype, rollout__compile=compiled, train__compile=compiled
    )
    run = train_here(root, cfg, "gpu", "--until", "3")
    resume_here(run)
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    assert torch.cuda.max_memory_allocated() > 0
    for row in rows(run):
        assert float(row["grad_norm"]) >= 0
        assert row["memory/reserved_gib"] >= row["memory/peak_gib"] > 0
        assert float(row["ess/token"]) > (0.999 if dtype == "float32" else 0.9)
    straight = train_here(root, cfg, "straight")
    first, again = rows(run)[0], rows(straight)[0]
    assert first["reward"] == again["reward"]
    assert first["grad_norm"] == pytest.approx(again["grad_norm"], rel=0.05)


def seconds_of(run: RunDir) -> float:
    """Of all steps but the first."""
    return sum(float(value) for row in rows(run)[1:] for key, value in row.items() if key.startswith("time/"))


def test_kernels_that_repeat(root: Path) -> None:
    """Two runs are equal bit for bit; how much slower they are than a third one."""
    same = {"model__dtype": "bfloat16", "rollout__compile": "off", "train__compile": "off"}
    cfg = write_config(root, "repeats.yaml", run__deterministic=True, **same)
    try:
        first, again = train_here(root, cfg, "one"), train_here(root, cfg, "two")
        assert_same_run(first, again, 6)
        slow = seconds_of(again)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_mem_efficient_sdp(True)
    free = train_here(root, write_config(root, "free.yaml", **same), "free")
    print(f"with repeating kernels {slow / seconds_of(free):.2f} times as long")
