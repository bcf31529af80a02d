"""The list of metrics: last values, extremes, constant ones, unusual ones."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.protocol.frames import pack, unpack
from tests.support.index import Box, make_run


def listed(tmp_path: Path, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    from grpo_train.run_dir.files import to_json

    (make_run(tmp_path) / "train_log.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    reply = Box(tmp_path, tmp_path / "cache").whole("metrics")
    names = [row["name"] for row in reply["metrics"]]
    assert names == sorted(names)
    return {row["name"]: row for row in reply["metrics"]}


def test_what_a_metric_says(tmp_path: Path) -> None:
    rewards: list[Any] = [0.5, "NaN", 3, -1, "Infinity", None, 2]
    found = listed(tmp_path, [{"step": i, "reward": reward, "kl": 1} for i, reward in enumerate(rewards)])
    assert found["reward"] == {
        "name": "reward", "last": 2, "last_step": 6, "count": 4, "gaps": 2, "min": -1, "min_step": 3, "max": 3,
        "max_step": 2, "constant": False, "unusual": 0,
    }  # fmt: skip
    assert found["kl"]["constant"]
    assert set(found) == {"reward", "kl"}


def test_the_last_value_may_be_a_gap(tmp_path: Path) -> None:
    found = listed(tmp_path, [{"step": 1, "a": 1, "b": "-Infinity"}, {"step": 2, "a": "NaN"}])
    assert (found["a"]["last"], found["a"]["last_step"]) == ("NaN", 2)
    assert (found["b"]["last"], found["b"]["last_step"], found["b"]["min"]) == ("-Infinity", 1, None)
    assert not found["b"]["constant"]


def test_names_of_the_previous_format_are_renamed(tmp_path: Path) -> None:
    found = listed(tmp_path, [{"step": 1, "groups/all_right": 0.5}, {"step": 2, "groups/all_correct": 0.7}])
    assert found["groups/all_correct"]["count"] == 2


def test_names_that_cannot_be_shown_are_left_out(tmp_path: Path) -> None:
    assert set(listed(tmp_path, [{"step": 1, "\x1b[31m": 1, "": 2, "x" * 300: 3, "[/]": 4}])) == {"[/]"}


def test_a_metric_that_left_its_range_is_unusual(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [
        {"step": i, "usual": chance.gauss(0, 1), "moved": chance.gauss(9 if i > 975 else 0, 1), "fell": -float(i > 975)}
        for i in range(1_000)
    ]
    found = listed(tmp_path, rows)
    assert abs(found["usual"]["unusual"]) < 1
    assert found["moved"]["unusual"] > 3
    assert found["fell"]["unusual"] < -3


@pytest.mark.parametrize(("count", "is_unusual"), [(59, False), (60, True)])
def test_a_short_run_has_nothing_unusual(tmp_path: Path, count: int, is_unusual: bool) -> None:
    """The last 20 values are compared with at least twice as many others."""
    rows = [{"step": i, "moved": 9.0 if i >= count - 20 else 0.01 * (i % 2)} for i in range(count)]
    assert (abs(listed(tmp_path, rows)["moved"]["unusual"]) > 3) is is_unusual


columns = st.integers(0, 20).flatmap(
    lambda length: st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=length, max_size=length),
        min_size=1,
        max_size=8,
    )
)


@given(columns)
def test_packed_columns_are_unpacked(numbers: list[list[float]]) -> None:
    from array import array

    text = pack([array("d", column) for column in numbers])
    assert [list(column) for column in unpack(text, len(numbers), len(numbers[0]))] == numbers
    for count, length in ((len(numbers) + 1, len(numbers[0]) or 1), (len(numbers), len(numbers[0]) + 1)):
        with pytest.raises(ValueError, match="other than"):
            unpack(text, count, length)


@given(st.text() | st.binary().map(lambda data: data.hex()))
def test_damaged_columns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"columns|ASCII"):
        unpack(text, 2, 3)


def test_columns_that_are_not_finite_are_refused() -> None:
    from array import array

    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not finite"):
            unpack(pack([array("d", [number])]), 1, 1)
