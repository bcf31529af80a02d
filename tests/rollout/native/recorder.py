"""A recorder of decoding steps for the CPU: it records operations, where a GPU's records kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from grpo_train.rollout.native.graphs import Record, Step


class Operations(TorchDispatchMode):
    """Records operations with their arguments: tensors made before stay where they are, all else is as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, found))
        return found

    def repeat(self) -> None:
        """Do the same again."""
        made: dict[int, Any] = {}

        def now(value: Any) -> Any:
            return made.get(id(value), value)

        for func, args, kwargs, found in self.calls:
            again = func(*tree_map(now, args), **tree_map(now, kwargs))
            for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    made[id(old)] = new


class Recorder:
    """Stands in for a GPU's recorder."""

    def __init__(self) -> None:
        self.shapes = self.repeats = 0

    def __call__(self) -> Record:
        return self.record

    def record(self, step: Step) -> Step:
        operations, is_executed = Operations(), True
        with operations:
            step()
        self.shapes += 1

        def replay() -> None:
            nonlocal is_executed
            if not is_executed:  # unlike a GPU's, this recording executed the step
                self.repeats += 1
                operations.repeat()
            is_executed = False

        return replay
