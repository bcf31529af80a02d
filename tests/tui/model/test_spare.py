"""Checkpoints that can go: steps in words, and the command that removes them."""

from __future__ import annotations

import re
import shlex

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.model.spare import MOST_NAMED, SpareRun, spare_runs


def test_even_distances_are_ranges() -> None:
    assert SpareRun("a", [100, 200, 300, 450, 500]).ranges() == "100–300 (3), 450, 500"
    assert SpareRun("a", [5]).ranges() == "5"
    assert SpareRun("a", [1_000, 2_000]).ranges() == "1,000, 2,000"


@given(st.sets(st.integers(0, 5_000), min_size=1, max_size=60))
def test_every_step_is_in_a_range(steps: set[int]) -> None:
    text = SpareRun("a", sorted(steps)).ranges()
    counts = [int(count) for count in re.findall(r"\((\d+)\)", text)]
    assert sum(counts) + len(text.split(", ")) - len(counts) == len(steps)


def test_the_command_names_the_steps() -> None:
    run = SpareRun("it's", [1, 3])
    assert shlex.split(run.command("/a root")) == [
        "grpo-train", "prune", "--training-run", "it's", "--steps", "1,3", "--root", "/a root", "--yes",
    ]  # fmt: skip
    many = SpareRun("many", list(range(MOST_NAMED + 1)))
    assert "--steps" not in many.command("")


def test_the_largest_run_comes_first() -> None:
    rows = [
        {"run": "a", "step": 2, "bytes": 10.0},
        {"run": "b", "step": 1, "bytes": 90.0, "evaluated": "0.5 gsm8k"},
        {"run": "a", "step": 1, "bytes": 10.0},
        {"run": "c", "unreadable": "damaged"},
    ]
    found = spare_runs(rows)
    assert [(run.name, run.steps, run.size) for run in found] == [("b", [1], 90.0), ("a", [1, 2], 20.0)]
