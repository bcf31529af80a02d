"""A front before an S3 server that corrupts, shortens, drops, delays, refuses and lies, over https.

with Front(server("moto")) as front:
    store = bucket_store(front.server, bucket, port=front.port)
    front.add(Fault("refuse", "PUT", status=503, code="SlowDown", headers={"Retry-After": "1"}))
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.support.s3_faults import Answer, Fault, Faults
from tests.support.s3_servers import Server, certificate

__all__ = ["Fault", "Front"]


class Front(Faults, ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, running: Server) -> None:
        Faults.__init__(self, running)
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), _Handler)
        self.port = self.server_address[1]
        self.rate = 0.0
        """Bytes per second from the client, if not 0."""
        self.bytes_in: Counter[str] = Counter()
        """Bytes of bodies received, by method."""
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
            self._answer(fault.refusal())
        elif kind == "silence":
            assert fault
            self.server.ended.wait(fault.seconds)
            self.close_connection = True
        elif kind == "drop":
            self.close_connection = True
        else:
            answer = self.server.pass_on(fault, self.command, self.path, self.headers, body, self._ask)
            if kind == "drop_answer":
                self.close_connection = True
            else:
                self._answer(answer, cut=kind == "cut")

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

    def _ask(self, body: bytes) -> Answer:
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
        given = {k.lower(): v for k, v in response.getheaders() if k.lower() not in left_out}
        return response.status, given, answer

    def _answer(self, answer: Answer, *, cut: bool = False) -> None:
        status, headers, body = answer
        self.send_response_only(status)
        if "content-length" not in headers or self.command != "HEAD":
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
