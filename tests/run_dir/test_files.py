"""Durable files: strict JSON, whole lines, one rename."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.run_dir.files import (
    JsonlWriter,
    atomic_symlink,
    atomic_write,
    discarding,
    last_jsonl,
    number_in,
    parse_time,
    read_json,
    read_jsonl,
    to_float,
    to_json,
    utc_now,
)
from grpo_train.run_dir.safe_json import noting_left_out

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not strict JSON")


@given(VALUES)
def test_to_json_is_one_line_of_strict_json(value: object) -> None:
    line = to_json(value)
    assert "\n" not in line
    json.loads(line, parse_constant=refuse)


@given(st.floats())
def test_floats_round_trip(value: float) -> None:
    read = to_float(json.loads(to_json({"x": value}))["x"])
    assert read is not None
    assert math.isnan(read) if math.isnan(value) else read == value


@pytest.mark.parametrize("value", [10**400, True, "1.5", None, [1]], ids=repr)
def test_what_is_not_a_number_of_a_log(value: object) -> None:
    assert to_float(value) is None


@pytest.mark.parametrize(("text", "number"), [("1.5", 1.5), (2, 2.0), ("", None), (None, None), (10**400, None)])
def test_numbers_in_texts(text: object, number: float | None) -> None:
    assert number_in(text) == number


@pytest.mark.parametrize("kind", ["a file", "a directory", "nothing"])
def test_what_is_not_finished_is_discarded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "new"

    @discarding(path)
    def write() -> None:
        if kind == "a file":
            path.touch()
        elif kind == "a directory":
            (path / "inside").mkdir(parents=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


def test_special_floats_become_strings() -> None:
    assert to_json({"a": math.nan, "b": [math.inf, -math.inf]}) == '{"a": "NaN", "b": ["Infinity", "-Infinity"]}'
    assert to_float("12") is None
    assert to_float(True) is None
    assert to_float(None) is None


@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=6), st.data())
def test_torn_file_keeps_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, object]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "log.jsonl"
    lines = [to_json(value) + "\n" for value in values]
    whole = "".join(lines).encode()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    ends = [len("".join(lines[: k + 1]).encode()) for k in range(len(lines))]
    kept = [json.loads(line) for line, end in zip(lines, ends, strict=True) if end <= cut]
    assert [row for _, row in read_jsonl(path)] == kept
    writer = JsonlWriter(path)
    writer.write({"time": "now", "step": 9})
    writer.close()
    after = [row for _, row in read_jsonl(path)]
    assert after[: len(kept)] == kept
    assert after[-1] == {"time": "now", "step": 9} == last_jsonl(path)
    assert len(after) - len(kept) in (1, 2)  # a line that lacked only its newline counts now


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=4))
def test_superseded_ranges_skip_their_lines(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("ranges") / "log.jsonl"
    path.write_text("".join(to_json({"step": step}) + "\n" for step in range(12)))
    ranges = [(min(pair), max(pair)) for pair in pairs]
    seen = {start for start, _ in read_jsonl(path, ranges)}
    for start, _ in read_jsonl(path):
        assert (start in seen) == (not any(low <= start < high for low, high in ranges))


def test_lines_without_an_object_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff\xfe\x00\n[1]\n17\n{"step": \n{"step": 2}\n')
    assert [row["step"] for _, row in read_jsonl(path)] == [1, 2]
    assert last_jsonl(path) == {"step": 2}
    assert list(read_jsonl(tmp_path / "none.jsonl")) == []
    assert last_jsonl(tmp_path / "none.jsonl") is None


def test_time_is_added_after_step(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "log.jsonl")
    writer.write({"loss": 1.0, "step": 3})
    writer.close()
    (row,) = (row for _, row in read_jsonl(tmp_path / "log.jsonl"))
    assert list(row) == ["step", "time", "loss"]
    assert abs(parse_time(row["time"]) - parse_time(utc_now())) < 5


def test_atomic_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    atomic_write(path, "old")
    atomic_write(path, "new", mode=0o600)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["status.json"]


def test_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    atomic_write(path, "old")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left") as caught:
        atomic_write(path, "new")
    assert caught.value.filename == str(path), "the OS names no file for a full disk"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["status.json"]


def test_atomic_symlink_is_relative_and_moves(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step_{step}").mkdir()
        atomic_symlink(tmp_path / "step_latest", f"step_{step}")
    assert os.readlink(tmp_path / "step_latest") == "step_2"
    assert sorted(os.listdir(tmp_path)) == ["step_1", "step_2", "step_latest"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xff", b"null"])
def test_damaged_json_reads_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert read_json(path) is None
    assert read_json(tmp_path / "absent.json") is None


@pytest.mark.parametrize(
    ("read", "content", "reason"),
    [
        (read_json, b"[1]", "an array instead of an object"),
        (read_jsonl, b'{"step": 1}\n17\n\xff\n', "the line at byte 12: a number instead of an object"),
        (last_jsonl, b"\xff\n", "none of its last lines is a JSON object"),
        (read_jsonl, b'{"step": 1}\n{"step": 2, "rew\n{"step"', ""),  # what crashes cut off was never a row
        (last_jsonl, b"\xff\n{}\n", ""),
    ],
)
def test_what_is_left_out_is_noted(tmp_path: Path, read: Callable[[Path], object], content: bytes, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with noting_left_out() as files:
        found = read(path)
        if isinstance(found, Iterator):
            list(found)
    assert files == ({str(path): reason} if reason else {})


def test_configs_may_hold_infinities(tmp_path: Path) -> None:
    path = tmp_path / "training_info.json"
    path.write_text(json.dumps({"config": {"max_grad_norm": math.inf}}))
    assert read_json(path) == {"config": {"max_grad_norm": math.inf}}
    assert read_json(path, finite=True) is None
