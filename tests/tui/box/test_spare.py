"""Checkpoints that can go: steps in words, and their paths."""

from __future__ import annotations

import re
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.box.backups import SpareRun, spare_runs


def test_even_distances_are_ranges() -> None:
    assert SpareRun("a", [100, 200, 300, 450, 500]).ranges() == "100–300 (3), 450, 500"
    assert SpareRun("a", [5]).ranges() == "5"
    assert SpareRun("a", [1_000, 2_000]).ranges() == "1,000, 2,000"


@given(st.sets(st.integers(0, 5_000), min_size=1, max_size=60))
def test_every_step_is_in_a_range(steps: set[int]) -> None:
    text = SpareRun("a", sorted(steps)).ranges()
    counts = [int(count) for count in re.findall(r"\((\d+)\)", text)]
    assert sum(counts) + len(text.split(", ")) - len(counts) == len(steps)


def test_the_paths_are_those_that_a_shell_finds() -> None:
    paths = SpareRun("it's", [1, 3]).paths("/a root")
    printed = subprocess.run(["bash", "-c", f"printf '%s\\n' {paths}"], capture_output=True, text=True, check=True)
    folder = "/a root/training_runs/it's/training_state"
    assert printed.stdout.splitlines() == [f"{folder}/step_1", f"{folder}/step_3"]
    assert SpareRun("one", [7]).paths("/r") == "/r/training_runs/one/training_state/step_7"


def test_the_largest_run_comes_first() -> None:
    rows = [
        {"run": "a", "step": 2, "bytes": 10.0},
        {"run": "b", "step": 1, "bytes": 90.0, "evaluated": "0.5 gsm8k"},
        {"run": "a", "step": 1, "bytes": 10.0},
        {"run": "c", "unreadable": "damaged"},
    ]
    found = spare_runs(rows)
    assert [(run.name, run.steps, run.size) for run in found] == [("b", [1], 90.0), ("a", [1, 2], 20.0)]
