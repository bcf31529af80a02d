"""The full training state: saved atomically, checked before it is trusted, restored exactly.

Must: a directory ``step_N`` is visible only when complete. Must: a kill at any instruction leaves the checkpoints
that were complete. So: everything into a hidden directory beside, fsync each file, the manifest last, one rename,
fsync of the parent; only then the symlinks move.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from grpo_train.distributed import Group
from grpo_train.files import atomic_symlink, atomic_write, fsync_directory, read_json, utc_now
from grpo_train.policy.loading import Policy
from grpo_train.policy.locate import adapter_of
from grpo_train.processes import is_alive, start_ticks
from grpo_train.run_dir import Checkpoint, RunDir, remove_tree, write_manifest

FORMAT = 1


class CheckpointError(Exception):
    """A checkpoint that cannot be written or trusted; says which file and the way out."""


def save_checkpoint(
    run: RunDir,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    group: Group,
    *,
    info: dict[str, Any],
    final: bool,
) -> None:
    """Write ``training_state/step_N`` (rank 0; every rank gives its generators' states) and move the symlinks.

    Raises CheckpointError when the files cannot be written; what was half-written is removed.
    """
    states = group.gather(generator_states())
    if not group.is_main:
        group.decide(None)
        return
    target = run.training_state / f"step_{step}"
    staging = run.training_state / f".step_{step}.{os.getpid()}-{start_ticks(os.getpid())}-{secrets.token_hex(4)}.tmp"
    try:
        staging.mkdir(parents=True)
        policy.save(staging / "model")
        torch.save(optimizer.state_dict(), staging / "optimizer.pt")
        torch.save(scheduler.state_dict(), staging / "scheduler.pt")
        torch.save({f"rank_{rank}": state for rank, state in enumerate(states)}, staging / "rng.pt")
        facts = {"format": FORMAT, "step": step, "time": utc_now(), "world_size": group.world_size, **info}
        atomic_write(staging / "training_info.json", json.dumps(facts, indent=1) + "\n")
        for path in staging.rglob("*"):
            _fsync(path)
        write_manifest(staging, format=FORMAT, step=step)
        fsync_directory(staging)
        staging.rename(target)
        fsync_directory(run.training_state)
        atomic_symlink(run.training_state / "step_latest", target.name)
        if final:
            atomic_symlink(run.training_state / "step_final", target.name)
    except (OSError, RuntimeError, SafetensorError) as error:
        remove_tree(staging)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CheckpointError(
            f"cannot save {target}: {reason}. Nothing was half-written and earlier checkpoints are intact; "
            "make room (or the file system writable), then resume from the latest checkpoint"
        ) from error
    group.decide(None)
    remove_leftovers(run)


def remove_leftovers(run: RunDir) -> None:
    """Remove the hidden directories and links that writers left which are dead by now."""
    for path in run.training_state.glob(".step_*.tmp"):
        owner = path.name.split(".")[2].split("-")
        if owner[0].isdigit() and len(owner) > 1 and owner[1].isdigit():
            alive = is_alive(int(owner[0]), int(owner[1]))
            if alive and int(owner[0]) != os.getpid():
                continue
        if path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            remove_tree(path)


def load_training_state(
    checkpoint: Checkpoint,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    group: Group,
) -> dict[str, Any]:
    """Restore optimizer, scheduler and this rank's generators; returns ``training_info.json``.

    Weights are loaded before, from ``checkpoint.path / "model"``. On another world size than the one that saved,
    the generators of the ranks cannot be restored: the run goes on, but not bit for bit.
    """
    path = checkpoint.path
    info = read_json(path / "training_info.json") or {}
    device = next(iter(optimizer.param_groups[0]["params"])).device
    optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True, map_location=device))
    scheduler.load_state_dict(torch.load(path / "scheduler.pt", weights_only=True))
    if info.get("world_size") == group.world_size:
        restore_generators(torch.load(path / "rng.pt", weights_only=True)[f"rank_{group.rank}"])
    return info


def check_adapter(checkpoint: Checkpoint, adapter: str) -> None:
    """Raises CheckpointError when what is saved is not what ``model.adapter`` says is trained."""
    saved = adapter_of(checkpoint.path / "model")
    if saved != adapter:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} holds {'a LoRA adapter' if saved == 'lora' else 'full weights'} but "
            f"model.adapter is '{adapter}': set model.adapter: {saved}"
        )


def seed_everything(seed: int, rank: int) -> None:
    """Seed every generator of this process; ranks draw different streams."""
    random.seed(seed * 100_003 + rank)
    np.random.seed((seed * 100_003 + rank) % 2**32)
    torch.manual_seed(seed * 100_003 + rank)


def generator_states() -> dict[str, Any]:
    """The state of every random generator of this process, as tensors and plain values (no pickled classes)."""
    python = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": [python[0], list(python[1]), python[2]],
        "numpy": {
            "key": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
    }


def restore_generators(states: dict[str, Any]) -> None:
    """Undo :func:`generator_states`."""
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    saved = states["numpy"]
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": saved["key"].numpy().astype(np.uint32), "pos": saved["pos"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        }
    )


def _fsync(path: Path) -> None:
    if path.is_dir():
        fsync_directory(path)
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
