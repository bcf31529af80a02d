"""Requests to a vLLM server. Torch-free."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

QUICK_S = 10.0
"""Time limit of a request that a server answers at once."""


class ServerGoneError(Exception):
    """No server answers, or it ended during a request."""


class ServerRefusedError(Exception):
    """The server answered with an error, whose text is the message."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:  # a server that does not listen yet
            self.sock.close()
            raise


def call_server(address: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
    """Answer of the server at ``address`` (URL, or absolute path of a socket); None where it is empty.

    Args:
        body: sent as JSON with POST; None = GET.
        timeout_s: longest silence; None = no limit.

    Raises ServerGoneError, ServerRefusedError.
    """
    parts = urlsplit(address)
    connection: http.client.HTTPConnection
    if address.startswith("/"):
        connection = _UnixConnection(address, timeout_s)
    else:
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        path = parts.path.rstrip("/") + path
    headers = {"Content-Type": "application/json"}
    try:
        connection.request("GET" if body is None else "POST", path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise ServerGoneError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if answer.status >= 400:
        raise ServerRefusedError(_reason(text) or f"HTTP status {answer.status}")
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None  # plain text, as load_lora_adapter's


def _reason(text: str) -> str:
    """Message of an error in OpenAI's format or FastAPI's."""
    try:
        found = json.loads(text)
        return str((found.get("error") or found).get("message") or found.get("detail") or text)
    except (ValueError, AttributeError):
        return text.strip()
