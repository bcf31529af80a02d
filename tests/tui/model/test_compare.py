"""Which runs are compared, their letters, and when the box is asked."""

from __future__ import annotations

from typing import Any

from grpo_tui.model.compare import AGAIN_S, FACTS_S, LETTERS, Comparison
from grpo_tui.model.compare_facts import Accuracy, Facts
from grpo_tui.model.paired import PairedResults
from grpo_tui.model.run_row import RunRow


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def rows(*names: str, step: int = 100) -> dict[str, RunRow]:
    return {name: RunRow(name, "running", step=step) for name in names}


def letters(comparison: Comparison) -> str:
    return " ".join(f"{run.letter}:{run.name}" for run in comparison.runs)


def test_a_run_keeps_its_letter() -> None:
    comparison = Comparison()
    comparison.follow(["x", "y", "z"], rows("x", "y", "z"))
    comparison.follow(["x", "z"], rows("x", "z"))
    assert letters(comparison) == "A:x C:z"
    comparison.follow(["x", "z", "w"], rows("x", "z", "w"))
    assert letters(comparison) == "A:x B:w C:z"
    comparison.follow(["z", "w"], rows("z", "w"))
    assert (letters(comparison), comparison.pinned) == ("B:w C:z", "w")


def test_more_marks_than_letters_are_counted() -> None:
    comparison = Comparison()
    names = [f"r{i}" for i in range(15)]
    comparison.follow(names, {})
    assert (len(comparison.runs), comparison.left_out) == (len(LETTERS), 3)


def test_pinning_turns_to_the_next_run() -> None:
    comparison = Comparison()
    comparison.follow("abc", rows("a", "b", "c"))
    assert comparison.pin_current() == "B"
    assert comparison.pin_current() == "C"
    comparison.move(1)
    assert (comparison.current, comparison.pin_current(), comparison.pinned) == ("a", "A", "a")


def test_runs_are_smoothed_alike() -> None:
    comparison = Comparison()
    comparison.follow("ab", {**rows("a", step=1_840), **rows("b", step=90)})
    assert comparison.smoothed_steps == 46
    assert comparison.smooth(-1) == comparison.smoothed_steps == 20
    comparison.show(["kl"], 240)
    asked = [run.curves.request() for run in comparison.runs]
    assert [params and params["smoothing"] for params in asked] == [20, 20]
    assert all(params and params["metrics"][:2] == ["kl", "reward"] for params in asked)


def test_a_run_that_logs_is_asked_again() -> None:
    clock = Clock()
    comparison = Comparison(clock)
    comparison.follow("ab", rows("a", "b"))
    comparison.show(["kl"], 240)
    (run, _) = comparison.runs
    assert run.curves.request() is not None
    empty: dict[str, Any] = {
        "state": "whole", "progress": 1.0, "first": None, "last": None, "low": 0.0, "high": 0.0, "smoothing": 0,
        "rows": 0, "offset": 0, "series": [], "x": "step",
    }  # fmt: skip
    run.curves.take(empty)
    clock.time += AGAIN_S
    comparison.follow("ab", rows("a", "b", step=101))
    assert run.curves.request() is not None
    run.curves.take(empty)
    clock.time += AGAIN_S
    comparison.follow("ab", rows("a", "b", step=101))
    assert run.curves.request() is None


def test_facts_are_asked_again() -> None:
    clock = Clock()
    comparison = Comparison(clock)
    comparison.follow("ab", rows("a", "b"))
    assert len(comparison.facts_due()) == 2
    assert comparison.facts_due() == []
    clock.time += FACTS_S
    assert comparison.facts_due() == [], "a slow answer is waited for"
    for run in comparison.runs:
        run.asking.end("facts")
    assert comparison.facts_due() == []
    clock.time += FACTS_S
    assert len(comparison.facts_due()) == 2


def evaluated(**steps: list[int]) -> Facts:
    return Facts(
        {}, "", {dataset: {step: Accuracy(0.5, 0.1, 40) for step in found} for dataset, found in steps.items()}
    )


def test_pairs_are_asked_once_for_what_both_have() -> None:
    comparison, paired = Comparison(), PairedResults()
    comparison.follow("abc", rows("a", "b", "c"))
    assert paired.request(comparison.pin, comparison.runs) is None
    for run, facts in zip(comparison.runs, (evaluated(x=[1, 2], y=[3]), evaluated(x=[2]), evaluated()), strict=True):
        run.facts = facts
    assert paired.request(comparison.pin, comparison.runs) == {"run": "a", "others": ["b"], "steps": [2]}
    assert paired.request(comparison.pin, comparison.runs) is None
    row = {"name": "step_2", "run": "b", "dataset": "x", "step": 2.0, "n": 40.0, "difference": 0.1, "low": 0.02}
    paired.answer({"comparisons": [{**row, "high": 0.2}, {"name": "y", "unreadable": "odd"}], "problems": ["no\nluck"]})
    pair = paired.pairs["x", "b", 2]
    assert (pair.problems, pair.is_clear, round(pair.spread, 3)) == (40, True, 0.09)
    assert paired.problems == ["y: odd", "no luck"]
    assert paired.request(comparison.pin, comparison.runs) is None
    comparison.runs[1].facts = evaluated(x=[1, 2])
    assert paired.request(comparison.pin, comparison.runs) == {"run": "a", "others": ["b"], "steps": [1, 2]}
