"""Helpers of the checkpoint tests: a trainer that saves without training, and a completeness check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_train.config.schema import Model
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.run_dir import RunDir, problem_of, write_manifest
from grpo_train.run_dir.files import atomic_symlink
from grpo_train.train.checkpoint import CheckpointContent, collect_content, write_checkpoint
from grpo_train.train.distributed import World

EXTRA: dict[str, Any] = {
    "probes": {"signal": [0.25, -1.5], "noise": [3.0], "steps": 7},
    "buffer": {"ids": torch.arange(64).view(8, 8), "texts": ["a", "b"], "reference": None, "spans": [(0, 3), (3, 8)]},
}
"""As the loop saves them: averages of the probes and a pending buffer."""


@dataclass
class Trainer:
    """Everything a checkpoint holds."""

    adapter: str
    policy: Policy
    optimizer: torch.optim.Optimizer
    scheduler: Any

    def save(self, run: RunDir, step: int, final: bool = False, extra: Mapping[str, Any] | None = None) -> None:
        """Save without training, on this thread."""
        write_checkpoint(run, self.snapshot(step, final, extra), self.policy)

    def snapshot(self, step: int, final: bool = False, extra: Mapping[str, Any] | None = None) -> CheckpointContent:
        """What a save writes."""
        info = {"num_tokens": step}
        taken = collect_content(
            step, self.policy, self.optimizer, self.scheduler, World(), info=info, is_final=final, extra=extra
        )
        assert taken is not None
        return taken


def make_trainer(model: Path, adapter: str, weights: Path | None = None) -> Trainer:
    """A trainer of a tiny model's full weights or a LoRA adapter, after one optimizer step, which fills its state;
    of saved weights, before it."""
    torch.set_num_threads(1)
    settings = Model(backbone=str(model), adapter=adapter, lora_rank=4, lora_alpha=8)  # type: ignore[arg-type]
    policy = load_policy(settings, Path("/"), torch.device("cpu"), weights=weights)
    optimizer = torch.optim.AdamW(policy.trainable(), lr=1e-4)
    if weights is None:
        for parameter in policy.trainable():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return Trainer(adapter, policy, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0))


def whole(run: RunDir) -> list[int]:
    """Visible steps. Fails the test if one is incomplete or damaged, or a link dangles."""
    steps = [checkpoint.step for checkpoint in run.checkpoints()]
    for step in steps:
        assert not problem_of(run.training_state / f"step_{step}", deep=True)
    for alias in run.training_state.glob("step_[lf]*"):
        assert alias.exists(), f"{alias.name} dangles"
    return steps


def small_checkpoint(run: RunDir, step: int, *, latest: bool = True) -> Path:
    """Write a checkpoint that is complete for the run directory: two files of a few bytes."""
    folder = run.training_state / f"step_{step}"
    staging = folder.with_name(f".step_{step}.{os.getpid()}-new.tmp")
    (staging / "model").mkdir(parents=True)
    (staging / "model" / "weights").write_bytes(bytes([step % 256]) * 100)
    (staging / "optimizer.pt").write_bytes(b"o" * 50)
    write_manifest(staging, format=1, step=step)
    staging.rename(folder)
    if latest:
        atomic_symlink(run.training_state / "step_latest", folder.name)
    return folder
