"""The full training state: saved atomically, checked before it is trusted, restored exactly.

Must: a directory ``step_N`` is visible only when complete. Must: a kill at any instruction leaves the checkpoints
that were complete. So: everything into a hidden directory beside, fsync each file, the manifest last, one rename,
fsync of the parent; only then the symlinks move.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError

from grpo_train.policy.loading import Policy
from grpo_train.policy.locate import adapter_of
from grpo_train.run_dir import Checkpoint, RunDir, RunDirError, remove_tree, write_manifest
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import atomic_write, fsync_directory, read_json, utc_now
from grpo_train.run_dir.removal import hidden_name, remove_leftovers
from grpo_train.train.distributed import Group
from grpo_train.train.retention import prune_checkpoints

__all__ = [
    "CheckpointError",
    "check_adapter",
    "find_resume_point",
    "generator_states",
    "load_extra",
    "load_training_state",
    "prune_checkpoints",
    "remove_leftovers",
    "restore_generators",
    "save_checkpoint",
    "seed_everything",
]

FORMAT = 1
PLAIN = frozenset({torch.Tensor, str, bytes, int, float, bool, type(None)})
"""What an extra part may hold, in dicts, lists and tuples."""


class CheckpointError(UserError):
    """A checkpoint that cannot be written or trusted; says which file and the way out."""

    code = "bad_checkpoint"


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
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write ``training_state/step_N`` (rank 0; every rank gives its generators' states) and move the symlinks.

    Args:
        info: facts for ``training_info.json``.
        final: the run's last step: ``step_final`` points at it, too.
        extra: more state by name, each to be read by :func:`load_extra`: tensors and plain values in dicts, lists and
            tuples. Rank 0's counts.

    Raises CheckpointError when the files cannot be written (what was half-written is removed), and for an ``extra``
    that could not be loaded again. A damaged ``step_N`` that is there already moves to ``superseded/``.
    """
    extra = extra or {}
    for name, value in extra.items():
        _check_extra(name, value)
    states = group.gather(generator_states())
    if not group.is_main:
        group.decide(None)
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
        facts = {"format": FORMAT, "step": step, "time": utc_now(), "world_size": group.world_size, **info}
        atomic_write(staging / "training_info.json", json.dumps(facts, indent=1) + "\n")
        for path in staging.rglob("*"):
            _fsync(path)
        write_manifest(staging, format=FORMAT, step=step)
        fsync_directory(staging)
        if target.exists():
            run.set_aside([target])
        staging.rename(target)
        fsync_directory(run.training_state)
        run.point("step_latest", step)
        if final:
            run.point("step_final", step)
    except (OSError, RuntimeError, SafetensorError) as error:
        remove_tree(staging)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CheckpointError(
            f"cannot save {target}: {reason}. Nothing was half-written and earlier checkpoints are intact; "
            "make room (or the file system writable), then resume from the latest checkpoint"
        ) from error
    group.decide(None)
    remove_leftovers(run)


def load_extra(checkpoint: Checkpoint, name: str) -> Any | None:
    """What :func:`save_checkpoint` was given as ``extra[name]``, tensors on the CPU; None where the step has none."""
    file = checkpoint.path / f"{name}.pt"
    return torch.load(file, weights_only=True, map_location="cpu") if file.exists() else None


def find_resume_point(run: RunDir, group: Group) -> Checkpoint | None:
    """The checkpoint that every rank goes on from, or None for a fresh start.

    Rank 0 verifies every size and checksum, once for all. Raises RunDirError, on every rank, when what is to be gone on
    from is missing or damaged; the message names the newest complete step.
    """
    told: tuple[Checkpoint | None, str] = None, ""
    if group.is_main:
        try:
            told = run.resume_point(), ""
        except RunDirError as error:
            told = None, str(error)
    found, problem = group.decide(told)
    if problem:
        raise RunDirError(problem)
    return cast("Checkpoint | None", found)


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


def seed_everything(seed: int, rank: int, step: int = 0) -> None:
    """Seed every generator of this process; ranks, and starts at different steps, draw different streams."""
    mixed = seed * 100_003 + rank + step * 1_000_003
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)


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


def _check_extra(name: str, value: Any) -> None:
    """Raises CheckpointError for what ``torch.load(weights_only=True)`` would refuse, now and not at a resume."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in ("optimizer", "scheduler", "rng"):
        raise CheckpointError(f"'{name}' cannot name an extra part of a checkpoint")
    waiting: list[tuple[str, Any]] = [(name, value)]
    while waiting:
        place, item = waiting.pop()
        if type(item) is dict:
            waiting.append((f"{place}'s keys", list(item)))
            waiting += [(f"{place}[{key!r}]", part) for key, part in item.items()]
        elif type(item) in (list, tuple):
            if not PLAIN.issuperset(map(type, item)):
                waiting += [(f"{place}[{index}]", part) for index, part in enumerate(item)]
        elif type(item) not in PLAIN:  # by its type: numpy.float64 is a float, and does not come back
            raise CheckpointError(f"{place} is a {type(item).__name__}: only tensors and plain values can be saved")


def _fsync(path: Path) -> None:
    if path.is_dir():
        fsync_directory(path)
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
