"""Curves are those of the raw log, whatever the log, its cuts, the range and the width."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.run_dir.files import parse_time, to_float
from remote.index import answers, log_index, train_log
from remote.protocol import RemoteError
from tests.support.index import METRICS, Box, assert_same, columns_of, logs, make_run, rows_of, spans_of, supersede

LONGEST = 4_096


@pytest.fixture(scope="module", autouse=True)
def _small_pieces() -> None:
    """One block per request, a batch of three rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_index, "USUAL", 700)
        patch.setattr(log_index, "BLOCK", LONGEST + 1)
        patch.setattr(train_log, "BATCH", 3)
        patch.setattr(answers, "BUDGET_S", 0.0)
        yield


@settings(max_examples=60)
@given(st.data())
def test_columns_are_those_of_the_raw_log(data: st.DataObject) -> None:
    text = data.draw(logs())
    spans = spans_of(data.draw, text)
    x = data.draw(st.sampled_from(["step", "tokens", "time"]))
    width = data.draw(st.integers(1, 50))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        directory, box = make_run(root), Box(root, root / "cache")
        supersede(directory, *spans)
        for cut in sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3))):
            (directory / "train_log.jsonl").write_bytes(text[:cut])  # the same file, grown
            box.ask("series", metrics=["reward"])
        (directory / "train_log.jsonl").write_bytes(text)
        found = [row for _, row in rows_of(text, spans, LONGEST)[0]]
        for row in found:
            try:
                row["at"] = parse_time(str(row["time"])) if x == "time" else row["step"]
            except (KeyError, ValueError):
                row["at"] = None
            row["at"] = row.get("num_tokens") if x == "tokens" else row["at"]
        xs = [at for row in found if (at := to_float(row["at"])) is not None and abs(at) <= 1e15]
        low, high = (min(xs), max(xs)) if xs else (0.0, 0.0)
        if xs and data.draw(st.booleans()):
            low, high = sorted(data.draw(st.tuples(*[st.floats(low - 1, high + 1)] * 2)))
        asked = {"metrics": [*METRICS, "absent"], "x": x, "width": width}
        reply = box.whole("series", low=low, high=high, **asked)
        assert (reply["rows"], reply["skipped"]) == (len(found), rows_of(text, spans, LONGEST)[1])
        assert (reply["first"], reply["last"]) == ((min(xs), max(xs)) if xs else (None, None))
        for series in reply["series"]:
            metric = series["metric"]
            assert_same(series["columns"], columns_of(found, metric, low, high, width, "at"))


def test_the_steps_of_other_axes_can_be_asked(tmp_path: Path) -> None:
    """What a comparison is made from: on any axis, each column's step and time."""
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    rows = [
        f'{{"step": {step}, "time": "2026-11-22T08:00:0{step}Z", "num_tokens": {10 * step}}}' for step in range(1, 6)
    ]
    (directory / "train_log.jsonl").write_text("\n".join(rows) + "\n")
    reply = box.whole("series", metrics=[":step", ":time"], x="tokens", width=2)
    step, time_ = (row["columns"] for row in reply["series"])
    assert (list(step.min), list(step.max)) == ([1, 3], [2, 5])
    assert time_.max[1] - time_.min[0] == 4


def test_the_run_time_is_an_axis(tmp_path: Path) -> None:
    """The steps' durations, without what was superseded, NaN, and the time between two stages."""
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    rows = [
        f'{{"step": {step}, "time": "2026-11-22T0{hour}:00:00Z", "time/step": {took}}}\n'
        for step, hour, took in ((1, 1, "2.5"), (2, 1, '"NaN"'), (3, 1, "4"), (3, 5, "8"), (4, 5, "1"))
    ]
    (directory / "train_log.jsonl").write_text("".join(rows))
    before, lost = len("".join(rows[:2])), len(rows[2])
    supersede(directory, (before, before + lost))
    reply = box.whole("series", metrics=[":step"], x="seconds", width=3)
    assert (reply["x"], reply["first"], reply["last"]) == ("seconds", 2.5, 11.5)
    shown = box.whole("show_step", at=10.4, x="seconds")
    assert (shown["step"], shown["x"], shown["previous"], shown["next"]) == (3, 10.5, 2.5, 11.5)
    assert box.whole("show_step", at=3)["seconds"] == 10.5


def test_without_durations_run_time_is_since_the_first_row(tmp_path: Path) -> None:
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    rows = [f'{{"step": {step}, "time": "2026-11-22T08:00:0{step}Z"}}\n' for step in range(1, 6)]
    (directory / "train_log.jsonl").write_text("".join(rows))
    reply = box.whole("series", metrics=[":step"], x="seconds", width=3)
    assert (reply["first"], reply["last"]) == (0, 4)


def test_a_coarse_reply_says_so_and_has_the_last_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_index, "USUAL", 20_000)
    log, box = make_run(tmp_path) / "train_log.jsonl", Box(tmp_path, tmp_path / "cache")
    log.write_text("".join(f'{{"step": {i}, "reward": {i}, "pad": "{"." * 200}"}}\n' for i in range(1, 2_001)))
    first = box.ask("series", metrics=["reward"], width=10)
    assert first["state"] == "coarse"
    assert 0 < first["progress"] < 0.1
    assert (first["first"], first["last"], first["series"][0]["last"]) == (1, 2_000, 2_000)
    assert all(count > 0 for count in first["series"][0]["columns"].count)
    assert first["offset"] == log.stat().st_size
    assert 100 < first["rows"] < 1_000
    assert box.ask("series", metrics=["reward"])["progress"] > first["progress"]
    whole = box.whole("series", metrics=["reward"], width=10)
    assert (whole["progress"], whole["rows"], sum(whole["series"][0]["columns"].count)) == (1, 2_000, 2_000)


def test_a_run_without_a_log_has_an_empty_reply(tmp_path: Path) -> None:
    make_run(tmp_path)
    box = Box(tmp_path, tmp_path / "cache")
    reply = box.ask("series", metrics=["reward"])
    assert (reply["state"], reply["rows"], reply["first"], reply["cursor"].offset) == ("whole", 0, None, 0)
    assert reply["cursor"].path == "training_runs/one/logs/train_log.jsonl"
    assert box.ask("metrics")["metrics"] == []
    with pytest.raises(RemoteError, match="has not logged a step"):
        box.ask("show_step", at=3)


def test_too_many_cells_are_refused(tmp_path: Path) -> None:
    box = Box(tmp_path, tmp_path / "cache")
    for params in (
        {"metrics": ["a"] * 65}, {"metrics": ["a"] * 64, "width": 4_096}, {"metrics": [], "width": 0},
        {"metrics": [1]}, {"metrics": [], "x": "cost"}, {"metrics": [], "low": 2, "high": 1},
    ):  # fmt: skip
        with pytest.raises(RemoteError) as error:
            box.ask("series", **params)
        assert error.value.code == "bad_request"


def test_the_row_nearest_to_a_step_is_shown(tmp_path: Path) -> None:
    log, box = make_run(tmp_path) / "train_log.jsonl", Box(tmp_path, tmp_path / "cache")
    log.write_text("".join(f'{{"step": {i}, "reward": {i}, "health": [{{"code": "x"}}]}}\n' for i in (1, 2, 5, 9)))
    shown = box.ask("show_step", at=6)
    assert (shown["step"], shown["previous"], shown["next"]) == (5, 2, 9)
    assert shown["row"] == {"step": 5, "reward": 5, "health": [{"code": "x"}]}
    assert [box.ask("show_step", at=step)["step"] for step in (-7, 3, 8, 100)] == [1, 2, 9, 9]
    assert box.ask("show_step", at=1)["previous"] is None
    assert box.ask("show_step", at=9)["next"] is None


def test_a_step_has_the_level_before_it(tmp_path: Path) -> None:
    log, box = make_run(tmp_path) / "train_log.jsonl", Box(tmp_path, tmp_path / "cache")
    rows = [{"step": i, "reward": 9.0 if i == 15 else float(i), **({"kl": i} if i % 2 else {})} for i in range(1, 31)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = box.whole("show_step", at=21, metrics=["reward", "kl", "other"])
    assert shown["before"] == {"reward": 15.0, "kl": 15.0}  # of 11–20, where 9 at step 15 is one value of ten
    assert shown["before_step"] == 11
    first = box.ask("show_step", at=1, metrics=["reward"])
    assert "before" not in first
    assert "before_step" not in first


def test_the_largest_drops_of_a_range(tmp_path: Path) -> None:
    log, box = make_run(tmp_path) / "train_log.jsonl", Box(tmp_path, tmp_path / "cache")
    rewards = [2.0] * 30 + [1.5] * 30 + ["NaN"] + [0.0] * 30 + [1.0] * 30
    rows = [{"step": i + 1, "reward": value, "time/step": 2.0} for i, value in enumerate(rewards)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def levels(**params: Any) -> list[tuple[float, ...]]:
        found = box.whole("level_changes", metric="reward", **params)["levels"]
        return [(row["x"], row["step"], row["before"], row["after"]) for row in found]

    assert levels() == [(62, 62, 1.5, 0.0), (31, 31, 2.0, 1.5)]
    assert levels(rises=True) == [(92, 92, 0.0, 1.0)]
    assert levels(high=50) == [(31, 31, 2.0, 1.5)]
    assert levels(x="seconds", low=70) == [(124, 62, 1.5, 0.0)]
    assert box.ask("level_changes", metric="other")["levels"] == []


def test_a_coarse_reply_follows_a_rewritten_log(tmp_path: Path) -> None:
    directory, box = make_run(tmp_path), Box(tmp_path, tmp_path / "cache")
    log, pad = directory / "train_log.jsonl", "." * 200
    log.write_text("".join(f'{{"step": {i}, "reward": {i}, "pad": "{pad}"}}\n' for i in range(1, 2_001)))
    assert box.ask("series", metrics=["reward"])["last"] == 2_000
    supersede(directory, (log.read_text().index('{"step": 1500'), log.stat().st_size))
    assert 1_400 < box.ask("series", metrics=["reward"])["last"] <= 1_499
    log.write_text("".join(f'{{"step": {i}, "reward": {-i}, "pad": "{pad}"}}\n' for i in range(3, 1_001)))
    (directory / "events.jsonl").unlink()
    reply = box.ask("series", metrics=["reward"])
    assert (reply["state"], reply["last"], reply["series"][0]["last"]) == ("coarse", 1_000, -1_000)
