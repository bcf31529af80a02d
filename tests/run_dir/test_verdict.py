"""The verdict on a run: each word on a curve that a person would call so, and none where it is too early."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from grpo_train.run_dir.display import metric_value
from grpo_train.run_dir.verdict import RunVerdict
from grpo_train.run_dir.verdict_rules import Evidence, HeldOutAccuracy, judge

Curve = Callable[[int], float]


def curve(steps: int, shape: Curve, noise: float = 0.03, seed: int = 1) -> list[float]:
    """A value a step, from step 1 on."""
    random = Random(seed)
    return [shape(step) + random.gauss(0, noise) for step in range(1, steps + 1)]


def verdict(rewards: Sequence[float], **more: Any) -> RunVerdict | None:
    """Of a run with these rewards. ``metrics``: further columns; the rest is of :class:`Evidence`."""
    columns = {"reward": rewards, **more.pop("metrics", {})}
    missing = [math.nan] * len(rewards)
    return judge(Evidence(range(1, len(rewards) + 1), lambda name: columns.get(name, missing), **more))


def rising(step: int) -> float:
    return 1.84 / (1 + math.exp((20 - step) / 5))


def word(found: RunVerdict | None) -> str:
    return found.word if found else ""


RESUMED = {
    "event": "resumed",
    "step": 40,
    "changes": {"optimizer.learning_rate": [1e-4, 2e-3], "run.save_every": [5, 9]},
}


def test_a_collapse_names_steps_and_cause() -> None:
    fallen = curve(60, lambda step: rising(step) if step <= 40 else max(0.0, 1.84 - 0.25 * (step - 40)), noise=0.01)
    found = verdict(fallen, events=[RESUMED])
    assert found is not None
    assert (found.word, found.mark, found.tone) == ("collapsed", "▼", "bad")
    assert abs(found.since - 43) <= 3
    assert abs(found.until - 48) <= 3
    assert found.text.startswith(
        f"reward {found.before:.3f} ▼ {metric_value(found.after)}, steps {found.since}–{found.until}, "
    )
    assert found.text.endswith(f"{found.since - 40} steps after learning_rate 1e-4→2e-3")
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("cause", "undone"),
    [
        ("learning_rate 1e-4→2e-3", "learning_rate 1e-4"),
        ("temperature 1→4, max_grad_norm 0.05→1000", "temperature 1, max_grad_norm 0.05"),
        ("rewards [a, b]→[c]", ""),
        ("", ""),
    ],
)
def test_a_cause_can_be_taken_back(cause: str, undone: str) -> None:
    assert RunVerdict("collapsed", 41, 50, "reward", 1.84, 0.0, cause, 40).undone == undone


@pytest.mark.parametrize("rows", [2, 6, 9, 25])
def test_a_finished_collapse_is_still_one(rows: int) -> None:
    fallen = curve(40 + rows, lambda step: rising(step) if step <= 40 else 0.0)
    assert word(verdict(fallen, is_finished=True)) == ("collapsed" if rows > 7 else "")
    assert word(verdict(fallen[:41], is_finished=True)) == "done", "one low row is a bad batch"


def test_a_dip_that_recovers_is_not_a_collapse() -> None:
    dipped = curve(90, lambda step: 0.3 if 50 <= step < 54 else rising(step))
    for rows in range(30, 91):
        assert word(verdict(dipped[:rows])) in ("improving", ""), rows


def test_a_few_lucky_rewards_are_no_level() -> None:
    lucky = curve(60, lambda step: 0.06 if step <= 30 else 0.0, noise=0.001)
    assert word(verdict(lucky, metrics={"frac_reward_zero_std": [0.5] * 60})) == "collapsed"
    assert word(verdict(lucky, metrics={"frac_reward_zero_std": [0.97] * 60})) == "no signal"


def test_two_evaluations_since_a_fall_tell_harder_prompts() -> None:
    fallen = curve(61, lambda step: 1.0 if step <= 40 else 0.05)
    for accuracies, expected in (((0.5, 0.5, 0.5), ""), ((0.5, 0.1, 0.1), "collapsed")):
        evaluations = [HeldOutAccuracy(step, share, 500) for step, share in zip((40, 45, 55), accuracies, strict=True)]
        assert word(verdict(fallen, evaluations=evaluations)) == expected


def test_what_is_unlearned_though_rewards_stay() -> None:
    level = curve(60, lambda step: 1.2)
    for later, expected in (((0.0,), "collapsed"), ((0.2,), ""), ((0.2, 0.18), "collapsed"), ((0.2, 0.5), "")):
        held = [HeldOutAccuracy(20 + 20 * index, share, 200) for index, share in enumerate((0.563, *later))]
        found = verdict(level, evaluations=held)
        assert (word(found) == "collapsed") == (expected == "collapsed"), later
        if expected and found is not None:
            assert (found.metric, found.since) == ("held-out", 40)


def test_harder_prompts_are_not_a_collapse() -> None:
    fallen = curve(80, lambda step: rising(step) if step <= 40 else 0.9)
    held = [HeldOutAccuracy(step, 0.6, 500) for step in (20, 40, 60, 80)]
    assert word(verdict(fallen)) == "collapsed"
    assert word(verdict(fallen, evaluations=held)) != "collapsed"


@pytest.mark.parametrize(
    ("key", "values", "is_said"),
    [
        ("task.rewards", [[], ["brief.py:brief"]], True),
        ("rollout.temperature", [1.0, 4.0], True),
        ("task.name", ["addition", "gsm8k"], False),
        ("run.save_every", [10, 20], False),
    ],
)
def test_a_reward_that_a_resume_made_fall_is_said_though_held_out_holds(
    key: str, values: list[Any], is_said: bool
) -> None:
    """A resume with harder prompts explains it; one with another reward function is to be looked at."""
    fallen = curve(80, lambda step: rising(step) if step <= 40 else 0.1)
    held = [HeldOutAccuracy(step, 0.6, 500) for step in (20, 40, 60, 80)]
    events = [{"event": "resumed", "step": 40, "changes": {key: values}}]
    found = verdict(fallen, evaluations=held, events=events)
    assert (word(found) == "collapsed") == is_said
    if is_said and found is not None:
        assert found.cause_step == 40
        assert found.text.endswith("; held-out accuracy holds")
    nothing = [HeldOutAccuracy(step, 0.0, 200) for step in (20, 40, 60, 80)]
    for evaluations in ([], nothing):
        alone = verdict(fallen, events=events, evaluations=evaluations)
        assert alone is not None
        assert (alone.word, alone.how) == ("collapsed", ""), "what is 0 does not hold"


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("kl", lambda step: 0.02 * math.exp(max(0, step - 40) / 4)),
        ("ess/token", lambda step: 0.95 if step <= 40 else 0.35),
        ("grad_norm", lambda step: 0.5 if step <= 40 else 20.0),
        ("grad_norm", lambda step: 0.5 if step <= 40 else math.nan),
    ],
)
def test_diverging(metric: str, values: Curve) -> None:
    metrics = {metric: [values(step) for step in range(1, 65)]}
    found = verdict(curve(64, rising), metrics=metrics)
    assert found is not None
    assert (found.word, found.metric) == ("diverging", metric)
    assert ("not finite" in found.text) == math.isnan(metrics[metric][-1])
    assert abs(found.since - 43) <= 3
    assert word(verdict(curve(40, rising), metrics={metric: metrics[metric][:40]})) == "improving"


def test_a_single_spike_of_the_gradient() -> None:
    spiked = [20.0 if step == 30 else 0.5 for step in range(1, 61)]
    assert word(verdict(curve(60, rising), metrics={"grad_norm": spiked})) == "improving"


def test_signs_of_hacking_are_suspicious() -> None:
    """Several answers in most completions, while the reward rises; while it falls, they are not what pays."""
    answers = {"hacking/multiple_answers": [0.02 if step < 41 else 0.6 for step in range(1, 61)]}
    found = verdict(curve(60, rising), metrics=answers)
    assert found is not None
    assert (found.word, found.since, found.before, found.after) == ("suspicious", 41, 0.02, 0.6)
    assert found.text == "hacking/multiple_answers 0.020 → 0.600 since step 41"
    falling = curve(60, lambda step: 1.84 if step < 41 else 1.84 - 0.02 * (step - 40))
    assert word(verdict(falling, metrics=answers)) != "suspicious"
    once = {"hacking/multiple_answers": [0.6 if 41 <= step < 45 else 0.02 for step in range(1, 61)]}
    assert word(verdict(curve(60, rising), metrics=once)) != "suspicious"


def test_held_out_down_is_suspicious() -> None:
    accuracies = {10: 0.3, 20: 0.5, 30: 0.6, 40: 0.55, 50: 0.48, 60: 0.4}
    held = [HeldOutAccuracy(step, accuracy, 400) for step, accuracy in accuracies.items()]
    found = verdict(curve(60, lambda step: 0.02 * step), evaluations=held)
    assert found is not None
    assert (found.word, found.since, found.before, found.after) == ("suspicious", 40, 0.6, 0.4)
    assert word(verdict(curve(40, lambda step: 0.02 * step), evaluations=held[:4])) == "improving"


@pytest.mark.parametrize(("column", "how"), [("all_wrong", "all wrong"), ("all_correct", "all correct")])
def test_no_signal_says_which_way(column: str, how: str) -> None:
    dead = curve(60, lambda step: 0.3 if step <= 30 else 0.97, noise=0.02)
    metrics = {"frac_reward_zero_std": dead, f"groups/{column}": dead}
    found = verdict(curve(60, lambda step: 0.5), metrics=metrics)
    assert found is not None
    assert (found.word, found.how) == ("no signal", how)
    assert abs(found.since - 31) <= 3
    assert found.text == f"since step {found.since}: 97 % of groups score alike, mostly {how}"


@pytest.mark.parametrize(("changes", "expected"), [({"rollout.temperature": [1, 0.01]}, "no signal"), ({}, "done")])
def test_all_correct_at_the_end_is_no_signal_only_after_a_change(changes: dict[str, Any], expected: str) -> None:
    dead = curve(90, lambda step: 0.3 if step <= 40 else 1.0, noise=0.0)
    metrics = {"frac_reward_zero_std": dead, "groups/all_correct": dead, "accuracy": [0.97] * 90}
    events = [{**RESUMED, "changes": changes}]
    assert word(verdict(curve(90, rising), metrics=metrics, events=events, is_finished=True)) == expected


def test_a_slow_rise_is_not_flat() -> None:
    level = curve(200, lambda step: 0.5)
    assert word(verdict(level[:60])) == ""
    assert word(verdict(level, total_steps=200)) == "flat"
    assert word(verdict(curve(200, lambda step: 0.4 + step / 1000))) == "improving"
    mastered = {"accuracy": [0.95] * 200}
    assert word(verdict(curve(200, lambda step: 0.95), metrics=mastered)) == ""
    assert word(verdict(curve(200, lambda step: 0.95), metrics=mastered, is_finished=True)) == "done"


def test_what_was_gained_long_ago_is_no_improvement() -> None:
    for seed in range(20):
        gained = curve(300, lambda step: min(step, 60) / 100, seed=seed)
        assert word(verdict(gained[:70], total_steps=300)) == "improving"
        assert all(word(verdict(gained[:rows], total_steps=300)) != "improving" for rows in range(270, 301, 5))


@pytest.mark.parametrize(
    ("accuracies", "expected"), [((0.2, 0.3, 0.4, 0.55, 0.6), "improving"), ((0.4, 0.41, 0.39, 0.4, 0.4), "flat")]
)
def test_self_play_improves_where_its_held_out_accuracy_does(accuracies: tuple[float, ...], expected: str) -> None:
    """Both sides of a game improve: the reward is level."""
    level = curve(200, lambda step: 0.5)
    evaluations = [HeldOutAccuracy(40 * place, value, 200) for place, value in enumerate(accuracies, 1)]
    found = verdict(level, evaluations=evaluations, total_steps=200)
    assert word(found) == expected
    finished = word(verdict(level, evaluations=evaluations, is_finished=True))
    assert finished == ("done" if expected == "improving" else "flat")


def test_too_few_rows_or_none() -> None:
    assert verdict([]) is None
    assert verdict([1.0, 0.0]) is None
    assert verdict([math.nan] * 50) is None
    assert verdict([0.0] * 50) is None


def test_long_logs_are_reduced() -> None:
    found = verdict(curve(50_000, lambda step: 1.8 if step <= 30_000 else 0.1))
    assert found is not None
    assert found.word == "collapsed"
    assert abs(found.since - 30_000) <= 100
