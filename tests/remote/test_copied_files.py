"""Both ends of a copy without a connection between them: files that fail, a place that is taken, hostile ends."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from remote.agent.files import staging_alone
from remote.protocol import ProtocolError, RemoteError, copies
from remote.protocol.copies import (
    CopyInterrupted,
    CopyStream,
    Item,
    check_path,
    put_items,
    receive_files,
    send_files,
    take_items,
)
from tests.support.clock import LeapingClock


@contextmanager
def _wires() -> Iterator[tuple[CopyStream, CopyStream]]:
    """Two connected ends."""
    first, second = socket.socketpair()
    with first, second:
        yield CopyStream(lambda seconds: first.recv(65_536), first.sendall), CopyStream(_silent, second.sendall)


def _silent(seconds: float) -> bytes | None:
    raise CopyInterrupted("nothing is read")


def test_a_failed_flush_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports it once, to the flush in the middle of a file."""
    flush, flushed = os.fsync, []

    def fsync(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(descriptor)

    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(3 << 20))
    monkeypatch.setattr(copies, "FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(copies.os, "fsync", fsync)
    item = Item("file", source.stat().st_size)
    with _wires() as (near, far):

        def send() -> None:
            with suppress(CopyInterrupted, OSError):  # the receiver is gone
                send_files(far, [(item, source)], {}, lambda item, count: None)

        sending = threading.Thread(target=send)
        sending.start()
        with pytest.raises(OSError, match="Input/output error"):
            receive_files(near, tmp_path / "there", [item], lambda item, count: None)
        sending.join()


def test_another_copy_that_stays_at_work_is_named(tmp_path: Path) -> None:
    clock = LeapingClock()
    folder = tmp_path / ".start.part"
    folder.mkdir()
    with (
        _wires() as (wire, _),
        staging_alone(wire, folder, lambda: None, "copy to start", clock),
        pytest.raises(RemoteError, match="another copy to start is at work") as error,
        staging_alone(wire, folder, lambda: None, "copy to start", clock),
    ):
        raise AssertionError
    assert error.value.code == "busy"


class TestHostileEnds:
    """What the other end sends stays inside the folder, within its size, and is whole or refused."""

    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "../x", "a/../../x", "a//b", "", "a\\b", "C:x", "a\nb", "x" * 2_000]
    )
    def test_paths(self, path: str) -> None:
        with pytest.raises(ProtocolError):
            check_path(path)

    @pytest.mark.parametrize(
        "line",
        [
            {"path": "../x"},
            {"path": "x", "link": "../y"},
            {"path": "x", "link": "/etc"},
            {"path": "x", "size": -1},
            {"path": "x", "size": "1"},
            {"path": 3},
        ],
    )
    def test_items(self, line: dict[str, Any]) -> None:
        with pytest.raises(ProtocolError):
            Item.from_json(line)

    def test_one_file_under_two_names(self) -> None:
        with _wires() as (here, there):
            put_items(there, [Item("Readme"), Item("README")])
            there.flush()
            with pytest.raises(ProtocolError, match="one file on some machines"):
                take_items(here)

    def _receive(self, folder: Path, *lines: dict[str, Any] | bytes, size: int = 3) -> None:
        with _wires() as (here, there):
            for line in lines:
                there.put_bytes(line) if isinstance(line, bytes) else there.put(**line)
            there.flush()
            receive_files(here, folder, [Item("x", size)], lambda item, count: None)

    def test_more_bytes_than_announced(self, tmp_path: Path) -> None:
        with pytest.raises(ProtocolError, match="more than the 3 bytes"):
            self._receive(tmp_path, {"path": "x", "at": 0}, {"bytes": 4}, b"abcd")

    def test_another_hash(self, tmp_path: Path) -> None:
        with pytest.raises(RemoteError, match="damaged on the way"):
            self._receive(tmp_path, {"path": "x", "at": 0}, {"bytes": 3}, b"abc", {"sha256": "0" * 64}, {"end": True})
        assert not (tmp_path / "x").exists()

    def test_a_file_that_was_not_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(ProtocolError, match="not asked for"):
            self._receive(tmp_path, {"path": "y", "at": 0})

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ProtocolError, match="x did not arrive"):
            self._receive(tmp_path, {"end": True})

    def test_an_endless_line(self, tmp_path: Path) -> None:
        with pytest.raises(ProtocolError, match="too long"):
            self._receive(tmp_path, b"x" * 100_000)
