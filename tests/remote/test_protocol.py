"""Frames survive any split of the stream; a cursor fits only its file."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote.agent.follow import read_on, sha256
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

FEW = settings(max_examples=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
frames = st.dictionaries(st.text(), values, max_size=4).map(lambda fields: {**fields, "type": "t"})


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    positions = sorted({0, len(stream), *(c % (len(stream) + 1) for c in cuts)})
    return [stream[a:b] for a, b in pairwise(positions)]


@given(st.lists(frames, max_size=8), st.lists(st.integers(min_value=0), max_size=20))
@FEW
def test_any_split_gives_the_same_frames(sent: list[dict[str, Any]], cuts: list[int]) -> None:
    decoder, got = Decoder(), []
    for piece in split(b"".join(line for frame in sent for line in encode_parts(frame)), cuts):
        got += decoder.feed(piece)
    assert got == sent


@given(st.integers(min_value=0, max_value=200_000), st.sampled_from(['"', "\\", "\0", "a", "é", "😀", "\ud800"]))
@settings(deadline=None, max_examples=40)
def test_long_frames_are_sent_in_parts(length: int, character: str) -> None:
    frame = {"type": "response", "result": {"text": character * length}}
    lines = encode_parts(frame)
    assert all(len(line) <= MAX_FRAME and line.endswith(b"\n") for line in lines)
    assert Decoder().feed(b"".join(lines)) == [frame]


@given(st.binary(max_size=MAX_DATA) | st.sampled_from([b"\0" * MAX_DATA, b"\xff" * MAX_DATA, b'"' * MAX_DATA]))
@settings(deadline=None)
def test_any_data_fits_in_one_frame(data: bytes) -> None:
    line = encode_data(3, 7, data, (4096, "0" * 64))
    assert len(line) <= MAX_FRAME
    (frame,) = Decoder().feed(line)
    assert data_of(frame) == data


@given(st.binary(max_size=400))
def test_garbage_raises_only_protocol_errors(data: bytes) -> None:
    try:
        Decoder().feed(data + b"\n")
    except ProtocolError:
        pass


@pytest.mark.parametrize("line", [b"[1]\n", b"3\n", b'{"a": 1}\n', b'{"type": 3}\n', b"\n", b"[" * 60_000 + b"\n"])
def test_other_json_is_not_a_frame(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(line)


def test_overlong_lines_are_refused() -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(b"x" * MAX_FRAME)
    with pytest.raises(ProtocolError):
        Decoder().feed(json.dumps({"type": "t", "x": "y" * MAX_FRAME}).encode() + b"\n")
    with pytest.raises(ProtocolError):
        encode({"type": "t", "x": "y" * MAX_FRAME})


@given(st.binary(min_size=1, max_size=3 * HEAD_BYTES), st.integers(min_value=0), st.binary(max_size=100))
@FEW
def test_a_cursor_fits_only_its_file(tmp_path: Path, content: bytes, offset: int, more: bytes) -> None:
    offset %= len(content) + 1
    head = content[: min(offset, HEAD_BYTES)]
    tail = content[:offset][-HEAD_BYTES:]
    cursor = Cursor("log", offset, len(head), sha256(head), sha256(tail), 1, 2)
    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor
    file = tmp_path / "log"

    def fits(data: bytes) -> bool:
        file.write_bytes(data)
        with file.open("rb") as stream:
            return read_on(stream.fileno(), cursor, 0) is not None

    assert fits(content + more)
    if offset:
        assert not fits(content[: offset - 1])
        assert not fits(bytes([content[0] ^ 1]) + content[1:])
        assert not fits(content[: offset - 1] + bytes([content[offset - 1] ^ 1]) + content[offset:])
