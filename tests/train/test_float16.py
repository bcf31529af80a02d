"""Training in float16, whose small gradients need a scaled loss. Not measured on a GPU."""

from __future__ import annotations

import functools
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.support.engine import assert_same_run, resume_here, rows, run_of, train_here, weights_hash, write_config


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_resume_is_bit_exact(root: Path, tmp_path: Path, adapter: str) -> None:
    """The loss scale is part of the state."""
    torch.set_num_threads(1)
    cfg = write_config(root, run__total_steps=4, model__adapter=adapter, model__dtype="float16")
    run = train_here(root, cfg, "half")
    assert (run.training_state / "step_2" / "loss_scale.pt").is_file()
    shutil.copytree(root, tmp_path / "copy", symlinks=True)
    again = run_of(tmp_path / "copy", "half")
    resume_here(again, "2", total=4)
    assert_same_run(run, again, 4)


def test_the_gradient_is_that_of_float32(root: Path) -> None:
    """Without the scale in it: neither the norm nor the noise scale shows that the loss was multiplied by 65,536."""
    torch.set_num_threads(1)
    half, whole = (
        rows(train_here(root, write_config(root, run__total_steps=1, model__dtype=dtype), dtype))[0]
        for dtype in ("float16", "float32")
    )
    assert half["loss_scale"] == 65_536
    assert "loss_scale" not in whole
    assert half["grad_norm"] == pytest.approx(whole["grad_norm"], rel=0.2)  # a sampled token may differ


def test_a_scale_that_is_too_large_is_halved(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose scaled gradient overflows are skipped with a note, without an alarm; training continues."""
    torch.set_num_threads(1)
    scaler = functools.partial(torch.amp.GradScaler, init_scale=2.0**34)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    spread = torch.tensor([1.0, -1.0])  # each step has a gradient, whatever the model answers
    monkeypatch.setattr(
        "grpo_train.train.loop.compute_advantages", lambda samples, *_: spread.repeat(len(samples) // 2)
    )
    run = train_here(root, write_config(root, run__total_steps=16, model__dtype="float16"), "halved")
    lines = rows(run)
    skipped = [line["step"] for line in lines if line["grad_norm"] in ("NaN", "Infinity")]
    assert skipped[0] == 1
    assert len(skipped) < 16
    for line in lines:
        levels = {record["code"]: record["level"] for record in line["health"]}
        assert levels.get("loss_scale_lowered") == ("info" if line["step"] in skipped else None)
        assert "gradient_not_finite" not in levels
    for before, line in pairwise(lines):
        assert line["loss_scale"] == before["loss_scale"] / (2 if before["step"] in skipped else 1)
    first = next(step for step in range(1, 17) if step not in skipped)
    assert weights_hash(run, first - 1) == weights_hash(run, 1)
    assert weights_hash(run, 16) != weights_hash(run, 1)


def test_a_first_step_without_a_gradient_is_no_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been multiplied by the scale yet, as on a rank that is dealt no micro-batch."""
    torch.set_num_threads(1)
    monkeypatch.setattr("grpo_train.train.loop.compute_advantages", lambda samples, *_: torch.zeros(len(samples)))
    run = train_here(root, write_config(root, run__total_steps=1, model__dtype="float16"), "flat")
    assert (rows(run)[0]["grad_norm"], rows(run)[0]["loss_scale"]) == (0, 65_536)
