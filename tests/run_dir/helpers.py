"""Small checkpoints and logs."""

from __future__ import annotations

from pathlib import Path

from grpo_train.run_dir import RunDir, write_manifest
from grpo_train.run_dir.files import atomic_symlink, to_json, utc_now


def make_checkpoint(run: RunDir, step: int, *, latest: bool = True) -> Path:
    """A complete checkpoint with two small files."""
    folder = run.training_state / f"step_{step}"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_bytes(bytes([step]) * 100)
    (folder / "optimizer.pt").write_bytes(b"o" * 50)
    write_manifest(folder, format=1, step=step)
    if latest:
        atomic_symlink(run.training_state / "step_latest", folder.name)
    return folder


def log(run: RunDir, *steps: int) -> None:
    """Append a row per step to each log."""
    for file in ("train_log.jsonl", "rollouts.jsonl", "ratios.jsonl", "tokens.jsonl"):
        with (run.logs / file).open("a") as stream:
            stream.writelines(to_json({"step": step, "time": utc_now(), "life": file}) + "\n" for step in steps)
