"""Reading objects of an S3 store: ranges of them, several on the way at a time, in order."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grpo_train.backup.s3_errors import cause_of
from grpo_train.backup.s3_requests import S3Requests
from grpo_train.backup.store import RateLimit, StoreError

RANGE = 10 << 20
_BLOCK = 5 << 20
"""Bytes that are used at a time."""
_PIECE = 1 << 20
"""Bytes that are received at a time."""


@dataclass(frozen=True)
class _Range:
    buffer: mmap.mmap
    length: int
    """Bytes in the buffer, from its start."""
    size: int
    """Bytes of the whole object."""
    etag: str


class ObjectReader:
    """Reads the objects of one store, with at most ``transfers`` ranges on the way, which its callers share."""

    def __init__(self, requests: S3Requests, transfers: int, limit: RateLimit | None) -> None:
        self._requests, self._transfers, self._limit = requests, transfers, limit
        self._workers = ThreadPoolExecutor(transfers, thread_name_prefix="read")
        self._lock = threading.Lock()
        self._callers = 0
        self._buffers: deque[mmap.mmap] = deque(maxlen=2)
        """Used again: new memory would cost a page fault for every 4 KiB, a tenth of the processor time."""

    def read(self, full: str, where: str, start: int) -> Iterator[memoryview]:
        """The bytes of an object from ``start`` on; a block ends with the next one. ``where`` names it in errors.

        Raises StoreError.
        """
        stop = threading.Event()
        first = self._fetch(full, where, start, "", stop)
        if not first:
            return
        at = start + first.length
        coming: deque[Future[_Range | None]] = deque()
        with self._lock:
            self._callers += 1
        try:
            fetched: _Range | None = first
            while fetched or coming or at < first.size:
                ahead = max(1, self._transfers // self._callers - 1)
                while at < first.size and len(coming) < ahead:
                    coming.append(self._workers.submit(self._fetch, full, where, at, first.etag, stop))
                    at += RANGE
                if fetched:  # used while the next ones are on their way
                    yield from _blocks(fetched)
                    self._buffers.append(fetched.buffer)
                fetched = coming.popleft().result() if coming else None
        finally:
            stop.set()
            for future in coming:
                future.cancel()
            with self._lock:
                self._callers -= 1
                if not self._callers:
                    self._buffers.clear()

    def _fetch(self, full: str, where: str, start: int, etag: str, stop: threading.Event) -> _Range | None:
        """The range that begins at ``start``; None past the end. A broken connection is continued where it was."""
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError  # of TLS, which botocore lets through

        buffer = self._take_buffer()
        length, backoff = 0, self._requests.backoff(stop)
        while True:
            response = self._get(full, where, start + length, start + RANGE, etag, stop)
            if not response:
                return None
            body = response["Body"]
            try:
                if etag and etag != response["ETag"]:  # not every server compares them
                    raise _replaced(where)
                etag = response["ETag"]
                size = self._size_of(response, where, start + length)
                wanted = min(RANGE, size - start)
                with memoryview(buffer) as view:
                    while length < wanted and (count := body.readinto(view[length : min(length + _PIECE, wanted)])):
                        if self._limit:
                            self._limit.take(count)
                        length += count
                        backoff.progressed()
                if length >= wanted:
                    return _Range(buffer, length, size, etag)
                backoff.wait(self._requests.place.url, f"{self._requests.place.endpoint} answers too few bytes")
            except (BotoCoreError, HTTPError, OSError) as error:
                # a body that ends early (tests/soak/test_s3_repeats.py)
                backoff.wait(self._requests.place.url, cause_of(error, self._requests.place.endpoint))
            finally:
                body.close()

    def _take_buffer(self) -> mmap.mmap:
        try:
            return self._buffers.pop()
        except IndexError:
            return mmap.mmap(-1, RANGE)

    def _get(
        self, full: str, where: str, start: int, end: int, etag: str, stop: threading.Event
    ) -> dict[str, Any] | None:
        condition: dict[str, Any] = {"IfMatch": etag} if etag else {}
        try:
            return self._requests.call("get_object", stop, Key=full, Range=f"bytes={start}-{end - 1}", **condition)
        except StoreError as error:
            said = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
            if said in ("InvalidRange", "416"):  # which an empty object has, too
                return None
            if said in ("PreconditionFailed", "412"):
                raise _replaced(where) from None
            if error.code == "missing":
                raise StoreError(f"{where}: no such object", code="missing") from error.__cause__
            raise

    def _size_of(self, response: dict[str, Any], where: str, at: int) -> int:
        """Bytes of the whole object, of which a range from ``at`` on was asked for."""
        total = str(response.get("ContentRange", "")).rpartition("/")[2]
        if total.isdecimal():
            return int(total)
        if at == 0 and response["ContentLength"] <= RANGE:
            return int(response["ContentLength"])
        raise StoreError(f"{where}: {self._requests.place.endpoint} cannot send a part of an object", code="refused")


def _blocks(fetched: _Range) -> Iterator[memoryview]:
    view = memoryview(fetched.buffer)[: fetched.length]
    for at in range(0, fetched.length, _BLOCK):
        block = view[at : at + _BLOCK]
        try:
            yield block
        finally:
            with suppress(BufferError):  # an exception that its reader raised still refers to it
                block.release()


def _replaced(where: str) -> StoreError:
    return StoreError(f"{where}: replaced while it was read", code="damaged")
