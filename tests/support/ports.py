"""Ports of this machine."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack, suppress

import psutil


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to connections, so that none takes one while its server is down."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = secrets.randbelow(20_000) + 10_000
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def own_ports() -> set[int]:
    """Ports that this process listens on: one that it has closed may be another test's by now."""
    return {one.laddr.port for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN}
