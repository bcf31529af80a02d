"""A thousand hostile programs from several threads leave nothing behind, and memory stays small."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_train.sandbox import isolation, probe, run_tests
from grpo_train.sandbox.workspace import MAX_CLEANERS
from tests.sandbox.hostile.program import HONEST, TESTS
from tests.sandbox.hostile.trial import CLEANUP_SECONDS, CORPUS, descriptors, left_behind, problems_of
from tests.support.patience import eventually

PROGRAMS = 1000
THREADS = 8
# Programs that write thousands of files use the disk for seconds; run one in fifty.
RARE = ("thousands of files", "thousands of nested directories", "a disk full of files")
LIMIT_MB = 200
"""Growth limit of the parent; the largest results are 4 MB per thread."""


def resident_mb(key: str) -> float:
    """``VmRSS``: current; ``VmHWM``: peak since :func:`reset_peak`."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) / 1024


def reset_peak() -> None:
    """Reset the peak, which previous tests may have raised."""
    Path("/proc/self/clear_refs").write_text("5")


def children() -> set[str]:
    """Pids of this process's children, zombies included."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("namespaces", [True, False])
def test_hostile_programs_leave_nothing_behind(namespaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not namespaces:
        monkeypatch.setattr(probe, "_found", replace(isolation(), namespaces=0, namespaces_as_root=False, tmpfs=False))
    rng, kept = random.Random(0), descriptors()[0]  # slots of another kind, from a test before
    usual = [program for program in CORPUS if program.kind != "honest" and program.name not in RARE]
    rare = [program for program in CORPUS if program.name in RARE]
    drawn = [rng.choice(rare if index % 50 == 49 else usual) for index in range(PROGRAMS)]
    assert run_tests(HONEST, TESTS).reason == "ok"
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: run_tests(HONEST, TESTS), range(4 * THREADS)))
        reset_peak()
        before = children()  # the fork server of other tests
        fds, resident, began = descriptors(), resident_mb("VmRSS"), time.monotonic()
        problems = [problem for found in pool.map(problems_of, drawn) for problem in found]
        seconds, peak = time.monotonic() - began, resident_mb("VmHWM")
    left = left_behind()
    print(f"\n{PROGRAMS} programs, {THREADS} threads, isolation {isolation().describe()}")
    print(f"kinds {dict(Counter(program.kind for program in drawn))}")
    print(f"{seconds:.0f} s, {PROGRAMS / seconds:.1f} programs/s; memory {resident:.0f} MB, at most {peak:.0f}")
    print(f"descriptors {fds} -> {descriptors()}, left behind {len(left)}, unexpected {len(problems)}")
    assert problems == []
    assert left == []
    eventually(lambda: descriptors()[1] <= fds[1], CLEANUP_SECONDS, "cleaners to close their directories")
    rulesets, _ = descriptors()
    assert rulesets <= kept + THREADS + MAX_CLEANERS  # programs run in one slot a thread, and cleaners empty some more
    assert peak - resident < LIMIT_MB
    assert children() == before
    assert run_tests(HONEST, TESTS).reason == "ok"
