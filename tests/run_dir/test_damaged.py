"""Runs with files that anyone may have written: a row in any case, a reason where a file is damaged."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.run_dir import RunDir, create_run, list_runs, open_run
from grpo_train.run_dir.files import last_jsonl, read_jsonl
from grpo_train.run_dir.safe_json import MAX_DEPTH, MAX_LINE_BYTES, Unreadable, parse_object, read_object
from tests.support.damage import CONTENTS, FILES, NOT_FILES, arbitrary_json
from tests.support.patience import PATIENCE


def row_of(run: RunDir) -> dict[str, Any]:
    row = run.summary()
    json.dumps(row, allow_nan=False)
    return row


@pytest.mark.parametrize("file", ["launch.json", "status.json"])
@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: repr(content[:20]))
def test_damaged_file_makes_its_run_unreadable(run: RunDir, file: str, content: bytes) -> None:
    (run.path / file).write_bytes(content)
    row = row_of(run)
    assert (row["run"], row["state"], row["step"]) == ("one", "unreadable", 0)
    assert row["error"]["code"] == "unreadable"
    assert row["error"]["summary"].startswith(file)


def test_a_link_to_itself_makes_its_run_unreadable(run: RunDir) -> None:
    run.launch_file.unlink()
    run.launch_file.symlink_to(run.launch_file)
    error = row_of(run)["error"]
    assert error["summary"].startswith(f"{run.launch_file}: Too many levels of symbolic links")


@pytest.mark.parametrize("file", ["train_log.jsonl", "events.jsonl"])
@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"step": 1e999}', b'{"x": ' + b"9" * 400 + b"}", b'{"x": NaN}'])
def test_log_line_over_the_limits_makes_its_run_unreadable(run: RunDir, file: str, line: bytes) -> None:
    with (run.logs / file).open("ab") as log:
        log.write(line + b"\n")
    row = row_of(run)
    assert row["state"] == "unreadable"
    assert row["error"]["summary"].startswith(file)
    run.log_event("note")  # the engine continues
    run.request_stop(by="test")
    assert run.stop_requested()


def test_a_log_without_any_row_makes_its_run_unreadable(run: RunDir) -> None:
    log = run.logs / "train_log.jsonl"
    log.write_bytes(b'{"step": 1, "rew')  # what a crash leaves of the first line
    assert row_of(run)["state"] != "unreadable"
    log.write_bytes(b"\x81\n\xff\xfe\n\x00")
    assert row_of(run)["error"]["summary"] == "train_log.jsonl: none of its last lines is a JSON object"


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("status.json", {"state": ["running"]}, "status.json: 'state' must be a text of at most 255 characters"),
        ("status.json", {"state": "finished", "total_steps": "x"}, "'total_steps' must be an integer of 64 bits"),
        (
            "status.json",
            {"state": "crashed", "error": "boom"},
            "'error' must be an object with a 'summary', not 'boom'",
        ),
        ("launch.json", {"time": 3}, "launch.json: 'time' must be a text"),
        ("logs/train_log.jsonl", {"step": "Infinity"}, "train_log.jsonl: 'step' must be an integer"),
        ("logs/train_log.jsonl", {"step": 1, "reward": [1]}, "train_log.jsonl: 'reward' must be a number"),
        ("logs/events.jsonl", {"superseded": [1]}, "events.jsonl: malformed 'superseded'"),
    ],
)
def test_field_of_another_type_is_named(run: RunDir, file: str, content: dict[str, Any], reason: str) -> None:
    (run.path / file).write_text(json.dumps(content) + "\n")
    assert reason in row_of(run)["error"]["summary"]


def test_live_status_with_any_pid_is_lost(run: RunDir) -> None:
    for pid in ("x", -1, 10**18, None, [], 1.5):
        mine = {"host": os.uname().nodename, "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
        run.status_file.write_text(json.dumps({"state": "running", "pid": pid, "pid_start": pid, **mine}))
        assert row_of(run)["state"] == "lost"


@pytest.mark.parametrize("make", NOT_FILES.values(), ids=NOT_FILES)
@pytest.mark.parametrize("file", FILES)
def test_what_is_not_a_file_is_not_opened(run: RunDir, file: str, make: Any) -> None:
    path = run.path / file
    path.unlink(missing_ok=True)
    make(path)
    began = time.monotonic()
    row = row_of(run)
    assert row["state"] == "unreadable"
    assert row["error"]["summary"].endswith("not a regular file")
    assert [listed.name for listed in list_runs(run.root)] == ["one"]
    assert time.monotonic() - began < PATIENCE * 5


def test_huge_status_is_not_read(run: RunDir) -> None:
    with run.status_file.open("wb") as file:
        file.truncate(1 << 30)
    row = row_of(run)
    assert row["error"]["summary"] == "status.json: 1073741824 bytes (the limit is 4194304)"


def test_torn_lines_are_still_skipped(run: RunDir) -> None:
    (run.logs / "train_log.jsonl").write_bytes(b'{"step": 3}\n{"step": 4, "rew\n\xff\xfe\n[1]\n{"st')
    row = row_of(run)
    assert (row["state"], row["step"]) == ("starting", 3)


def test_overlong_line_is_skipped_with_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(b'{"step": 1}\n{"x": "')
        file.write(b"x" * (2 * MAX_LINE_BYTES))
        file.write(b'"}\n{"step": 2}\n')
    assert [row for _, row in read_jsonl(path)] == [{"step": 1}, {"step": 2}]
    assert last_jsonl(path) == {"step": 2}
    with pytest.raises(Unreadable, match=r"log.jsonl, line at byte 12: longer than"):
        list(read_jsonl(path, strict=True))


def test_depth_is_counted_in_values_not_in_text() -> None:
    deepest = b'{"x": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert parse_object(deepest)
    assert parse_object(b'{"x": "' + b"[" * 1000 + b'"}') == {"x": "[" * 1000}
    with pytest.raises(Unreadable, match="nested more than 64 levels deep"):
        parse_object(deepest.replace(b"[]", b"[[]]"))


@pytest.mark.parametrize("name", [b"\x1b]52;c;eA==\x07", b"caf\xe9", "\u202egnp".encode(), b"two\nlines"])
def test_names_that_cannot_be_printed_are_escaped(run: RunDir, name: bytes) -> None:
    path = run.path.with_name(os.fsdecode(name))
    run.path.rename(path)
    row = row_of(RunDir(path))
    assert row["state"] == "unreadable"
    assert row["run"].isprintable()
    assert row["run"].encode()
    assert open_run(path.parent.parent, path.name).path == path


@given(status=arbitrary_json(), launch=arbitrary_json(), step=arbitrary_json(), event=arbitrary_json())
def test_any_json_in_every_file_gives_a_row(
    tmp_path_factory: pytest.TempPathFactory, status: bytes, launch: bytes, step: bytes, event: bytes
) -> None:
    run = create_run(tmp_path_factory.mktemp("any"), {}, "one")
    run.status_file.write_bytes(status)
    run.launch_file.write_bytes(launch)
    (run.logs / "train_log.jsonl").write_bytes(step + b"\n")
    run.events_file.write_bytes(event + b"\n")
    row = row_of(run)
    assert isinstance(row["step"], int)
    assert isinstance(row["state"], str)
    run.observed_state()
    run.log_event("note")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_reason(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "x.json"
    path.write_bytes(content)
    with suppress(Unreadable):
        assert isinstance(read_object(path), dict)
