"""Run the corpus and report unexpected results and leftovers.

``python -m tests.sandbox.hostile.trial`` runs it as the current user and prints one JSON object.
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
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from grpo_train.sandbox import isolation, probe, run_program, run_tests
from grpo_train.sandbox.canary import canary_hits
from grpo_train.sandbox.child import WALL_PER_CPU, process_mark
from grpo_train.sandbox.layers import NAMESPACES
from grpo_train.sandbox.workspace import CANARY_FILE, MAX_CLEANERS, workspace
from tests.sandbox.hostile import escapes, honest, resources, verdicts
from tests.sandbox.hostile.program import HONEST, TESTS, Program, together
from tests.support.patience import PATIENCE, eventually

CORPUS: tuple[Program, ...] = (*verdicts.PROGRAMS, *resources.PROGRAMS, *escapes.PROGRAMS, *honest.PROGRAMS)
ESCAPES = [program for program in CORPUS if program.attempt]
SAMPLE = sorted(
    (program for program in CORPUS if not program.attempt and program.name not in resources.REPEATED),
    key=lambda program: "timeout" not in (*program.reasons, *program.statuses),
)
"""Without the escapes, which one program can make together. Those that use up a time limit come first."""
CPU_SECONDS = 1.0
CLEANUP_SECONDS = 15.0
DIRECTORIES = ("/tmp", "/dev/shm", "/root", os.path.expanduser("~"), os.path.dirname(os.__file__), os.getcwd())


def problems_of(program: Program) -> list[str]:
    """Run one program and return its unexpected results."""
    source = here(program.source)
    # Programs that end by themselves get more time, for busy machines; the others use up their limit.
    ends = program.reasons == ("ok",) or (program.kind == "verdict" and "timeout" not in program.reasons)
    cpu_seconds = 5.0 if ends and program.kind != "resource" else CPU_SECONDS
    run = _script if program.statuses else _solution
    problems, seconds = run(program, source, cpu_seconds)
    # Killing a process with a gigabyte of memory takes longer on busy cores.
    busy = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    if seconds > PATIENCE * WALL_PER_CPU * cpu_seconds + busy:
        problems.append(f"ended after {seconds:.1f} s")
    return [f"{program.name}: {problem}" for problem in problems]


def here(source: str) -> str:
    """Source with this process's pid and the path of its secret."""
    return source.replace(escapes.PARENT, str(os.getpid())).replace(escapes.SECRET, workspace().canary)


def problems_together(programs: Sequence[Program]) -> list[str]:
    """Make the attempts of all escapes in one program and return unexpected results."""
    source = here(together(programs))
    tests = [f"assert was[{index}] in {program.outcomes!r}" for index, program in enumerate(programs)]
    result = run_tests(source, [*TESTS, *tests], cpu_seconds=5.0)
    problems = [f"solution: {reason}" for reason in result.reasons[: len(TESTS)] if reason != "ok"]
    problems += [
        f"{program.name}: {reason}"
        for program, reason in zip(programs, result.reasons[len(TESTS) :], strict=True)
        if reason != "ok"
    ]
    if problems:
        problems.append(f"outcomes: {run_program(source + 'print(was)', cpu_seconds=5.0).stdout.strip()}")
    return problems


def _script(program: Program, source: str, cpu_seconds: float) -> tuple[list[str], float]:
    result = run_program(source, program.stdin, cpu_seconds)
    problems = []
    if result.status not in program.statuses:
        problems.append(f"status {result.status}: {result.stderr[-300:]}")
    if program.stdout is not None and result.stdout != program.stdout:
        problems.append(f"printed {result.stdout[:300]!r}")
    if canary_hits(result.stdout + result.stderr):
        problems.append("printed the secret")
    return problems, result.seconds


def _solution(program: Program, source: str, cpu_seconds: float) -> tuple[list[str], float]:
    tests = TESTS if not program.outcomes else [*TESTS, f"assert was in {program.outcomes!r}"]
    result = run_tests(source, tests, cpu_seconds=cpu_seconds)
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
    """Processes, files and directories that remain of this process's programs, after cleanup."""
    with suppress(AssertionError):
        eventually(lambda: not _leftovers(), CLEANUP_SECONDS)
    return _leftovers()


def _leftovers() -> list[str]:
    found = []
    mark = process_mark(os.getpid()).encode()
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and mark in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(f"process {entry}")
        except OSError:
            pass
    for slot in Path(workspace().root).iterdir():
        if slot.name != CANARY_FILE:
            found += _contents(slot)
    for directory in DIRECTORIES:
        try:
            found += [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(escapes.MARK)]
        except OSError:
            pass
    return found[:20]


def _contents(slot: Path) -> list[str]:
    """What a slot holds besides one level of empty directories, which it keeps for its next program.

    Nothing is walked: a program may nest ten thousand directories, and their removal may still be under way.
    """
    try:
        return [
            str(entry) for entry in slot.iterdir() if not entry.is_dir() or entry.is_symlink() or any(entry.iterdir())
        ]
    except OSError as error:  # removed meanwhile, or unreadable
        return [f"{slot}: {error}"]


def descriptors() -> tuple[int, int]:
    """Numbers of open descriptors of this process: rulesets of slots, and others."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing is closed
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    rulesets = sum("landlock" in name for name in names)
    return rulesets, len(names) - rulesets


def run_corpus(programs: Sequence[Program], threads: int, made_together: Sequence[Program] = ()) -> list[str]:
    """Unexpected results of the corpus, and leftovers. ``made_together``: escapes in one program."""
    kept, _ = descriptors()  # slots of earlier tests of this process
    run_tests(HONEST, TESTS)  # create everything that is created once
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: run_tests(HONEST, TESTS), range(threads)))
        _, before = descriptors()
        problems = [problem for found in pool.map(problems_of, programs) for problem in found]
        problems += problems_together(made_together) if made_together else []
        if run_tests(HONEST, TESTS).reason != "ok":
            problems.append("an honest program fails afterwards")
        problems += [f"left behind: {leftover}" for leftover in left_behind()]
        with suppress(AssertionError):  # a cleaner still has a directory open
            eventually(lambda: descriptors()[1] <= before, CLEANUP_SECONDS)
        rulesets, others = descriptors()
        if others > before:
            problems.append(f"{others - before} additional open descriptors")
        # programs run in one slot a thread, and cleaners empty some more
        if rulesets > kept + threads + MAX_CLEANERS:
            problems.append(f"{rulesets} rulesets are open")
    return problems


def main() -> None:
    """Print the level, the problems and statistics."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--without-namespaces", action="store_true", help="as on Ubuntu 24.04 and in containers")
    parser.add_argument("--as-root", action="store_true", help="as on machines where only root may create namespaces")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument(
        "--kinds", default="verdict,resource,escape,honest", help="kinds of programs, separated by commas"
    )
    parser.add_argument("--sample", action="store_true", help="one program for each limit, all escapes in one")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    corpus = [program for program in (SAMPLE if arguments.sample else CORPUS) if program.kind in kinds]
    layers = isolation()
    if arguments.without_namespaces:
        layers = probe._found = replace(layers, namespaces=0, namespaces_as_root=False, tmpfs=False)
    if arguments.as_root:
        layers = probe._found = replace(layers, namespaces=NAMESPACES, namespaces_as_root=True)
    workspace().close()  # with the probe's slot, which programs at another level cannot use
    began = time.monotonic()
    problems = run_corpus(corpus, arguments.threads, ESCAPES if arguments.sample and "escape" in kinds else ())
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
