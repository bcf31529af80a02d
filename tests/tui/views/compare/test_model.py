"""Which runs are compared, their letters, and when the box is asked."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.box.asking import LIVE_S, REST_S
from grpo_tui.box.rows import RunRow
from grpo_tui.views.compare.model import (
    LETTERS,
    Accuracy,
    Comparison,
    Facts,
    PairedResults,
    differ,
    differing,
    facts_of,
    flat_config,
)


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def rows(*names: str, step: int = 100) -> dict[str, RunRow]:
    return {name: RunRow(name, "running", step=step) for name in names}


def letters(comparison: Comparison) -> str:
    return " ".join(f"{run.letter}:{run.name}" for run in comparison.runs)


def test_letters_close_up() -> None:
    comparison = Comparison()
    comparison.follow(["x", "y", "z"], rows("x", "y", "z"))
    comparison.follow(["x", "z"], rows("x", "z"))
    assert letters(comparison) == "A:x B:z"
    comparison.follow(["x", "z", "w"], rows("x", "z", "w"))
    assert letters(comparison) == "A:x B:z C:w"
    comparison.follow(["z", "w"], rows("z", "w"))
    assert (letters(comparison), comparison.pinned) == ("A:z B:w", "z")


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
    comparison.columns = 920
    assert (comparison.smoothing, comparison.mean_over) == ("raw", 0)
    comparison.columns = 100
    assert comparison.mean_over == 37, "more than two values a pixel column"
    assert (comparison.smooth(1), comparison.mean_over) == ("light", 46)
    assert (comparison.smooth(1), comparison.mean_over) == ("strong", 184)
    comparison.show(["kl"], 240)
    asked = [run.curves.due() for run in comparison.runs]
    assert all(params and params["metrics"][:2] == ["kl", "reward"] for params in asked)


def test_a_run_that_logs_is_asked_again() -> None:
    clock = Clock()
    comparison = Comparison(clock)
    comparison.follow("ab", rows("a", "b"))
    comparison.show(["kl"], 240)
    (run, _) = comparison.runs
    assert run.curves.due() is not None
    empty: dict[str, Any] = {
        "state": "whole", "progress": 1.0, "first": None, "last": None, "low": 0.0, "high": 0.0,
        "rows": 0, "offset": 0, "series": [], "x": "step",
    }  # fmt: skip
    run.curves.take(empty)
    clock.time += LIVE_S
    comparison.follow("ab", rows("a", "b", step=101))
    assert run.curves.due() is not None
    run.curves.take(empty)
    clock.time += LIVE_S
    comparison.follow("ab", rows("a", "b", step=101))
    assert run.curves.due() is None


def test_facts_are_asked_again() -> None:
    clock = Clock()
    comparison = Comparison(clock)
    comparison.follow("ab", rows("a", "b"))
    assert len(comparison.facts_due()) == 2
    assert comparison.facts_due() == []
    clock.time += REST_S
    assert comparison.facts_due() == [], "a slow answer is waited for"
    for run in comparison.runs:
        run.asking.end("facts")
    assert comparison.facts_due() == []
    clock.time += REST_S
    assert len(comparison.facts_due()) == 2


def evaluated(**steps: list[int]) -> Facts:
    return Facts(
        {}, "", {dataset: {step: Accuracy(0.5, 0.1, 40) for step in found} for dataset, found in steps.items()}
    )


def test_pairs_are_asked_once_for_what_both_have() -> None:
    comparison, paired = Comparison(), PairedResults()
    comparison.follow("abc", rows("a", "b", "c"))
    assert paired.due(comparison.pin, comparison.runs) is None
    for run, facts in zip(comparison.runs, (evaluated(x=[1, 2], y=[3]), evaluated(x=[2]), evaluated()), strict=True):
        run.facts = facts
    assert paired.due(comparison.pin, comparison.runs) == {"run": "a", "others": ["b"], "steps": [2]}
    assert paired.due(comparison.pin, comparison.runs) is None
    row = {"name": "step_2", "run": "b", "dataset": "x", "step": 2.0, "n": 40.0, "difference": 0.1, "low": 0.02}
    paired.answer({"comparisons": [{**row, "high": 0.2}, {"name": "y", "unreadable": "odd"}], "problems": ["no\nluck"]})
    pair = paired.pairs["x", "b", 2]
    assert (pair.problems, pair.is_clear, round(pair.spread, 3)) == (40, True, 0.09)
    assert paired.problems == ["y: odd", "no luck"]
    assert paired.due(comparison.pin, comparison.runs) is None
    comparison.runs[1].facts = evaluated(x=[1, 2])
    assert paired.due(comparison.pin, comparison.runs) == {"run": "a", "others": ["b"], "steps": [1, 2]}


CONFIG = """\
run: {seed: 1, name: null}
optimizer:
  learning_rate: 1.0e-06
task:
  rewards: [accuracy, {name: length, weight: 0.5}]
  template: "two\\nlines"
"""


def test_a_configuration_is_read_as_flat_keys() -> None:
    assert flat_config(CONFIG) == {
        "run.seed": "1",
        "run.name": "null",
        "optimizer.learning_rate": "1.0e-06",
        "task.rewards": "[accuracy, [name, length, weight, 0.5]]",
        "task.template": "two lines",
    }
    assert flat_config("") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x [1]\nb: *x", "alias"),
        ("a: [1", "invalid YAML on line"),
        ("[" * 40 + "]" * 40, "nested"),
        ("x" * 70_000, "characters"),
        ("\n".join(f"k{i}: 1" for i in range(2_100)), "keys"),
    ],
)
def test_an_odd_configuration_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        flat_config(text)


scalars = st.one_of(st.integers(), st.booleans(), st.text("abc: #-'\"\n", max_size=8))
keys = st.text("xyz", max_size=3)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)


@settings(max_examples=40)
@given(st.dictionaries(keys, trees, max_size=3))
def test_any_mapping_is_read(tree: dict[str, object]) -> None:
    text = yaml.safe_dump(tree)
    if "&id" not in text:
        flat_config(text)


@given(st.text("ab:-[]{}*&!#'\"\n ,?|>", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        flat_config(text)
    except ValueError:
        pass


def test_only_values_that_differ_are_listed() -> None:
    one = {"code": "0.2.0 aaa", "a": "1e-06", "b": "1", "c": "x"}
    other = {"code": "0.2.0 bbb", "a": "0.000001", "b": "2"}
    assert differing([one, None, other]) == (["b", "c", "code"], 4)
    assert not differ("1", "1.0")
    assert not differ("", "null")
    assert differ(None, "null")
    assert differ("nan", "1")


def test_facts_of_a_run() -> None:
    rows = [
        {"step": "10", "name": "step_10", "accuracy": "0.5", "ci_low": "0.4", "ci_high": "0.6", "problems": "40"},
        {"step": "20", "name": "step_20", "accuracy": "", "status": "failed"},
        {"step": "0", "name": "other_model", "accuracy": "0.9"},
    ]
    reply = {
        "config_text": "run: {seed: 1}", "launch": {"ckpt": "models/x"},
        "status": {"version": "0.2.0", "commit": "98ebb0a1" * 5},
        "evaluations": [{"name": "r_gsm8k", "metrics": rows}],
    }  # fmt: skip
    facts = facts_of("r", reply)
    assert facts.config == {"run.seed": "1", "starting weights": "models/x", "code": "0.2.0 98ebb0a"}
    assert facts.accuracies == {"gsm8k": {10: Accuracy(0.5, pytest.approx(0.1), 40)}}  # type: ignore[arg-type]
    broken = facts_of("r", {"config_text": "a: [", "launch": {}, "status": {}, "evaluations": []})
    assert not broken.config
    assert broken.problem.startswith("invalid YAML on line")
