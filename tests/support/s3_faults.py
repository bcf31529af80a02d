"""Faults of an S3 store: refused, dropped, damaged and lying answers, in this process, by botocore's events.

with FaultyRequests(server("moto")) as faults:  # of all clients that are made inside
    store = bucket_store(faults.server, bucket, port=faults.port)
    faults.add(Fault("refuse", "PUT", status=503, code="SlowDown", headers={"Retry-After": "1"}))

:class:`tests.support.s3_front.Front` does the same to the bytes of real connections, for ``tests/soak``.
"""

from __future__ import annotations

import copy
import io
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from types import TracebackType
from typing import Any

from tests.support.s3_checksums import Checksums
from tests.support.s3_servers import Server

_ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{}</Code><Message>said by the front</Message></Error>"
_DELETED = "<DeleteResult><Error><Key>{}</Key><Code>{}</Code></Error></DeleteResult>"
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


class Killed(BaseException):
    """What ``kill`` raises: the store keeps what it has, as after SIGKILL."""


@dataclass
class Fault:
    """What happens to the next ``times`` requests with this method whose path and query match."""

    kind: str
    """``refuse``, ``silence``, ``drop`` (before the server sees the request), ``drop_answer``, ``cut`` (half of the
    answer), ``flip`` (a byte of the answer), ``flip_sent``, ``shorten_sent``, ``lie`` (HEAD: size and checksum),
    ``kill`` (in this process only)."""
    method: str = "[A-Z]+"
    match: str = ""
    times: float = 1
    status: int = 503
    code: str = "ServiceUnavailable"
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer; they replace the server's."""
    seconds: float = 0.0
    key: str = ""
    """The one of several keys that is refused in an answer with status 200."""
    page: str = ""
    """A web page in place of the XML."""

    def refusal(self) -> Answer:
        if self.page:
            return self.status, {"Content-Type": "text/html", **self.headers}, self.page.encode()
        if self.key:
            return 200, self.headers, _DELETED.format(self.key, self.code).encode()
        return self.status, self.headers, _ERROR.format(self.code).encode()


class Faults:
    """Faults that wait for their requests, and the requests that came."""

    def __init__(self, running: Server) -> None:
        self.server = running
        self.port = running.port
        self.date_offset_s = 0.0
        self.checksums: Checksums | None = None
        """Checks and reports SHA-256 checksums where the server does not."""
        self.seen: list[tuple[str, str]] = []
        """Method, and path with query, of every request."""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._faults += faults

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def fault_of(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, path))
            for fault in self._faults:
                if fault.times >= 1 and re.fullmatch(fault.method, method) and re.search(fault.match, path):
                    fault.times -= 1
                    return fault
        return None

    def pass_on(
        self,
        fault: Fault | None,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        ask: Callable[[bytes], Answer],
    ) -> Answer:
        """The server's answer to a request, after what a fault does to both."""
        kind = fault.kind if fault else ""
        if self.checksums and self.checksums.is_wrong(method, headers, body):
            return Fault("refuse", status=400, code="BadDigest").refusal()
        sent = body
        if kind == "flip_sent":
            sent = _flipped(body)
        elif kind == "shorten_sent":
            sent = body[: len(body) // 2]
        status, given, answer = ask(sent)
        if self.checksums and status == 200:
            given |= self.checksums.reported(method, path, headers, body)
        if kind == "lie":
            given |= {"content-length": "7", "etag": '"0"', "x-amz-checksum-sha256": "A" * 43 + "="}
        if kind == "flip":
            answer = _flipped(answer)
        return status, given | (fault.headers if fault else {}), answer


class FaultyRequests(Faults):
    """Faults of the requests of this process."""

    def __enter__(self) -> FaultyRequests:
        from botocore.httpsession import URLLib3Session

        from grpo_train.backup.s3_requests import _session

        self._session = URLLib3Session(verify=self.server.ca_file)
        self._events = _session(own=False).events
        self._events.register("before-send.s3", self._send)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._events.unregister("before-send.s3", self._send)
        self._session.close()

    def _send(self, request: Any, **_: Any) -> Any:
        """The response to a request; None lets botocore send it."""
        from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

        path = "/" + request.url.partition("://")[2].partition("/")[2]
        fault = self.fault_of(request.method, path)
        kind = fault.kind if fault else ""
        if kind == "kill":
            raise Killed
        if kind == "drop":
            raise ConnectionClosedError(endpoint_url=request.url) from ConnectionResetError("reset by the test")
        if kind == "silence":
            raise ReadTimeoutError(endpoint_url=request.url)
        if kind == "refuse":
            assert fault
            return self._answered(request, fault.refusal())
        if not (fault or self.checksums or self.date_offset_s):
            return None
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        data = request.body or b""
        body = bytes(data) if isinstance(data, (bytes, bytearray)) else b"".join(iter(data.read, b""))
        answer = self.pass_on(fault, request.method, path, headers, body, lambda sent: self._ask(request, sent))
        if kind == "drop_answer":
            raise ConnectionClosedError(endpoint_url=request.url) from ConnectionResetError("reset by the test")
        return self._answered(request, answer, cut=kind == "cut")

    def _ask(self, request: Any, body: bytes) -> Answer:
        asked = copy.copy(request)
        asked.body, asked.headers = body, request.headers.copy()
        if "Content-Length" in asked.headers:
            asked.headers["Content-Length"] = str(len(body))
        response = self._session.send(asked)
        left_out = ("transfer-encoding", "connection", "content-length") if request.method != "HEAD" else ()
        given = {name.lower(): value for name, value in response.headers.items() if name.lower() not in left_out}
        return response.status_code, given, response.content

    def _answered(self, request: Any, answer: Answer, *, cut: bool = False) -> Any:
        from botocore.awsrequest import AWSResponse
        from urllib3.response import HTTPResponse

        status, headers, body = answer
        if not cut:  # whose end looks as that of a connection
            headers = {"content-length": str(len(body)), **headers}
        headers["date"] = formatdate(time.time() + self.date_offset_s, usegmt=True)
        left = b"" if request.method == "HEAD" else body[: len(body) // 2] if cut else body
        raw = HTTPResponse(io.BytesIO(left), status=status, preload_content=False)
        return AWSResponse(request.url, status, headers, raw)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data
