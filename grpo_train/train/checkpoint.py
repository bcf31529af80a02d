"""Checkpoints of the full training state: saved atomically, verified before use, restored exactly.

Invariants: a directory ``step_N`` is visible only when complete, and a kill at any instruction leaves the complete
checkpoints intact. So everything is written to a hidden directory beside it, each file is fsynced, the manifest comes
last, one rename makes it visible, and the parent is fsynced; only then the symlinks move.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from grpo_train.policy.loading import Policy
from grpo_train.policy.locate import adapter_of
from grpo_train.run_dir import Checkpoint, RunDir, remove_tree, write_manifest
from grpo_train.run_dir.errors import UserError, code_of
from grpo_train.run_dir.files import atomic_write, fsync_path, read_json, utc_now
from grpo_train.run_dir.removal import hidden_name, remove_leftovers
from grpo_train.run_dir.signs import sign_of_life
from grpo_train.train.distributed import World

FORMAT = 1
MIN_FREE_BYTES = 2**20
"""A write that fails with less free space than this failed for lack of space."""
PLAIN = frozenset({torch.Tensor, str, bytes, int, float, bool, type(None)})
"""Types that an extra file may hold, in dicts, lists and tuples."""


class CheckpointError(UserError):
    """A checkpoint that cannot be written or used; the message names the file and the fix."""

    code = "bad_checkpoint"


def save_checkpoint(
    run: RunDir,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    world: World,
    *,
    info: dict[str, Any],
    is_final: bool,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write ``training_state/step_N`` and move the symlinks.

    Every rank calls it; rank 0 writes, with the random generators of all ranks. A damaged ``step_N`` in the way moves
    to ``superseded/``.

    Args:
        info: content of ``training_info.json``.
        is_final: whether this is the run's last step, which ``step_final`` points to.
        extra: more state by file name, read by :func:`load_extra`: tensors and plain values in dicts, lists and tuples.

    Raises CheckpointError if the files cannot be written (partial ones are removed), and for an ``extra`` that could
    not be loaded again.
    """
    extra = extra or {}
    for name, value in extra.items():
        _check_extra(name, value)
    states = world.gather(generator_states())
    if not world.is_main:
        world.broadcast(None)
        return
    target = run.training_state / f"step_{step}"
    staging = run.training_state / hidden_name(step)
    try:
        staging.mkdir(parents=True)
        policy.save(staging / "model")
        torch.save(optimizer.state_dict(), staging / "optimizer.pt")
        torch.save(scheduler.state_dict(), staging / "scheduler.pt")
        torch.save({f"rank_{rank}": state for rank, state in enumerate(states)}, staging / "rng.pt")
        for name, value in extra.items():
            torch.save(value, staging / f"{name}.pt")
        training_info = {"format": FORMAT, "step": step, "time": utc_now(), "world_size": world.size, **info}
        atomic_write(staging / "training_info.json", json.dumps(training_info, indent=1) + "\n")
        for path in staging.rglob("*"):
            fsync_path(path)
            sign_of_life("save")
        write_manifest(staging, format=FORMAT, step=step)
        fsync_path(staging)
        if target.exists():
            run.set_aside([target])
        staging.rename(target)
        fsync_path(run.training_state)
        run.point("step_latest", step)
        if is_final:
            run.point("step_final", step)
    except (OSError, RuntimeError, SafetensorError) as error:
        code = _write_error_code(error, run.training_state)
        remove_tree(staging)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CheckpointError(
            f"cannot save {target}: {reason}. Earlier checkpoints are intact; free disk space (or make the file system "
            "writable), then resume from the latest checkpoint",
            code=code,
        ) from error
    world.broadcast(None)
    remove_leftovers(run)


def load_extra(checkpoint: Checkpoint, name: str) -> Any | None:
    """``extra[name]`` as passed to :func:`save_checkpoint`, tensors on the CPU; None if the checkpoint has none."""
    file = checkpoint.path / f"{name}.pt"
    return torch.load(file, weights_only=True, map_location="cpu") if file.exists() else None


def load_training_state(
    checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, scheduler: Any, world: World
) -> dict[str, Any]:
    """Restore optimizer, scheduler and this rank's generators; returns ``training_info.json``.

    Weights have been loaded before, from ``checkpoint.path / "model"``. With another world size than the saved one, the
    generators are not restored and the resume is not bit-exact.
    """
    path = checkpoint.path
    info = read_json(path / "training_info.json") or {}
    device = next(iter(optimizer.param_groups[0]["params"])).device
    optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True, map_location=device))
    scheduler.load_state_dict(torch.load(path / "scheduler.pt", weights_only=True))
    if info.get("world_size") == world.size:
        restore_generators(torch.load(path / "rng.pt", weights_only=True)[f"rank_{world.rank}"])
    return info


def check_adapter(checkpoint: Checkpoint, adapter: str) -> None:
    """Raise CheckpointError if the saved kind of weights differs from ``model.adapter``."""
    saved = adapter_of(checkpoint.path / "model")
    if saved != adapter:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} holds {'a LoRA adapter' if saved == 'lora' else 'full weights'}, but "
            f"model.adapter is '{adapter}'; set model.adapter: {saved}"
        )


def seed_everything(seed: int, rank: int, step: int = 0) -> None:
    """Seed every random generator of this process, differently for each rank and starting step."""
    mixed = seed * 100_003 + rank + step * 1_000_003
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)


def generator_states() -> dict[str, Any]:
    """States of all random generators of this process, as tensors and plain values."""
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
    """Restore the states returned by :func:`generator_states`."""
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
    version, state, gauss = states["python"]
    random.setstate((version, tuple(state), gauss))
    saved = states["numpy"]
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": saved["key"].numpy().astype(np.uint32), "pos": saved["pos"]},
            "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
        }
    )


def _check_extra(name: str, value: Any) -> None:
    """Raise CheckpointError for an extra that ``torch.load(weights_only=True)`` would refuse at a resume."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in ("optimizer", "scheduler", "rng"):
        raise CheckpointError(f"'{name}' is not a valid name for an extra file of a checkpoint")
    waiting: list[tuple[str, Any]] = [(name, value)]
    while waiting:
        path, item = waiting.pop()
        if type(item) is dict:
            waiting.append((f"{path}'s keys", list(item)))
            waiting += [(f"{path}[{key!r}]", child) for key, child in item.items()]
        elif type(item) in (list, tuple):
            if not PLAIN.issuperset(map(type, item)):
                waiting += [(f"{path}[{index}]", child) for index, child in enumerate(item)]
        elif type(item) not in PLAIN:  # by exact type: numpy.float64 is a float, but cannot be loaded again
            raise CheckpointError(f"{path} is a {type(item).__name__}; only tensors and plain values can be saved")


def _write_error_code(error: Exception, folder: Path) -> str:
    """Error code of a failed write. torch and safetensors hide the errno, so the free space is checked for them."""
    if isinstance(error, OSError):
        return code_of(error)
    disk = os.statvfs(folder)
    return "disk_full" if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES else "io"
