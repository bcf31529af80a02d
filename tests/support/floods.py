"""Floods: scripts of :mod:`tests.support.hostile_box` that send without end, and what the client must make of each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from remote.protocol import MAX_DATA, encode_data
from remote.protocol.frames import MAX_JOINED, PART_LENGTH
from tests.support.hostile_box import HostileBox, Script, line

RUN = {"run": "r1", "state": "running", "layout": "run", "step": 1, "total_steps": 9}
GOOD = {"type": "update", "id": 1, "value": {"runs": [RUN]}}


def connected(box: HostileBox) -> None:
    """An honest beginning: a greeting and one run, whose logs the app follows."""
    box.greet()
    box.topic("gpu")
    box.say(GOOD)


def log_beyond_credit(box: HostileBox) -> None:
    connected(box)
    log = box.log()
    box.flood(lambda count: {"type": "data", "id": log, "offset": 32_768 * count, "text": "x" * 32_768})


def tiny_log_pieces(box: HostileBox) -> None:
    """Within the credit."""
    connected(box)
    log = box.log()
    box.flood(lambda count: {"type": "data", "id": log, "offset": count, "text": "x"})


def log_lines(box: HostileBox, log: str, make: Callable[[int], bytes]) -> None:
    """A log within its credit, without end."""
    connected(box)
    box.fill(box.log(log), make)


def many_steps(box: HostileBox) -> None:
    log_lines(box, "train_log.jsonl", lambda count: line({"step": count, "reward": 0.5, "loss": "NaN"}))


def many_metrics(box: HostileBox) -> None:
    """Rows of 5,000 metrics, each row with other ones."""
    log_lines(
        box,
        "train_log.jsonl",
        lambda count: line({"step": count, **{f"{count % 9}/{key}": key for key in range(5_000)}}),
    )


def long_rows(box: HostileBox) -> None:
    log_lines(
        box, "train_log.jsonl", lambda count: line({"step": count, **{f"text{i}": "€" * 9_000 for i in range(30)}})
    )


def long_completions(box: HostileBox) -> None:
    log_lines(
        box, "rollouts.jsonl", lambda count: line({"step": count, "prompt": "€" * 30_000, "completion": "😀" * 30_000})
    )


def long_console_lines(box: HostileBox) -> None:
    log_lines(box, "console.log", lambda count: ("😀" * 4_100 + "\n").encode())


def endless_console_line(box: HostileBox) -> None:
    log_lines(box, "console.log", lambda count: b"x" * 32_768)


def many_resumes(box: HostileBox) -> None:
    """Each takes lines of the log back; the client has steps that it must look through."""
    connected(box)
    rows = b"".join(line({"step": step, **{f"a/{key}": step for key in range(20)}}) for step in range(500))
    log = box.log("train_log.jsonl")
    for cut in range(0, len(rows), MAX_DATA):
        box.say(encode_data(log, cut, rows[cut : cut + MAX_DATA]))

    def resume(count: int) -> bytes:
        span = [count % 200_000, count % 200_000 + 9]
        return line({"step": 1, "superseded": dict.fromkeys(("train_log.jsonl", f"x{count}"), span)})

    box.fill(box.log("events.jsonl"), resume)


def unknown_log(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "data", "id": 9_999, "offset": 32_768 * count, "text": "x" * 32_768})


def empty_parts(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "part", "text": "", "more": True})


def full_parts(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "part", "text": "x" * PART_LENGTH, "more": True})


def huge_line(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: b"x" * 65_536)


def empty_lines(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: b"\n" * 65_536)


def deep_lines(box: HostileBox) -> None:
    connected(box)
    depth = 400
    box.flood(lambda count: b'{"type":"x","v":' + b"[" * depth + b"]" * depth + b"}\n")


def updates(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "update", "id": 1, "value": {"runs": [{**RUN, "step": count}]}})


def long_updates(box: HostileBox) -> None:
    """Values close to the limit of a frame, all of them kept by a careless reader."""
    connected(box)
    row = {"state": "running", "layout": "run", "error": {"console_tail": ["x" * 300] * 5, "rank": None}}
    value = [{**row, "run": f"r{index}"} for index in range(10_000)]
    text = json.dumps({"type": "update", "id": 1, "value": {"runs": value}})
    whole = in_parts(text)
    box.flood(lambda count: whole, batch=1)


def many_values(box: HostileBox) -> None:
    """The shortest values that take the most memory."""
    connected(box)
    text = '{"type":"update","id":2,"value":{"sessions":[' + '{"a":1},' * (MAX_JOINED // 9) + "{}]}}"
    whole = in_parts(text)
    box.flood(lambda count: whole, batch=1)


def one_long_string(box: HostileBox) -> None:
    connected(box)
    text = '{"type":"update","id":3,"value":{"gpus":[],"note":"\\ud83d\\ude00' + "x" * (MAX_JOINED - 200) + '"}}'
    whole = in_parts(text)
    box.flood(lambda count: whole, batch=1)


def steady_updates(box: HostileBox) -> None:
    """As many as the client puts up with."""
    connected(box)
    for step in range(1_000_000):
        box.say({"type": "update", "id": 1, "value": {"runs": [{**RUN, "step": step}]}})
        time.sleep(1 / 400)


def topic_failures(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "update", "id": 1, "error": {"code": "io", "message": f"{count}"}})


def rotations(box: HostileBox) -> None:
    connected(box)
    log = box.log()
    box.flood(lambda count: {"type": "rotated", "id": log, "cursor": {}})


def rotations_with_data(box: HostileBox) -> None:
    """Large pieces within the credit; each rotation makes the previous one obsolete."""
    connected(box)
    log = box.log()
    box.flood(lambda count: line({"type": "rotated", "id": log}) + line(data(log, "x\n" * 1_000)))


def data(log: int, text: str) -> dict[str, Any]:
    return {"type": "data", "id": log, "offset": 0, "text": text}


def closed_logs(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "closed", "id": count % 50, "error": {"code": "io", "message": "x" * 1_000}})


def responses(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "response", "id": 10_000 + count, "ok": True, "result": {"runs": []}})


def pongs(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "pong", "n": count % 5})


def unknown_frames(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "x"})


def hellos(box: HostileBox) -> None:
    connected(box)
    box.flood(lambda count: {"type": "hello", "protocol": 1, "host": {}, "engine": {}})


def frames_before_hello(box: HostileBox) -> None:
    box.flood(lambda count: {"type": "pong", "n": count})


def standard_error(box: HostileBox) -> None:
    connected(box)
    while True:
        box.write(b"Traceback (most recent call last):\n" * 1_000, descriptor=2)


def standard_error_before_hello(box: HostileBox) -> None:
    while True:
        box.write(b"x" * 65_536, descriptor=2)


def half_a_frame(box: HostileBox) -> None:
    """A stall in the middle of a frame; pings are not answered."""
    box.answers_pings = False
    connected(box)
    box.say(line({"type": "update", "id": 1, "value": {"runs": ["x" * 30_000]}})[:20_000])
    box.stay()


def in_parts(text: str) -> bytes:
    """A frame in parts, whatever its length."""
    pieces = [text[cut : cut + PART_LENGTH] for cut in range(0, len(text), PART_LENGTH)]
    return b"".join(line({"type": "part", "text": p, "more": i + 1 < len(pieces)}) for i, p in enumerate(pieces))


FLOODS: dict[Script, str] = {
    log_beyond_credit: "more than the credit",
    tiny_log_pieces: "floods the link",
    unknown_log: "floods the link",
    empty_parts: "malformed 'part'",
    full_parts: "over the limit of",
    huge_line: "over the limit of",
    empty_lines: "invalid JSON",
    deep_lines: "floods the link",
    updates: "floods the link",
    long_updates: "floods the link",
    many_values: "values",
    one_long_string: "floods the link",
    steady_updates: "this machine",
    topic_failures: "floods the link",
    rotations: "floods the link",
    rotations_with_data: "floods the link",
    closed_logs: "floods the link",
    responses: "floods the link",
    pongs: "floods the link",
    unknown_frames: "floods the link",
    hellos: "floods the link",
    frames_before_hello: "before its hello",
    standard_error: "standard error",
    standard_error_before_hello: "standard error",
    half_a_frame: "no answer",
}
"""Each flood, and a part of the reason that the client gives."""

WITHIN_CREDIT: dict[Script, str] = dict.fromkeys(
    (many_steps, many_metrics, long_rows, long_completions, long_console_lines, endless_console_line, many_resumes),
    "this machine",
)
"""Logs without end, which are no reason to end the connection."""
