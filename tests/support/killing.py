"""Die at a chosen instruction: an action runs in a fork that is ended by SIGKILL at its n-th touch of the disk.

Touches are what Python does, and torch.save; what native code does is seen by :mod:`tests.support.tracing`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CALLS = [(os, name) for name in ("open", "fsync", "rename", "replace", "symlink", "mkdir", "unlink", "rmdir", "close")]


def touches(action: Callable[[], None]) -> list[str]:
    """The disk calls that an action makes, in order (the action is really done, in a fork)."""
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        names: list[str] = []
        _patch(lambda name, call: (names.append(name), call())[1])
        action()
        with os.fdopen(write_end, "w") as pipe:
            pipe.write(" ".join(names))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        told = pipe.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return told


def killed_at(n: int, action: Callable[[], None]) -> None:
    """Do the action in a fork, and end that right before its n-th touch (0, 1, …); files being written stay half."""
    if (pid := os.fork()) == 0:
        left = n

        def step(name: str, call: Callable[[], Any]) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call()

        _patch(step)
        action()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == -signal.SIGKILL, f"the action ended with {code} before touch {n}"


def _patch(step: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Send every disk call of this process through ``step``. torch.save counts twice: untouched, and half written."""
    for module, name in CALLS:
        original = getattr(module, name)
        setattr(module, name, lambda *a, _call=original, _name=name, **k: step(_name, lambda: _call(*a, **k)))
    save = torch.save

    def half_then_whole(value: Any, path: Path) -> None:
        def half() -> None:
            save(value, path)
            os.truncate(path, Path(path).stat().st_size // 2)

        step("torch.save", half)
        step("torch.save", lambda: save(value, path))

    torch.save = half_then_whole
