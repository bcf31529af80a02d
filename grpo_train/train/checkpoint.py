"""Checkpoints of the full training state: saved atomically, verified before use, restored exactly.

Invariants: a directory ``step_N`` is visible only when complete, and a kill at any instruction leaves the complete
checkpoints intact. So everything is written to a hidden directory beside it, each file is fsynced, the manifest comes
last, one rename makes it visible, and the parent is fsynced; only then the symlinks move.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from grpo_train.policy.loading import Policy
from grpo_train.policy.locate import adapter_of
from grpo_train.policy.memory import free_bytes
from grpo_train.policy.weights_file import write_safetensors
from grpo_train.run_dir import Checkpoint, RunDir, remove_tree, write_manifest
from grpo_train.run_dir.errors import UserError, code_of, disk_error, disk_fix, disk_reason
from grpo_train.run_dir.files import fsync_path, read_json, utc_now
from grpo_train.run_dir.keeping import hidden_name, remove_hidden
from grpo_train.run_dir.manifest import HashedFile
from grpo_train.train.distributed import World

# random generators -----------------------------------------------------------------------------------------


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


# copies in the memory of the host, kept from one save to the next ------------------------------------------


class HostMemory:
    """Page-locked for tensors of a GPU, whose copies then run at the speed of the bus."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}

    def has_room(self, value: Any) -> bool:
        """Whether the tensors in dicts, lists and tuples fit into this memory as far as it grows."""
        held = sum(_taken(buffer.nbytes, buffer.is_pinned()) for buffer in self._buffers)
        needed = sum(_taken(tensor.nbytes, tensor.is_cuda) for tensor in _tensors(value))
        return needed <= held + free_bytes(torch.device("cpu")) // 2

    def copy(self, value: Any) -> Any:
        """The value with every tensor replaced by a copy, which the next call overwrites.

        Tensors at the same place of a value of the same structure take the same memory. One that occurs twice is
        copied once.
        """
        self._used, self._copies = 0, {}
        copied = self._copy(value)
        del self._buffers[self._used :]
        self._copies = {}
        if any(buffer.is_pinned() for buffer in self._buffers):
            torch.cuda.synchronize()
        return copied

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach())
        if isinstance(value, dict):
            return {key: self._copy(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._copy, value))
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), str(tensor.device))
        if tensor.numel() and key in self._copies:
            return self._copies[key]
        index, self._used = self._used, self._used + 1
        held = self._buffers[index] if index < len(self._buffers) else None
        if held is None or (held.shape, held.dtype) != (tensor.shape, tensor.dtype):
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[index:] = [held]  # what follows is of another structure
        self._copies[key] = held.copy_(tensor, non_blocking=True)
        return held


def _taken(nbytes: int, is_pinned: bool) -> int:
    """Bytes that a tensor takes here: torch rounds page-locked blocks up to a power of two."""
    return 1 << (nbytes - 1).bit_length() if is_pinned else nbytes


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif type(value) in (list, tuple):
        for item in value:
            yield from _tensors(item)


# saving beside training ------------------------------------------------------------------------------------


class CheckpointSaver:
    """Writes one checkpoint at a time, on a thread that the process waits for at its end. Rank 0 has one."""

    def __init__(self, run: RunDir, policy: Policy) -> None:
        self._run, self._policy = run, policy
        self._memory = HostMemory()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, content: CheckpointContent, then: Callable[[float], None]) -> None:
        """Wait for the checkpoint before, copy the content and start to write it.

        What has no room in the host's memory, or a layout that only transformers writes, is written before this
        returns.

        Args:
            then: called once the checkpoint is complete, with the seconds since this call, on the thread that wrote it.

        Raises CheckpointError, and what ``then`` raises, of this or the previous checkpoint.
        """
        self.wait()
        start = time.perf_counter()

        def write() -> None:
            write_checkpoint(self._run, content, self._policy)
            then(time.perf_counter() - start)

        tensors = (content.weights, content.state)
        if content.weights is None or not self._memory.has_room(tensors):
            write()
            return
        content.weights, content.state = self._memory.copy(tensors)
        _ = self._policy.description  # made here, on first use: it reads the model
        self._thread = threading.Thread(target=self._run_thread, args=(write,), name="save")
        self._thread.start()

    def check(self) -> None:
        """Raise what a checkpoint that was being written failed with."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def wait(self) -> None:
        """Wait until no checkpoint is being written. Raises as :meth:`save`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _run_thread(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._failure = error


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


def collect_content(
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


def write_checkpoint(run: RunDir, content: CheckpointContent, policy: Policy) -> None:
    """Write ``training_state/step_N`` and move the symlinks. A damaged ``step_N`` in the way moves to ``superseded/``.

    Each file is hashed while it is written, and none is read. Raises CheckpointError if one cannot be written; partial
    ones are removed.
    """
    target = run.training_state / f"step_{content.step}"
    staging = run.training_state / hidden_name(content.step)
    try:
        (staging / "model").mkdir(parents=True)
        written = _write_model(staging / "model", content, policy)
        for name, value in content.state.items():
            with HashedFile(staging / f"{name}.pt") as file:
                torch.save(value, file)  # type: ignore[arg-type]  # it needs no more than write()
            written[f"{name}.pt"] = file.facts
        with HashedFile(staging / "training_info.json") as file:
            file.write((json.dumps(content.info, indent=1) + "\n").encode())
        written["training_info.json"] = file.facts
        fsync_path(staging / "model")
        write_manifest(staging, written, format=FORMAT, step=content.step)
        fsync_path(staging)
        if target.exists():
            run.set_aside([target])
        staging.rename(target)
        fsync_path(run.training_state)
        run.point("step_latest", content.step)
        if content.is_final:
            run.point("step_final", content.step)
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


def _write_model(folder: Path, content: CheckpointContent, policy: Policy) -> dict[str, dict[str, Any]]:
    """Write weights, configuration and tokenizer; returns the manifest's facts of each file."""
    if content.weights is None:
        policy.save(folder)
        for path in folder.rglob("*"):
            fsync_path(path)
        return {}
    written = {}
    for name, text in policy.description.items():
        with HashedFile(folder / name) as file:
            file.write(text)
        written[f"model/{name}"] = file.facts
    with HashedFile(folder / policy.weights_name) as file:
        write_safetensors(file, content.weights)
    written[f"model/{policy.weights_name}"] = file.facts
    return written


def load_extra(checkpoint: Checkpoint, name: str) -> Any | None:
    """``extra[name]`` as passed to :func:`collect_content`, tensors on the CPU; None if the checkpoint has none."""
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
