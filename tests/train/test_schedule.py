"""The learning rate of each step: warmup, decay, and what more steps do to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config.schema import Optimizer
from grpo_train.train.schedule import rate_factor
from tests.support.engine import assert_same_run, grpo_train, resume_here, rows, train_here, write_config


def rates(total: int, **settings: object) -> list[float]:
    return [rate_factor(Optimizer.model_validate(settings), done, total) for done in range(total)]


def test_rates_by_hand() -> None:
    assert rates(4, warmup_steps=1) == [0.5, 1.0, 1.0, 1.0]
    assert rates(5, warmup_steps=1, schedule="linear") == [0.5, 1.0, 0.75, 0.5, 0.25]
    assert rates(4, schedule="linear", min_lr_ratio=0.5) == [1.0, 0.875, 0.75, 0.625]
    half = math.cos(math.pi / 4) / 2
    assert rates(4, schedule="cosine") == pytest.approx([1.0, 0.5 + half, 0.5, 0.5 - half])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_rates_of_transformers(schedule: str) -> None:
    """The same decay as its schedulers, whose warmup begins one step lower."""
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = get_scheduler(schedule, optimizer, num_warmup_steps=3, num_training_steps=20)
    theirs = []
    for _ in range(20):
        theirs.append(reference.get_last_lr()[0])
        optimizer.step()
        reference.step()
    assert rates(20, warmup_steps=3, schedule=schedule)[3:] == pytest.approx(theirs[3:])


@given(
    st.sampled_from(["linear", "cosine"]), st.integers(0, 30), st.integers(1, 60), st.floats(0, 1), st.integers(0, 200)
)
def test_a_rate_never_leaves_its_range(schedule: str, warmup: int, total: int, least: float, done: int) -> None:
    settings = Optimizer.model_validate({"schedule": schedule, "warmup_steps": warmup, "min_lr_ratio": least})
    first, second = (rate_factor(settings, step, total) for step in (done, done + 1))
    assert 0 <= first <= 1
    if done >= warmup:
        assert first >= second >= least - 1e-12
    if done >= max(total, warmup + 1):
        assert first == pytest.approx(least)


def test_a_decaying_run_resumes_bit_for_bit(make_root: Callable[[], Path]) -> None:
    torch.set_num_threads(1)
    root = make_root()
    settings = {"optimizer__schedule": "cosine", "optimizer__min_lr_ratio": 0.1, "run__total_steps": 4}
    cfg = write_config(root, **settings)
    straight = train_here(root, cfg, "straight")
    assert [row["learning_rate"] for row in rows(straight)] == pytest.approx(
        [3e-4 * factor for factor in rates(4, warmup_steps=2, schedule="cosine", min_lr_ratio=0.1)]
    )
    halves = train_here(root, cfg, "halves", "--until", "2")
    resume_here(halves, total=4)
    assert_same_run(straight, halves, 4)


def test_more_steps_follow_the_longer_curve(make_root: Callable[[], Path]) -> None:
    root = make_root()
    cfg = write_config(root, optimizer__schedule="linear", optimizer__warmup_steps=0, run__total_steps=2)
    run = train_here(root, cfg, "longer")
    done = grpo_train("resume", "--training-run", run.name, "--additional-steps", 2, "--no-torchrun", root=root)
    assert done.returncode == 0, done.stderr
    assert (
        "optimizer.schedule: linear to step 4 instead of 2: the learning rate is 1.5e-4 at step 3 (it was 1.5e-4 at "
        "step 2); earlier steps stay as they were"
    ) in done.stdout
    assert [row["learning_rate"] for row in rows(run)] == pytest.approx([3e-4, 1.5e-4, 1.5e-4, 0.75e-4])
