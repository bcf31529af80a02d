"""Which runs a query of the history finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_train.history.cost import Prices
from grpo_train.history.fields import field_text
from grpo_train.history.listing import find, listing_json, one_of, to_csv
from grpo_train.history.record import RunRecord
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import utc_from
from grpo_train.run_dir.identity import identity_of

NOW = 1_790_000_000.0
DAY = 86_400.0


def record(name: str, days_ago: float = 1.0, box: str = "h200-a", backup: str = "", **known: Any) -> RunRecord:
    config = {"task.name": "gsm8k_r1", "optimizer.learning_rate": 1e-5, "run.seed": 1, **known.pop("config", {})}
    metrics = {"loss": [0.1, 0.05, 0.9], **known.pop("metrics", {})}
    accuracy = known.pop("accuracy", None)
    rows = [{"step": 0, "accuracy": 0.3, "n": 100}, {"step": 10, "accuracy": accuracy, "n": 100}] if accuracy else []
    launched = NOW - days_ago * DAY
    return RunRecord(
        identity_of(name.encode()), box, "/runs", name,
        {
            "state": "finished", "step": 10, "run_seconds": 3600.0, "launched_at": utc_from(launched),
            "updated_at": utc_from(launched + 3600), **known,
        },
        json.dumps(config), json.dumps(metrics),
        json.dumps([{"dataset": "gsm8k_r1", "state": "finished", "rows": rows}]), "", backup, "",
        [(box, launched, launched + 3600)], {"h200-a": Prices(((0.0, 2.5),))},
    )  # fmt: skip


RECORDS = [
    record("night-a", 1, reward=0.7, accuracy=0.65, note="the good one"),
    record("night-b", 3, reward=0.4, accuracy=0.5, config={"optimizer.learning_rate": 2e-6}, backup="behind"),
    record("day", 40, box="old", reward=0.9, state="crashed", run_seconds=7200.0),
    record("fresh", 0.01, reward=0.1, state="running", step=2, config={"task.name": "mbpp"}),
]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["fresh", "night-a", "night-b", "day"]),
        ("state:finished", ["night-a", "night-b"]),
        ("reward>0.5", ["night-a", "day"]),
        ("state:finished reward>0.5", ["night-a"]),
        ("cfg.optimizer.learning_rate>=1e-5 task:gsm8k", ["night-a", "day"]),
        ("lr<1e-5", ["night-b"]),
        ("cfg.learning_rate<1e-5", ["night-b"]),
        ("name~^night sort:-reward", ["night-a", "night-b"]),
        ("name~^night sort:reward", ["night-b", "night-a"]),
        ("since:7d", ["fresh", "night-a", "night-b"]),
        ("since:36h not state:running", ["night-a"]),
        ("before:30d", ["day"]),
        ("box:h200-a backup:none", ["fresh", "night-a"]),
        ("backup:behind", ["night-b"]),
        ("eval.accuracy>0.6", ["night-a"]),
        ("eval.gsm8k_r1.best>=0.5 sort:eval.best", ["night-b", "night-a"]),
        ("cost<10", ["fresh", "night-a", "night-b"]),  # the old box has no price
        ("max.loss>0.5 sort:-reward limit:2", ["day", "night-a"]),
        ("good", ["night-a"]),
        ("mbpp or crashed", ["fresh", "day"]),
        ("sort:state,-reward", ["day", "night-a", "night-b", "fresh"]),
        ("hours>=2", ["day"]),
    ],
)
def test_a_query_finds_runs_in_order(query: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_train.history.search.time.time", lambda: NOW)
    found, _ = find(RECORDS, query)
    assert [one.name for one in found] == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("rewrd>0.5", "no run has a field 'rewrd'; did you mean reward?\n  rewrd>0.5\n  ^"),
        ("state:finished cfg.optimizer.lerning_rate>1", "did you mean cfg.optimizer.learning_rate?"),
        ("sort:-rewrd", "did you mean reward?"),
        ("since:soon", "expected a time span such as 7d"),
        ("(since:7d or reward>1)", "write since:VALUE by itself"),
        ("not sort:reward", "write sort:VALUE by itself"),
        ("limit:0", "expected a number of runs"),
        ("limit:1 limit:2", "limit is given twice"),
        ("reward>", "a value is missing after '>'"),
    ],
)
def test_a_mistake_is_pointed_out(query: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        find(RECORDS, query)
    assert message in str(refused.value)


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean cost"):
        find(RECORDS, "", "name,csot")


def test_a_named_field_becomes_a_column() -> None:
    assert find(RECORDS, "max.loss>0.5")[1][-1] == "max.loss"
    assert find(RECORDS, "", "name, run.seed")[1] == ["name", "run.seed"]


def test_a_quantity_has_one_notation_under_each_of_its_names() -> None:
    one = record("one", reward=1.61, accuracy=0.62, metrics={"reward": [1.61, 0.1, 1.7]})
    assert [field_text(one, name) for name in ("reward", "last.reward", "max.reward")] == ["1.610", "1.610", "1.700"]
    assert [field_text(one, name) for name in ("held_out", "eval.best", "eval.gsm8k_r1.accuracy")] == [".620"] * 3
    assert [field_text(one, name) for name in ("lr", "eval.n", "cfg.run.seed", "step")] == ["1e-5", "100", "1", "10"]


def test_json_and_csv_have_plain_values() -> None:
    found, columns = find(RECORDS, "name:night-a", "name,reward,launched,step,note,projected")
    (row,) = json.loads(listing_json(found, columns))
    assert row == {
        "identity": found[0].identity, "name": "night-a", "reward": 0.7, "launched": utc_from(NOW - DAY), "step": 10,
        "note": "the good one", "projected": None,
    }  # fmt: skip
    assert to_csv([record("x", note="=1+1")], ["name", "note"]) == "name,note\nx,'=1+1\n"


def test_a_run_is_found_by_name_or_identity() -> None:
    assert one_of(RECORDS, "day").name == "day"
    assert one_of(RECORDS, RECORDS[0].identity[:13]).name == "night-a"
    with pytest.raises(UserError, match="did you mean night-a"):
        one_of(RECORDS, "nigth-a")
    with pytest.raises(UserError, match="2 runs are named 'day'"):
        one_of([*RECORDS, RunRecord("ffff", "b", "/r", "day", {})], "day")


def test_costs_follow_from_price_and_time() -> None:
    one = record("a", accuracy=0.5, config={"rollout.buffer_size": 4, "rollout.num_generations": 5})
    assert (one.cost, one.cost_per_step, one.cost_per_1000) == (2.5, 0.25, pytest.approx(12.5))
    live = record("b", state="running", total_steps=30, step_seconds=360.0)
    assert live.projected_cost == pytest.approx(2.5 + 20 * 0.25)
    assert record("c", box="old").cost is None
    longer = record("d", run_seconds=7200.0, updated_at=utc_from(NOW))  # an hour more than its spans know
    assert (longer.cost, longer.ran[-1]) == (5.0, ("h200-a", NOW - 3600, NOW))


TEXTS = st.text(max_size=8) | st.sampled_from(
    ['a": ', '"a": 1', "a\\", '\\"a\\": ', 'x"a', "a", '": ', ": ", ", ", "}"]
)


@settings(max_examples=500)
@example({'": ': "", ": ": "0"}, "")
@example({'x"a': 1, "a": 2}, "a")
@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.none() | st.booleans(), max_size=6), TEXTS)
def test_one_value_is_found_without_the_others(config: dict[str, Any], other: str) -> None:
    one = RunRecord("i", "b", "/r", "n", {}, config_json=json.dumps(config, ensure_ascii=False))
    for key, value in config.items():
        assert one.config_value(key) == value
    if other not in config and "." in other:
        assert one.config_value(other) is None
