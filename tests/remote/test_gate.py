"""The gate between frames and the app: what does not pass becomes an unreadable row; text cannot steer a terminal."""

from __future__ import annotations

import math
from typing import Any

import pytest

from remote.events import BoxGreeted, GpuSampled, Link, LinkChanged, RunsReported, SessionsReported, TopicFailed
from remote.gate import KnownRows, clean, clean_event, frame, log_row, log_text, read_greeting, reply, topic_event
from remote.protocol import ProtocolError, RemoteError
from remote.protocol.frames import UNKNOWN, EngineVersion
from tests.support.any_json import nested


def test_a_hello_becomes_a_greeting() -> None:
    engine = {"version": "0.2.0", "format": 2}
    assert read_greeting({"agent": "x", "host": {}, "engine": engine}) == BoxGreeted("x", {}, EngineVersion("0.2.0", 2))
    assert read_greeting({"host": {"name": "h"}}) == BoxGreeted("", {"name": "h"}, UNKNOWN)


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"host": []},
        {"host": {}, "engine": "0.2.0"},
        {"host": {}, "engine": {"version": 2}},
        {"host": {}, "engine": {"version": "0.2.0", "format": "2"}},
    ],
)
def test_a_malformed_hello_is_refused(hello: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        read_greeting(hello)


def test_facts_that_do_not_pass_are_left_out() -> None:
    host = {"name": "h", "time": 10**400, "cpu_count": "2", "gpus": 1, "root": "/a\x1b]0;x\x07b", "other": 1}
    assert read_greeting({"host": host}).host == {"name": "h", "gpus": 1, "root": "/ab"}


def test_topic_values_become_events() -> None:
    row = {"run": "a", "state": "running"}
    assert topic_event("runs", {"value": {"runs": [row]}}) == RunsReported([row])
    assert topic_event("sessions", {"value": {"sessions": []}}) == SessionsReported([])
    assert topic_event("gpu", {"value": {"gpus": [], "note": "none"}}) == GpuSampled([], "none")


@pytest.mark.parametrize("value", [None, {}, {"runs": None}, {"runs": {}}, []])
def test_a_malformed_topic_fails(value: Any) -> None:
    event = topic_event("runs", {"value": value})
    assert event == TopicFailed("runs", "the box sent a malformed update of 'runs'")


def test_a_topic_fails_with_the_reason_of_the_box() -> None:
    error = {"code": "io", "message": "disk \x1b[31mgone\x1b[0m", "hint": ""}
    assert topic_event("gpu", {"error": error}) == TopicFailed("gpu", "disk gone")


GOOD = {"run": "good", "state": "running", "step": 3, "reward": "NaN", "error": None}
LAST = {**GOOD, "run": "last"}


@pytest.mark.parametrize(
    ("bad", "name", "reason"),
    [
        ("x", "row 2", "must be an object; got 'x'"),
        ({"run": "b"}, "b", "'state' is missing"),
        ({"state": "running"}, "row 2", "'run' is missing"),
        (
            {"run": "b", "state": "running", "step": "Infinity"},
            "b",
            "step: must be a number from 0 to 10^15; got 'Infinity'",
        ),
        ({"run": "b", "state": "running", "step": 10**400}, "b", "got an integer of more than 64 bits"),
        (
            {"run": "b", "state": "running", "reward": math.nan},
            "b",
            "reward: must be a finite number or NaN or Infinity",
        ),
        ({"run": "b", "state": "running", "error": [1]}, "b", "error: must be"),
        ({"run": "b", "state": "running", "error": {"console_tail": [1]}}, "b", "error: must be"),
        ({"run": "b" * 300, "state": "running"}, "b" * 40 + "…", "run: must be 1 to 255 printable characters"),
        ({"run": "b\x1b]0;x\x07", "state": "running"}, "b·]0;x·", "run: must be 1 to 255 printable characters"),
        ({"run": "b", "state": "running", "logged_at": "yesterday"}, "b", "logged_at: must be a time such as"),
    ],
)
def test_a_bad_run_is_unreadable_and_the_others_stay(bad: Any, name: str, reason: str) -> None:
    event = topic_event("runs", {"value": {"runs": [GOOD, bad, LAST]}})
    assert isinstance(event, RunsReported)
    first, row, last = event.runs
    assert (first, last) == (GOOD, LAST)
    assert (row["run"], row["state"], row["error"]["code"]) == (name, "unreadable", "unreadable")
    assert reason in row["error"]["summary"]


def test_a_name_stands_for_one_run() -> None:
    dotted = {**GOOD, "run": "b·c"}
    event = topic_event("runs", {"value": {"runs": [GOOD, GOOD, GOOD, {**GOOD, "run": "b\x1bc"}, dotted, LAST]}})
    assert isinstance(event, RunsReported)
    names = [row["run"] for row in event.runs]
    assert names == ["good", "good (row 2)", "good (row 3)", "b·c", "b·c (row 5)", "last"]
    assert [row["state"] for row in event.runs] == ["running", *["unreadable"] * 4, "running"]
    assert event.runs[1]["error"]["summary"] == "another row has this name"


def test_rows_that_are_sent_again_are_those_admitted_before() -> None:
    known, odd = KnownRows(), {**GOOD, "run": "odd", "step": "x"}

    def admitted(*rows: dict[str, Any]) -> list[dict[str, Any]]:
        event = topic_event("runs", {"value": {"runs": [dict(row) for row in rows]}}, known)
        assert isinstance(event, RunsReported)
        return event.runs

    first = admitted(GOOD, odd, LAST)
    second = admitted(LAST, {**GOOD, "step": 4}, odd, {**LAST, "run": ""}, LAST)
    assert second[0] is first[2]
    assert second[1] == {**GOOD, "step": 4}
    assert second[2] == first[1]
    assert [row["run"] for row in second[3:]] == ["row 4", "last (row 5)"]
    assert admitted(LAST, LAST)[0] is first[2]
    assert admitted({**LAST, "state": 1})[0]["state"] == "unreadable"


def test_lists_end_after_ten_thousand_rows() -> None:
    rows = [{"run": f"r{i}", "state": "running"} for i in range(10_005)]
    event = topic_event("runs", {"value": {"runs": rows}})
    assert isinstance(event, RunsReported)
    assert event.runs[:-1] == rows[:10_000]
    assert event.runs[-1]["error"]["summary"] == "5 more are not shown"


SHOWN: dict[str, Any] = {
    "run": "a", "layout": "run", "path": "p", "summary": {}, "status": {}, "launch": {}, "config_text": "a\r\nb\x07",
    "checkpoints": [], "evaluations": [], "events": [], "superseded": {},
}  # fmt: skip


def test_a_reply_keeps_its_good_rows() -> None:
    result = {
        **SHOWN,
        "checkpoints": [{"step": 1, "problem": ""}, {"step": "Infinity"}],
        "evaluations": [{"name": "e", "metrics": [{"step": "1"}]}, {"name": "f", "metrics": 5}],
        "status": nested(900),
        "launch": {"a": {"b": nested(900)}, "c": 1},
        "events": [{"event": "resumed", "step": 1}, 7],
    }
    found = reply("show_run", {"ok": True, "result": result})
    assert found["config_text"] == "a\nb·"
    assert [row["step"] for row in found["checkpoints"]] == [1, None]
    assert "unreadable: step" in found["checkpoints"][1]["problem"]
    assert found["evaluations"][0] == {"name": "e", "metrics": [{"step": "1"}]}
    assert "metrics" in found["evaluations"][1]["unreadable"]
    assert found["status"] == {"unreadable": "must be an object; got a list"}
    assert found["launch"] == {"unreadable": "nested more than 32 deep"}
    assert found["events"][1]["event"] == "unreadable"


@pytest.mark.parametrize("result", [None, 5, {}, {**SHOWN, "config_text": {}}, {**SHOWN, "checkpoints": {}}])
def test_a_malformed_reply_is_refused(result: Any) -> None:
    with pytest.raises(RemoteError, match="malformed ShowRunReply") as caught:
        reply("show_run", {"ok": True, "result": result})
    assert caught.value.code == "bad_reply"


@pytest.mark.parametrize("error", [None, "gone \x9b31m", 5, [], {"message": 5}, {"code": [], "hint": {}}])
def test_any_error_becomes_a_refusal(error: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        reply("doctor", {"ok": False, "error": error})
    expected = "gone ·31m" if isinstance(error, str) else "no reason given"
    assert (caught.value.message, caught.value.hint) == (expected, "")


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "pong"},
        {"type": "pong", "n": "x"},
        {"type": "pong", "n": math.nan},
        {"type": "response", "id": []},
        {"type": "update", "id": 10**400},
        {"type": "data", "id": 1, "offset": -1, "text": ""},
        {"type": "data", "id": 1, "offset": 0, "text": 5},
        {"type": "data", "id": 1, "offset": 0, "text": "", "head": "x"},
    ],
)
def test_a_frame_with_a_bad_number_is_a_protocol_error(bad: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        frame(bad)


PLANTED = (
    "\x1b]52;c;aGk=\x07\x1b]0;t\x1b\\\x1bPq#0\x1b\\\x9b31m\x9d52;c;x\x9c\x07"
    "\u202eevil\u2066\u200f\u061c\x7f\u2028\udc1b"
)


def test_clean_text_cannot_steer_a_terminal() -> None:
    assert clean(f"a{PLANTED}b") == "a·31m·52;c;x···evil······b"
    assert clean("a\r\nb\tc\rd", keep="\n\t") == "a\nb\tc·d"
    assert clean("a\nb\tc", keep="") == "a·b·c"
    assert clean("ünïcödé 👩‍🔬 ✔ 汉字") == "ünïcödé 👩‍🔬 ✔ 汉字"


def test_cleaning_leaves_no_sequence_whatever_was_nested() -> None:
    assert "\x1b" not in clean("\x1b\x1b[0m[31m\x1b\x1b]0;\x07]52;c;x\x07")


def test_event_texts_are_clean() -> None:
    event = clean_event(LinkChanged(Link.LOST, f"reset {PLANTED}", retry_in_s=1.0))
    assert event.detail.startswith("reset ·31m")
    assert event.state is Link.LOST
    assert clean_event(LinkChanged(Link.CONNECTED)) == LinkChanged(Link.CONNECTED)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b'{"loss": NaN, "a": 1e999, "b": -1e999}', {"loss": "NaN", "a": "Infinity", "b": "-Infinity"}),
        (b'{"step": ' + b"9" * 400 + b"}", {"step": "Infinity"}),
        (b'{"step": ' + b"9" * 5_000 + b"}", None),
        (b"[" * 20_000, None),
        (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", None),
        (b'{"a": "\\u001b]0;x\\u0007y\\u009b"}', {"a": "y·"}),
        (b"[1]", None),
        (b"\xff\xfe", None),
    ],
)
def test_a_log_row_is_bounded_and_clean(line: bytes, row: Any) -> None:
    assert log_row(line) == row


def test_a_console_line_is_its_last_state() -> None:
    assert log_text(b"10%\r20%\x1b[31m\tred\x1b[0m\r") == "20% red"
    assert log_text(b"\x9b\xc2\x9b") == "�·"
