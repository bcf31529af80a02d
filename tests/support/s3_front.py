"""A front before an S3 server that corrupts, shortens, drops, delays, refuses and lies, over https.

with Front(server("moto")) as front:
    store = bucket_store(front.server, bucket, port=front.port)
    front.add(Fault("refuse", "PUT", status=503, code="SlowDown", headers={"Retry-After": "1"}))
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.support.s3_checksums import Checksums
from tests.support.s3_servers import Server, certificate

_ERROR = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{}</Code><Message>said by the front</Message></Error>"


@dataclass
class Fault:
    """What happens to the next ``times`` requests with this method whose path and query match."""

    kind: str
    """``refuse``, ``silence``, ``drop`` (before the server sees the request), ``drop_answer``, ``cut`` (half of the
    answer), ``flip`` (a byte of the answer), ``flip_sent``, ``shorten_sent``, ``lie`` (HEAD: size and checksum)."""
    method: str = "[A-Z]+"
    match: str = ""
    times: float = 1
    status: int = 503
    code: str = "ServiceUnavailable"
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer; they replace the server's."""
    seconds: float = 0.0


class Front(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, running: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = running
        self.port = self.server_address[1]
        self.date_offset_s = 0.0
        self.rate = 0.0
        """Bytes per second from the client, if not 0."""
        self.checksums: Checksums | None = None
        """Checks and reports SHA-256 checksums where the server does not."""
        self.seen: list[tuple[str, str]] = []
        """Method, and path with query, of every request."""
        self.bytes_in: Counter[str] = Counter()
        """Bytes of bodies received, by method."""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate())
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Front:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()

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

    def get_request(self) -> tuple[Any, Any]:
        sock, address = super().get_request()
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients break off


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65_537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        fault = self.server.fault_of(self.command, self.path)
        body = self._body()
        kind = fault.kind if fault else ""
        if kind == "refuse":
            assert fault
            self._answer(fault.status, fault.headers, _ERROR.format(fault.code).encode())
        elif kind == "silence":
            assert fault
            self.server.ended.wait(fault.seconds)
            self.close_connection = True
        elif kind == "drop":
            self.close_connection = True
        else:
            self._pass_on(kind, fault, body)

    def _body(self) -> bytes:
        left = int(self.headers.get("Content-Length") or 0)
        blocks = []
        while left and (block := self.rfile.read(min(left, 65_536))):
            left -= len(block)
            blocks.append(block)
            self.server.bytes_in[self.command] += len(block)
            if self.server.rate:
                time.sleep(len(block) / self.server.rate)
        if left:
            raise ConnectionError
        return b"".join(blocks)

    def _pass_on(self, kind: str, fault: Fault | None, body: bytes) -> None:
        checksums = self.server.checksums
        if checksums and checksums.is_wrong(self.command, self.headers, body):
            self._answer(400, {}, _ERROR.format("BadDigest").encode())
            return
        sent = body
        if kind == "flip_sent":
            sent = _flipped(body)
        elif kind == "shorten_sent":
            sent = body[: len(body) // 2]
        status, headers, answer = self._ask(sent)
        if checksums and status == 200:
            headers |= checksums.reported(self.command, self.path, self.headers, body)
        if kind == "lie":
            headers |= {"Content-Length": "7", "ETag": '"0"', "x-amz-checksum-sha256": "A" * 43 + "="}
        if kind == "flip":
            answer = _flipped(answer)
        if kind == "drop_answer":
            self.close_connection = True
        else:
            self._answer(status, headers | (fault.headers if fault else {}), answer, cut=kind == "cut")

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The server's answer."""
        context = ssl.create_default_context(cafile=self.server.server.ca_file)
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.server.port, context=context)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
        if body or self.command in ("PUT", "POST"):
            headers["Content-Length"] = str(len(body))
        with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read everything
            connection.request(self.command, self.path, body or None, headers)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        left_out = ("transfer-encoding", "connection")
        return response.status, {k: v for k, v in response.getheaders() if k.lower() not in left_out}, answer

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        given = {name.lower() for name in headers}
        if "content-length" not in given or self.command != "HEAD":
            headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
            headers["Content-Length"] = str(len(body))
        headers = {k: v for k, v in headers.items() if k.lower() != "date"}
        headers["Date"] = self.date_time_string(int(time.time() + self.server.date_offset_s))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data
