from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.box.log import MAX_LINE, LineBuffer, LineSplitter


def chunks(data: bytes, ends: list[int]) -> list[tuple[int, bytes]]:
    """Chunks of ``data`` that end at ``ends``, each with its offset."""
    edges = sorted({min(end, len(data)) for end in ends} | {0, len(data)})
    return [(start, data[start:end]) for start, end in pairwise(edges)]


@given(st.binary(max_size=400).map(lambda data: data.replace(b"\r", b"\n")), st.lists(st.integers(0, 400)))
def test_lines_do_not_depend_on_chunks(data: bytes, ends: list[int]) -> None:
    splitter, found = LineSplitter(), []
    for offset, piece in chunks(data, ends):
        found += splitter.feed(offset, piece)
    expected, offset = [], 0
    for line in data.split(b"\n")[:-1]:
        expected.append((offset, line))
        offset += len(line) + 1
    assert found == expected


def test_tail_keeps_file_offsets() -> None:
    assert LineSplitter().feed(1000, b"one\ntwo\nthr") == [(1000, b"one"), (1004, b"two")]


def test_missing_bytes_drop_the_pending_line() -> None:
    splitter = LineSplitter()
    splitter.feed(0, b"whole\nhalf")
    assert splitter.feed(100, b"rest of another\nnext\n") == [(116, b"next")]


def test_endless_line_is_dropped() -> None:
    splitter = LineSplitter()
    offset = 0
    for _ in range(5):
        assert splitter.feed(offset, b"x" * (MAX_LINE // 2)) == []
        offset += MAX_LINE // 2
    assert len(splitter._rest) <= MAX_LINE
    assert splitter.feed(offset, b"y\nnext\n") == [(offset + 2, b"next")]


def test_index_is_stable_when_old_items_go() -> None:
    buffer: LineBuffer[int] = LineBuffer(3)
    for item in range(5):
        buffer.append(item)
    assert (buffer.first, buffer.end) == (2, 5)
    assert [buffer.get(number) for number in range(6)] == [None, None, 2, 3, 4, None]
