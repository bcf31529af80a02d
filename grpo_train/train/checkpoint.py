"""Checkpoints of the full training state: saved atomically, verified before use, restored exactly.

Invariants: a directory ``step_N`` is visible only when complete, and a kill at any instruction leaves the complete
checkpoints intact. So everything is written to a hidden directory beside it, each file is fsynced, the manifest comes
last, one rename makes it visible, and the parent is fsynced; only then the symlinks move.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from grpo_train.policy.loading import Policy
from grpo_train.policy.locate import adapter_of
from grpo_train.policy.weights_file import write_safetensors
from grpo_train.run_dir import Checkpoint, RunDir, remove_tree, write_manifest
from grpo_train.run_dir.errors import UserError, code_of, disk_error, disk_fix, disk_reason
from grpo_train.run_dir.files import fsync_path, read_json, utc_now
from grpo_train.run_dir.manifest import HashedFile
from grpo_train.run_dir.removal import hidden_name, remove_hidden
from grpo_train.train.distributed import World
from grpo_train.train.generators import generator_states, restore_generators

FORMAT = 1
PLAIN = frozenset({torch.Tensor, str, bytes, int, float, bool, type(None)})
"""Types that an extra file may hold, in dicts, lists and tuples."""


class CheckpointError(UserError):
    """A checkpoint that cannot be written or used; the message names the file and the fix."""

    code = "bad_checkpoint"


@dataclass
class CheckpointContent:
    """What one checkpoint holds. Rank 0's; other ranks have none."""

    step: int
    is_final: bool
    """Whether this is the run's last step, which ``step_final`` points to."""
    info: dict[str, Any]
    """Content of ``training_info.json``."""
    weights: Mapping[str, torch.Tensor] | None
    """See :meth:`Policy.weights`."""
    state: dict[str, Any]
    """Content of the other files by name, without suffix: tensors and plain values in dicts, lists and tuples."""


def take_snapshot(
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    world: World,
    *,
    info: dict[str, Any],
    is_final: bool,
    extra: Mapping[str, Any] | None = None,
) -> CheckpointContent | None:
    """Collect what :func:`write_checkpoint` writes, not copied: the next step changes it. Every rank calls it.

    Args:
        info: content of ``training_info.json`` but for format, step, time and world size.
        extra: more state by file name, read by :func:`load_extra`: tensors and plain values in dicts, lists and tuples.

    Returns None on other ranks than rank 0. Raises CheckpointError for an ``extra`` that could not be loaded again.
    """
    extra = extra or {}
    for name, value in extra.items():
        _check_extra(name, value)
    states = world.gather(generator_states())
    if not world.is_main:
        return None
    return CheckpointContent(
        step,
        is_final,
        {"format": FORMAT, "step": step, "time": utc_now(), "world_size": world.size, **info},
        policy.weights(),
        {
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": {f"rank_{rank}": state for rank, state in enumerate(states)},
            **extra,
        },
    )


def write_checkpoint(run: RunDir, snapshot: CheckpointContent, policy: Policy) -> None:
    """Write ``training_state/step_N`` and move the symlinks. A damaged ``step_N`` in the way moves to ``superseded/``.

    Each file is hashed while it is written, and none is read. Raises CheckpointError if one cannot be written; partial
    ones are removed.
    """
    target = run.training_state / f"step_{snapshot.step}"
    staging = run.training_state / hidden_name(snapshot.step)
    try:
        (staging / "model").mkdir(parents=True)
        written = _write_model(staging / "model", snapshot, policy)
        for name, value in snapshot.state.items():
            with HashedFile(staging / f"{name}.pt") as file:
                torch.save(value, file)  # type: ignore[arg-type]  # it needs no more than write()
            written[f"{name}.pt"] = file.facts
        with HashedFile(staging / "training_info.json") as file:
            file.write((json.dumps(snapshot.info, indent=1) + "\n").encode())
        written["training_info.json"] = file.facts
        fsync_path(staging / "model")
        write_manifest(staging, written, format=FORMAT, step=snapshot.step)
        fsync_path(staging)
        if target.exists():
            run.set_aside([target])
        staging.rename(target)
        fsync_path(run.training_state)
        run.point("step_latest", snapshot.step)
        if snapshot.is_final:
            run.point("step_final", snapshot.step)
    except (OSError, RuntimeError, SafetensorError) as error:
        remove_tree(staging)
        failure = disk_error(error) or (error if isinstance(error, OSError) else None)
        reason = disk_reason(failure) if failure else str(error).splitlines()[0]
        fix = (failure and disk_fix(failure)) or "fix the cause"
        raise CheckpointError(
            f"cannot save {target}: {reason}. Earlier checkpoints are intact; {fix}, then resume from the latest "
            "checkpoint",
            code=code_of(error),
        ) from error
    remove_hidden(run)


def _write_model(folder: Path, snapshot: CheckpointContent, policy: Policy) -> dict[str, dict[str, Any]]:
    """Write weights, configuration and tokenizer; returns the manifest's facts of each file."""
    if snapshot.weights is None:
        policy.save(folder)
        for path in folder.rglob("*"):
            fsync_path(path)
        return {}
    written = {}
    for name, content in policy.description.items():
        with HashedFile(folder / name) as file:
            file.write(content)
        written[f"model/{name}"] = file.facts
    with HashedFile(folder / policy.weights_name) as file:
        write_safetensors(file, snapshot.weights)
    written[f"model/{policy.weights_name}"] = file.facts
    return written


def load_extra(checkpoint: Checkpoint, name: str) -> Any | None:
    """``extra[name]`` as passed to :func:`save_checkpoint`, tensors on the CPU; None if the checkpoint has none."""
    file = checkpoint.path / f"{name}.pt"
    return torch.load(file, weights_only=True, map_location="cpu") if file.exists() else None


def load_info(checkpoint: Checkpoint) -> dict[str, Any]:
    """``training_info.json``."""
    return read_json(checkpoint.path / "training_info.json") or {}


def load_training_state(
    checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, scheduler: Any, world: World
) -> dict[str, Any]:
    """Restore optimizer, scheduler and this rank's generators; returns ``training_info.json``.

    Weights have been loaded before, from ``checkpoint.path / "model"``. With another world size than the saved one, the
    generators are not restored and the resume is not bit-exact.
    """
    path, info = checkpoint.path, load_info(checkpoint)
    device = next(iter(optimizer.param_groups[0]["params"])).device
    # A GPU's is mapped: its ranks read the file from the disk once. A CPU's would keep the mapping.
    is_mapped = device.type != "cpu"
    saved = torch.load(path / "optimizer.pt", weights_only=True, map_location=device, mmap=is_mapped)
    optimizer.load_state_dict(saved)
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
