"""Sandbox throughput in programs per second: ``python tests/bench/sandbox.py [threads]``.

Baselines, measured in turns so that other load affects all of them: an interpreter that does nothing (``python -I -S
-c pass``), and the same in bubblewrap if installed. Also prints the CPU time per program, which hardly depends on the
load: cores / CPU time is the rate of an idle machine.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.sandbox import isolation, run_program, run_tests
from grpo_train.sandbox.interpreter import interpreter

CORES = len(os.sched_getaffinity(0))
PROGRAMS = 200
TURNS = 5
SOLUTION = "import math\ndef f(x):\n    return 2 * x\n"
TESTS = ["assert f(1) == 2", "assert f(2) == 4", "assert f(3) == 6"]
IN_BWRAP = "a bare interpreter in bwrap"
BWRAP = (
    "--unshare-all",
    "--die-with-parent",
    "--ro-bind",
    "/",
    "/",
    "--tmpfs",
    "/tmp",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
)


def spawn(command: list[str]) -> None:
    """Run a command and wait for it."""
    pid = os.posix_spawn(command[0], command, {"LC_ALL": "C.UTF-8"})
    if os.waitpid(pid, 0)[1]:
        raise SystemExit(f"failed: {' '.join(command)}")


def processor_seconds() -> float:
    """CPU time of this process and its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(run: Callable[[], object], threads: int) -> tuple[float, float]:
    """Programs per second, and CPU milliseconds per program."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: run(), range(threads)))
        began, used = time.perf_counter(), processor_seconds()
        list(pool.map(lambda _: run(), range(PROGRAMS)))
        return PROGRAMS / (time.perf_counter() - began), 1e3 * (processor_seconds() - used) / PROGRAMS


def main() -> None:
    """Print the measurements."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2 * CORES
    bare = [interpreter().binary, "-I", "-S", "-c", "pass"]
    runs: dict[str, Callable[[], object]] = {
        "a bare interpreter": lambda: spawn(bare),
        "run_tests, three asserts": lambda: run_tests(SOLUTION, TESTS),
        "run_program": lambda: run_program("print(1)"),
    }
    bwrap = shutil.which("bwrap")
    if bwrap is not None:
        runs[IN_BWRAP] = lambda: spawn([bwrap, *BWRAP, *bare])
    print(f"{isolation().describe()}; {CORES} cores, {threads} threads, medians of {TURNS} turns")
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            turns[name].append(measure(run, threads))
    medians = {
        name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in turns.items()
    }
    base = medians["a bare interpreter"]
    for name, (rate, milliseconds) in medians.items():
        line = f"{name:<28} {rate:6.1f} programs/s, {rate / base[0]:4.2f} of the bare rate"
        if name != IN_BWRAP:  # its usage does not include the program's
            line += f"; {milliseconds:5.1f} ms of CPU time each: {1e3 * CORES / milliseconds:.0f}/s if idle"
        print(line)
    if bwrap is None:
        print("bwrap is not installed: not compared")
    else:
        print(f"run_tests / bwrap: {medians['run_tests, three asserts'][0] / medians[IN_BWRAP][0]:.2f}")


if __name__ == "__main__":
    main()
