"""Kill an action at a chosen point: it runs in a fork that gets SIGKILL at its n-th disk call.

Sees the calls made by Python, and torch.save; :mod:`tests.support.tracing` also sees those of native code.
"""

from __future__ import annotations

import io
import os
import random
import signal
from collections.abc import Callable, Iterable
from typing import Any

import torch

from grpo_train.run_dir.manifest import HashedFile

CALLS = [(os, name) for name in ("open", "fsync", "rename", "replace", "symlink", "mkdir", "unlink", "rmdir", "close")]


Points = Callable[[int], Iterable[int]]
"""Points at which a test kills, of a number of them: ``range`` takes all."""


def five_of(count: int) -> list[int]:
    """The first point, the last one, and three between them, the same ones every time."""
    return sorted({0, count - 1, *random.Random(count).sample(range(count), min(3, count))})


def three_of(count: int) -> list[int]:
    """The first, the last and the one in the middle of :func:`five_of`."""
    return five_of(count)[::2]


def disk_calls(action: Callable[[], None]) -> list[str]:
    """Names of an action's disk calls, in order. The action is executed, in a fork."""
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
        made = pipe.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return made


def killed_at(n: int, action: Callable[[], None]) -> None:
    """Run an action in a fork, killed right before its n-th disk call (0, 1, …); an open file stays half written."""
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
    assert code == -signal.SIGKILL, f"the action ended with {code} before disk call {n}"


def _patch(step: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Send every disk call of this process through ``step``. torch.save counts twice: not begun, and half written."""
    for module, name in CALLS:
        original = getattr(module, name)
        setattr(module, name, lambda *a, _call=original, _name=name, **k: step(_name, lambda: _call(*a, **k)))
    save = torch.save

    def half_then_whole(value: Any, file: HashedFile) -> None:
        content = io.BytesIO()
        save(value, content)
        whole = content.getbuffer()
        for part in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            step("torch.save", lambda part=part: file.write(part))  # type: ignore[misc]

    torch.save = half_then_whole
