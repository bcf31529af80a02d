"""A step that runs out of memory is done again in smaller passes; a resume takes the same passes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.policy.locate import PolicyError
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.policy.memory import RowLimit
from grpo_train.train.worker import main
from tests.support.engine import assert_same_run, resume_here, rows, run_of, train_here, weights_hash, write_config


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A forward pass of more than five completions fails as CUDA's allocator does, one with gradient halfway through
    the step; returns the sizes that failed."""
    original, failed = LogprobForward.__call__, []

    def forward(self: LogprobForward, completions: Any, **options: Any) -> Any:
        if len(completions) > 5:
            failed.append(len(completions))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB")
        return original(self, completions, **options)

    monkeypatch.setattr(LogprobForward, "__call__", forward)
    return failed


def test_the_step_is_done_again(root: Path, tmp_path: Path, small_memory: list[int], request: Any) -> None:
    torch.set_num_threads(1)
    cfg = write_config(root, algorithm__num_iterations=2, train__tf_micro_batch=16, train__skip_zero_advantages=False)
    run = train_here(root, cfg, "small")
    assert small_memory == [16, 8, 8], "scored in passes of 16 and 8, then a micro-batch of 8; never tried again"
    assert [row["memory/rows_per_pass"] for row in rows(run)] == [4] * 6
    shutil.copytree(root, tmp_path / "copy", symlinks=True)
    again = run_of(tmp_path / "copy", "small")
    resume_here(again, "3")
    assert small_memory == [16, 8, 8], "the resume knows"
    assert_same_run(run, again, 6)


def test_the_result_is_that_of_enough_memory(root: Path, small_memory: list[int], monkeypatch: Any) -> None:
    torch.set_num_threads(1)
    cfg = write_config(root, run__total_steps=1, train__skip_zero_advantages=False)
    short = train_here(root, cfg, "short")
    assert small_memory
    monkeypatch.undo()
    ample = train_here(root, cfg, "ample")
    for key in ("loss", "grad_norm", "reward", "kl"):
        assert rows(short)[0][key] == pytest.approx(rows(ample)[0][key], rel=1e-4, abs=1e-7), key


def test_one_completion_that_does_not_fit() -> None:
    limit = RowLimit(3, "train.microbatch_size")

    def work(rows: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(PolicyError, match=r"lower rollout\.max_completion_length") as error:
        limit.run(work)
    assert (limit.rows, error.value.code) == (1, "no_memory")


def test_other_errors_are_not_tried_again() -> None:
    def work(rows: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        RowLimit(4, "train.microbatch_size").run(work)


def test_activations_are_recomputed_when_nothing_else_helps(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No completion fits until they are; then whole micro-batches do, also after a resume. No number changes."""
    torch.set_num_threads(1)
    original, failed = LogprobForward.__call__, []
    cfg = write_config(root, train__skip_zero_advantages=False)
    ample = train_here(root, cfg, "ample")

    def forward(self: LogprobForward, completions: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and not self.policy.model.is_gradient_checkpointing:
            failed.append(len(completions))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB")
        return original(self, completions, **options)

    monkeypatch.setattr(LogprobForward, "__call__", forward)
    run = train_here(root, cfg, "recomputed")
    assert failed == [8, 4, 2, 1]
    assert (
        "out of memory: one completion does not fit; activations are recomputed from now on" in capfd.readouterr().out
    )
    assert [row["memory/rows_per_pass"] for row in rows(run)] == [8] * 6
    assert weights_hash(run, 6) == weights_hash(ample, 6)
    shutil.copytree(root, tmp_path / "copy", symlinks=True)
    again = run_of(tmp_path / "copy", "recomputed")
    resume_here(again, "3")
    assert failed == [8, 4, 2, 1], "the resume knows"
    assert_same_run(run, again, 6)


def test_a_fixed_budget_leaves_activations_to_the_config(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: LogprobForward, completions: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LogprobForward, "__call__", forward)
    cfg = write_config(root, train__token_budget=0, train__skip_zero_advantages=False)
    arguments = ["--cfg", str(cfg), "--root", str(root), "--run-name", "fixed"]
    assert main(arguments) == 1
    assert ((run_of(root, "fixed").read_status() or {})["error"] or {})["code"] == "no_memory"
