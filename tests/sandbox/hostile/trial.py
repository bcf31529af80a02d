"""Runs the corpus and says what went otherwise than it must; what is left behind is looked for, too.

``python -m tests.sandbox.hostile.trial`` runs it all as the user that it is, and prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from grpo_train.sandbox import canary_hits, isolation, probe, run_program, run_tests
from grpo_train.sandbox.child import WALL_PER_CPU, process_mark
from grpo_train.sandbox.layers import NAMESPACES
from grpo_train.sandbox.workspace import CANARY_FILE, workspace
from tests.sandbox.hostile import escapes, honest, resources, verdicts
from tests.sandbox.hostile.program import HONEST, TESTS, Program

CORPUS: tuple[Program, ...] = (*verdicts.PROGRAMS, *resources.PROGRAMS, *escapes.PROGRAMS, *honest.PROGRAMS)
CPU_SECONDS = 1.0
PLACES = ("/tmp", "/dev/shm", "/root", os.path.expanduser("~"), os.path.dirname(os.__file__), os.getcwd())


def problems_of(program: Program) -> list[str]:
    """Runs one program; what it did that it must not, or did not and must."""
    source = program.source.replace(escapes.PARENT, str(os.getpid()))
    source = source.replace(escapes.SECRET, workspace().canary)
    # Honest programs may take their time on a busy machine; hostile ones shall not hold the tests up.
    cpu_seconds = 5.0 if program.reasons == ("ok",) and program.kind != "resource" else CPU_SECONDS
    run = _script if program.statuses else _solution
    problems, seconds = run(program, source, cpu_seconds)
    # To end a process with a gigabyte takes its time where others wait for the cores, too.
    busy = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    if seconds > WALL_PER_CPU * cpu_seconds + busy:
        problems.append(f"ended after {seconds:.1f} s")
    return [f"{program.name}: {problem}" for problem in problems]


def _script(program: Program, source: str, cpu_seconds: float) -> tuple[list[str], float]:
    result = run_program(source, program.stdin, cpu_seconds)
    problems = []
    if result.status not in program.statuses:
        problems.append(f"status {result.status}: {result.stderr[-300:]}")
    if program.stdout is not None and result.stdout != program.stdout:
        problems.append(f"printed {result.stdout[:300]!r}")
    if canary_hits(result.stdout + result.stderr):
        problems.append("showed the secret")
    return problems, result.seconds


def _solution(program: Program, source: str, cpu_seconds: float) -> tuple[list[str], float]:
    asked = TESTS if not program.outcomes else [*TESTS, f"assert was in {program.outcomes!r}"]
    result = run_tests(source, asked, cpu_seconds=cpu_seconds)
    problems = []
    if result.reason not in program.reasons:
        problems.append(f"reason {result.reason}: {result.reasons}")
    if program.reasons == ("ok",):
        if program.outcomes and not result.passed[-1]:
            got = run_program(source + "\nprint(was)", "", cpu_seconds)
            problems.append(f"outcome {got.stdout.strip()!r} {got.stderr[-300:]}")
        if not all(result.passed[: len(TESTS)]):
            problems.append(f"did not pass: {result.reasons}")
    elif any(result.passed):
        problems.append(f"passed {result.passed}")
    if "canary" in result.denials:
        problems.append("returned the secret")
    return problems, result.seconds


def left_behind() -> list[str]:
    """Processes, files and directories that programs of this process have left."""
    workspace().wait_until_clean()
    found = []
    mark = process_mark().encode()
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and mark in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(f"process {entry}")
        except OSError:
            pass
    root = workspace().root
    for directory, _, files in os.walk(root):
        depth = len(Path(directory).relative_to(root).parts)
        found += [os.path.join(directory, name) for name in files if name != CANARY_FILE]
        found += [directory] if depth > 2 else []  # a slot keeps one empty directory for its next program
    for place in PLACES:
        try:
            found += [os.path.join(place, name) for name in os.listdir(place) if name.startswith(escapes.MARK)]
        except OSError:
            pass
    return found[:20]


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def run_corpus(programs: Sequence[Program], threads: int) -> list[str]:
    """Everything that went otherwise than it must, in the corpus and afterwards."""
    run_tests(HONEST, TESTS)  # whatever is made once is made now
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: run_tests(HONEST, TESTS), range(threads)))
        before = descriptors()
        problems = [problem for found in pool.map(problems_of, programs) for problem in found]
        if not run_tests(HONEST, TESTS).all_passed:
            problems.append("an honest program fails afterwards")
        # a slot more may have been opened, with its ruleset
        if descriptors() > before + threads:
            problems.append(f"{descriptors() - before} descriptors more are open")
    return problems + [f"left behind: {what}" for what in left_behind()]


def main() -> None:
    """Print the level, the problems and some figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--without-namespaces", action="store_true", help="as on Ubuntu 24.04 and in containers")
    parser.add_argument("--as-root", action="store_true", help="as where only root may make namespaces")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--kinds", default="verdict,resource,escape,honest", help="of programs, separated by commas")
    arguments = parser.parse_args()
    corpus = [program for program in CORPUS if program.kind in arguments.kinds.split(",")]
    layers = isolation()
    if arguments.without_namespaces:
        layers = probe._found = replace(layers, namespaces=0, namespaces_as_root=False, box=False)
    if arguments.as_root:
        layers = probe._found = replace(layers, namespaces=NAMESPACES, namespaces_as_root=True)
    began = time.monotonic()
    problems = run_corpus(corpus, arguments.threads)
    print(
        json.dumps(
            {
                "level": layers.level,
                "layers": layers.describe(),
                "user": os.geteuid(),
                "programs": len(corpus),
                "seconds": round(time.monotonic() - began, 1),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "problems": problems,
            }
        )
    )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
