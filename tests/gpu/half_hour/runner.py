"""Runs a list of checks: a line and a row of JSON for each, a time limit for each and for all.

A check that fails is reported, and the next one runs: in a new process where it has broken the CUDA context, which no
later work in this process survives.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch

from tests.gpu.half_hour.common import DRY, OUT

LEAST_S = 5.0
"""Nothing starts with less time left."""
DRY_FACTOR = 20
"""On time limits on a CPU, which other work may share."""
RESULTS = "GPU_RESULTS"
"""Variable with the results of the process that this one follows, as ``name=result,…``."""
END = "GPU_END"
"""Variable with the time at which all checks end."""


class Late(BaseException):
    """A check took too long. Handlers in the product for errors do not handle it."""


@dataclass(frozen=True)
class Check:
    """One line of the output."""

    name: str
    seconds: int
    """Time limit."""
    work: Callable[[], str]
    """Returns what the line says; raises where it fails."""
    needs: str = ""
    """Name of the check that must have run before in this process."""
    needs_gpu: bool = False


def check(work: Callable[[], str], seconds: int, name: str = "", **options: Any) -> Check:
    """A check with the name of its function, unless another one is given."""
    return Check(name or work.__name__, seconds, work, **options)


class Session:
    """The checks of one call, and how they ended."""

    def __init__(self, checks: Sequence[Check], log_name: str) -> None:
        """``log_name``: file of the rows, in ``$OUT``."""
        self.checks = {each.name: each for each in checks}
        self.results = dict(pair.split("=") for pair in os.environ.get(RESULTS, "").split(",") if pair)
        """By name; those before a restart included."""
        self._here: dict[str, str] = {}
        """Of this process."""
        self._log = OUT / log_name
        budget = float(os.environ.get("GPU_BUDGET", "300"))
        self._end = float(os.environ.setdefault(END, str(time.time() + budget)))
        only = set(filter(None, os.environ.get("GPU_ONLY", "").split(",")))
        if unknown := sorted(only - set(self.checks)):
            raise SystemExit(f"GPU_ONLY: no check {', '.join(unknown)}; known: {', '.join(self.checks)}")
        self._chosen = [each for each in checks if not only or each.name in only]

    def run(self) -> int:
        """Run what is chosen and has not run; the exit status."""
        signal.signal(signal.SIGALRM, _late)
        for each in self._chosen:
            if each.name not in self.results:
                self._run(each)
        return 1 if {"FAIL", "LATE"} & set(self.results.values()) else 0

    def _run(self, each: Check) -> None:
        if DRY and each.needs_gpu:
            return self._report(each, "SKIP", 0.0, "needs a GPU")
        if each.needs and each.needs not in self._here and self.results.get(each.needs, "ok") == "ok":
            self._run(self.checks[each.needs])
        if each.needs and self._here.get(each.needs) != "ok":
            return self._report(each, "SKIP", 0.0, f"{each.needs} did not succeed")
        left = self._end - time.time()
        if left < LEAST_S:
            return self._report(each, "SKIP", 0.0, "no time left")
        began, result, detail, trace = time.time(), "ok", "", ""
        try:
            limit = min(each.seconds * (DRY_FACTOR if DRY else 1), left)
            with redirect_stdout(sys.stderr), _limited(limit):  # what the engine prints is not a line of ours
                detail = each.work()
        except (Exception, SystemExit, Late) as error:
            result, trace = "LATE" if isinstance(error, Late) else "FAIL", traceback.format_exc()
            lines = str(error).strip().splitlines() or [""]
            detail = f"{type(error).__name__}: {lines[0]}"[:400]
        self._report(each, result, time.time() - began, detail, trace)
        gc.collect()
        if result != "ok" and is_broken():
            self._restart()
        return None

    def _report(self, each: Check, result: str, seconds: float, detail: str, trace: str = "") -> None:
        self.results[each.name] = self._here[each.name] = result
        print(f"{result:4} {each.name} ({seconds:.1f} s) {detail}", flush=True)
        row = {"name": each.name, "result": result, "seconds": round(seconds, 2), "detail": detail, "trace": trace}
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def _restart(self) -> None:
        """Continue in a new process."""
        print("the CUDA context is broken: continuing in a new process", flush=True)
        os.environ[RESULTS] = ",".join(f"{name}={result}" for name, result in self.results.items())
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def is_broken() -> bool:
    """Whether a failed check has left a CUDA context in which nothing works."""
    if DRY:
        return False
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return True
    return False


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises :class:`Late` in the block after ``seconds``."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _late(*_: object) -> None:
    raise Late("took too long")
