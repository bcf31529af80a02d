"""Direct transfers: the same bytes as through the page cache, whatever the size, the disk and the order of events."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.backup import direct
from grpo_train.backup.direct import BLOCK, DirectFile, read_from_disk
from tests.support.mounts import small_disk
from tests.support.stores import content, on_a_disk

BUFFER, LEAST = 4 * BLOCK, 16 * BLOCK
"""Smaller than the real ones, which :func:`test_large_files_pass_the_page_cache` uses."""
ACTS = ("rewind", "write", "write as it is")
SIZES = (0, 1, LEAST - 1, LEAST, LEAST + 1, LEAST + BLOCK, LEAST + BUFFER - 1, LEAST + BUFFER + BLOCK + 1)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory on a disk, which only /dev/shm is not."""
    with on_a_disk(tmp_path) as folder:
        yield folder


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "BUFFER", BUFFER)
    monkeypatch.setattr(direct, "LEAST", LEAST)


def open_new(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def read(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return b"".join(bytes(block) for block in read_from_disk(descriptor))
    finally:
        os.close(descriptor)


def aligned(data: bytes) -> memoryview:
    """The same bytes where a direct transfer can take them from."""
    memory = mmap.mmap(-1, max(1, len(data)))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


def write(file: Path, data: bytes | memoryview, step: int, expected: int | None = None) -> None:
    with DirectFile(open_new(file), len(data) if expected is None else expected) as output:
        for start in range(0, len(data), step):
            output.write(data[start : start + step])
        assert output.tell() == len(data)
        output.flush()
        assert output.tell() == len(data)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [BLOCK, BLOCK + 7, LEAST])
def test_the_same_bytes(tmp_path: Path, size: int, step: int) -> None:
    data = content(size)
    for name, given_as in (("copied", data), ("as it is", aligned(data))):
        write(tmp_path / name, given_as, step)
        assert (tmp_path / name).read_bytes() == data
        assert read(tmp_path / name) == data


@pytest.mark.parametrize("expected", [0, LEAST, 10 * LEAST])
def test_another_size_than_expected(tmp_path: Path, expected: int) -> None:
    """What a store sends may be shorter or longer; who writes checks it afterwards."""
    for number, size in enumerate((3, LEAST + 5)):
        write(tmp_path / str(number), content(size), BLOCK, expected)
        assert (tmp_path / str(number)).read_bytes() == content(size)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 3 * BLOCK), st.floats(0, 1)), max_size=12),
    st.sampled_from([0, 1]),
)
def test_any_order_of_writes_and_rewinds(tmp_path: Path, steps: list[tuple[str, int, float]], least: int) -> None:
    file = tmp_path / "file"
    file.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "LEAST", least)
        patch.setattr(direct, "BUFFER", 2 * BLOCK)
        expected = b""
        with DirectFile(open_new(file), 0) as output:
            for act, size, share in steps:
                if act == "rewind":
                    expected = expected[: int(share * len(expected))]
                    output.rewind(len(expected))
                else:
                    output.write(aligned(content(size)) if act == "write as it is" else content(size))
                    expected += content(size)
                assert output.tell() == len(expected)
            output.flush()
    assert file.read_bytes() == expected
    assert read(file) == expected


def test_large_files_pass_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk can: neither writing nor reading leaves pages in memory."""
    if not os.major(tmp_path.stat().st_dev):
        return  # in memory or on a network
    monkeypatch.undo()
    size = direct.LEAST + 2 * direct.BUFFER
    write(tmp_path / "file", content(size), 1 << 20)
    write(tmp_path / "as it is", aligned(content(size)), 1 << 20)
    assert read(tmp_path / "file") == read(tmp_path / "as it is") == content(size)
    assert _pages_in_memory(tmp_path / "as it is") == 0
    assert _pages_in_memory(tmp_path / "file") == 0
    (tmp_path / "file").read_bytes()
    assert _pages_in_memory(tmp_path / "file") > 0


def _pages_in_memory(file: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    pages = -(-file.stat().st_size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        anchor = ctypes.c_char.from_buffer(mapped)
        status = libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(len(mapped)), found)
        del anchor
    assert status == 0, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in found)


def test_a_file_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with small_disk(folder, 64 << 20):
        write(folder / "file", content(LEAST + 5), BLOCK)
        assert read(folder / "file") == content(LEAST + 5)


def refuse_direct(real: Callable[..., Any], after: int) -> Callable[..., Any]:
    """A disk with larger blocks: from a number of calls on, a direct transfer is refused, as Linux does it."""
    calls = 0

    def call(descriptor: int, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, *arguments)

    return call


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_with_larger_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    data = content(LEAST + BUFFER + 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse_direct(os.write, after))
        write(tmp_path / "file", data, BLOCK)
    with monkeypatch.context() as patch:
        patch.setattr(os, "readv", refuse_direct(os.readv, after))
        assert read(tmp_path / "file") == data


@pytest.mark.parametrize("most", [BLOCK, BLOCK + 512, 10_000])
def test_a_disk_that_takes_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A write may end early, at any byte: the rest follows, unaligned where it must."""
    real, first = os.write, True

    def less(descriptor: int, data: memoryview) -> int:
        nonlocal first
        count, first = (most if first else len(data)), False
        if count % BLOCK and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            count = real(descriptor, data[:count])
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
            return count
        return real(descriptor, data[:count])

    data = content(LEAST + BUFFER + 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", less)
        write(tmp_path / "file", data, BLOCK)
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_other_errors_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    write(tmp_path / "there", content(LEAST), BLOCK)
    for name in ("write", "readv"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        write(tmp_path / "file", content(LEAST), BLOCK)
    with pytest.raises(OSError, match=os.strerror(code)):
        read(tmp_path / "there")
