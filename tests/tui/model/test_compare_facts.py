"""Configurations as flat keys, and what differs between them."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.model.compare_facts import Accuracy, differ, differing, facts_of, flat_config

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
