"""Frames and cursors: whatever way bytes are cut, the same frames come out, and a cursor knows its file."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote.protocol import (
    HEAD_BYTES,
    MAX_DATA,
    MAX_FRAME,
    Cursor,
    Decoder,
    ProtocolError,
    data_of,
    encode,
    encode_data,
    encode_parts,
)

SLOW_IS_FINE = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
frames = st.dictionaries(st.text(), values, max_size=4).map(lambda fields: {**fields, "type": "t"})


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(c % (len(stream) + 1) for c in cuts)})
    return [stream[a:b] for a, b in pairwise(places)]


@given(st.lists(frames, max_size=8), st.lists(st.integers(min_value=0), max_size=20))
@SLOW_IS_FINE
def test_any_cut_of_the_stream_gives_the_same_frames(sent: list[dict[str, Any]], cuts: list[int]) -> None:
    decoder, got = Decoder(), []
    for piece in cut(b"".join(line for frame in sent for line in encode_parts(frame)), cuts):
        got += decoder.feed(piece)
    assert got == sent


@given(st.integers(min_value=0, max_value=200_000), st.sampled_from(['"', "\\", "\0", "a", "é", "😀", "\ud800"]))
@settings(deadline=None, max_examples=40)
def test_long_frames_go_in_parts_within_the_limit(length: int, character: str) -> None:
    frame = {"type": "response", "result": {"text": character * length}}
    lines = encode_parts(frame)
    assert all(len(line) <= MAX_FRAME and line.endswith(b"\n") for line in lines)
    assert Decoder().feed(b"".join(lines)) == [frame]


@given(st.binary(max_size=MAX_DATA) | st.sampled_from([b"\0" * MAX_DATA, b"\xff" * MAX_DATA, b'"' * MAX_DATA]))
@settings(deadline=None)
def test_any_bytes_of_a_file_travel_in_one_frame(data: bytes) -> None:
    line = encode_data(3, 7, data, (4096, "0" * 64))
    assert len(line) <= MAX_FRAME
    (frame,) = Decoder().feed(line)
    assert data_of(frame) == data


@given(st.binary(max_size=400))
def test_garbage_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    try:
        Decoder().feed(data + b"\n")
    except ProtocolError:
        pass


@pytest.mark.parametrize("line", [b"[1]\n", b"3\n", b'{"a": 1}\n', b'{"type": 3}\n', b"\n", b"[" * 60_000 + b"\n"])
def test_what_is_no_frame_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(line)


def test_over_long_lines_are_refused_whole_or_not() -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(b"x" * MAX_FRAME)
    with pytest.raises(ProtocolError):
        Decoder().feed(json.dumps({"type": "t", "x": "y" * MAX_FRAME}).encode() + b"\n")
    with pytest.raises(ProtocolError):
        encode({"type": "t", "x": "y" * MAX_FRAME})


@given(st.binary(min_size=1, max_size=3 * HEAD_BYTES), st.integers(min_value=0), st.binary(max_size=100))
@SLOW_IS_FINE
def test_a_cursor_follows_a_file_that_grows_and_no_other(
    tmp_path: Path, content: bytes, offset: int, more: bytes
) -> None:
    offset %= len(content) + 1
    file = tmp_path / "log"
    file.write_bytes(content)
    cursor = Cursor("log").at(file, offset)
    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor
    file.write_bytes(content + more)
    assert cursor.matches(file)
    if offset:
        file.write_bytes(content[: offset - 1])
        assert not cursor.matches(file)
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        assert not cursor.matches(file)
