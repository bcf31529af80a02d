"""A network of its own for the calling thread and whatever it starts. Needs the superuser."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_CLONE_NEWNET = 0x40000000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser (a network namespace)")


@contextmanager
def own_network() -> Iterator[None]:
    """A network namespace with a loopback device; a thread or process started in it stays there."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        try:
            _ip("link", "set", "lo", "up")
            yield
        finally:
            libc.setns(before, _CLONE_NEWNET)
    finally:
        os.close(before)


def add_link_local(device: str, address: str = "fe80::1") -> str:
    """Add a device with a link-local address; returns the address with its zone."""
    _ip("link", "add", device, "type", "veth", "peer", "name", f"{device}-peer")
    for name in (device, f"{device}-peer"):
        _ip("link", "set", name, "up")
    _ip("-6", "address", "add", f"{address}/64", "dev", device, "nodad")
    return f"{address}%{device}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
