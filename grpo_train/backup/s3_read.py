"""Reading objects of an S3 store: ranges of them, several on the way at a time, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from grpo_train.backup.content import RateLimit
from grpo_train.backup.s3_errors import cause_of
from grpo_train.backup.s3_requests import Requests
from grpo_train.backup.store import StoreError

RANGE = 12 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Range:
    blocks: deque[bytes]
    """As they were read: to join them would copy every byte."""
    length: int
    """Bytes of all blocks."""
    size: int
    """Bytes of the whole object."""
    etag: str


class Reader:
    """Reads the objects of one store, with at most ``transfers`` ranges on the way, which its callers share."""

    def __init__(self, requests: Requests, transfers: int, limit: RateLimit | None) -> None:
        self._requests, self._transfers, self._limit = requests, transfers, limit
        self._workers = ThreadPoolExecutor(transfers, thread_name_prefix="read")
        self._lock = threading.Lock()
        self._callers = 0

    def read(self, full: str, where: str, start: int) -> Iterator[bytes]:
        """The bytes of an object from ``start`` on. ``where`` names it in errors. Raises StoreError."""
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
                while fetched and fetched.blocks:  # used, and freed, while the next ones are on their way
                    yield fetched.blocks.popleft()
                fetched = coming.popleft().result() if coming else None
        finally:
            stop.set()
            for future in coming:
                future.cancel()
            with self._lock:
                self._callers -= 1

    def _fetch(self, full: str, where: str, start: int, etag: str, stop: threading.Event) -> _Range | None:
        """The range that begins at ``start``; None past the end. A broken connection is continued where it was."""
        from botocore.exceptions import BotoCoreError

        blocks: deque[bytes] = deque()
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
                while length < wanted and (block := body.read(_BLOCK)):
                    if self._limit:
                        self._limit.take(len(block))
                    blocks.append(block)
                    length += len(block)
                    backoff.progressed()
                if length >= wanted:
                    return _Range(blocks, length, size, etag)
                backoff.wait(self._requests.place.url, f"{self._requests.place.endpoint} answers too few bytes")
            except (BotoCoreError, OSError) as error:
                backoff.wait(self._requests.place.url, cause_of(error, self._requests.place.endpoint))
            finally:
                body.close()

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


def _replaced(where: str) -> StoreError:
    return StoreError(f"{where}: replaced while it was read", code="damaged")
