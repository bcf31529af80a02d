"""Lambda Cloud's API on a loopback port, over https: the published shapes (1.5.3 to 1.10.0).

    with LambdaApi(tmp_path) as api:
        api.instances = [instance("h200-a", "192.0.2.10")]
        provider = Provider("lambda", str(api.key_file), url=api.url)

Clients find the certificate by ``SSL_CERT_FILE``: set it to ``api.certificate``.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.canaries import canary, write_private


def instance(name: str | None, ip: str | None, status: str = "active", **fields: Any) -> dict[str, Any]:
    """An instance as ``GET /instances`` describes it."""
    kind = {
        "name": "gpu_1x_h100_sxm5",
        "description": "1x H100 (80 GB SXM5)",
        "gpu_description": "H100 (80 GB SXM5)",
        "price_cents_per_hour": 329,
        "specs": {"vcpus": 26, "memory_gib": 225, "storage_gib": 2816, "gpus": 1},
    }
    return {
        "id": f"{abs(hash((name, ip, status))):032x}"[:32],
        "name": name,
        "ip": ip,
        "status": status,
        "ssh_key_names": ["laptop"],
        "file_system_names": ["localfs"],
        "region": {"name": "us-east-3", "description": "Washington DC, USA"},
        "instance_type": kind,
        "hostname": None,
        "jupyter_token": canary("jupyter"),
        "jupyter_url": None,
        **fields,
    }


class LambdaApi:
    """The server. Without a planned answer, ``GET /api/v1/instances`` lists ``instances``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = canary("secret_")
        self.key_file = write_private(folder / "lambda-key", f"{self.key}\n")
        self.certificate = folder / "certificate.pem"
        self._instances: list[dict[str, Any]] = []
        self.on_change: Callable[[], None] = lambda: None
        """Called when it will answer in another way."""
        self.planned: deque[tuple[int, dict[str, str], bytes]] = deque()
        """Status, headers and body of the next answers."""
        self.requests: list[str] = []
        """Paths that were asked for."""
        self._make_certificate()

    def __enter__(self) -> LambdaApi:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.requests.append(self.path)
                status, headers, body = api.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}/api/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def instances(self) -> list[dict[str, Any]]:
        return self._instances

    @instances.setter
    def instances(self, instances: list[dict[str, Any]]) -> None:
        self._instances = instances
        self.on_change()

    def plan(self, status: int, body: Any = b"", **headers: str) -> None:
        """Answer the next request so."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.planned.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, data))
        self.on_change()

    def refuse(self, status: int, code: str, message: str, suggestion: str | None = None) -> None:
        """Answer the next request with an error of the API."""
        self.plan(status, {"error": {"code": code, "message": message, "suggestion": suggestion}})

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        if self.planned:
            return self.planned.popleft()
        if authorization != f"Bearer {self.key}":
            self.refuse(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.", "Create a new one.")
        elif path != "/api/v1/instances":
            self.refuse(404, "global/object-does-not-exist", "Specified object does not exist.")
        else:
            self.plan(200, {"data": self.instances})
        return self.planned.popleft()

    def _make_certificate(self) -> None:
        key = self.folder / "certificate-key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", str(key), "-out", str(self.certificate), "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
        with self.certificate.open("a") as file:
            file.write(key.read_text())
