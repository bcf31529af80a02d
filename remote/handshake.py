"""The exchange of hellos that opens a connection."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.protocol import PROTOCOL_VERSION, Decoder, ProtocolError, encode_parts
from remote.transports import Transport

POLL_S = 0.25


def greeting(box: Box, *, readonly: bool = False, copies: bool = False) -> bytes:
    """This program's hello. ``copies``: the connection is one for :mod:`remote.copying`."""
    hello = {"type": "hello", "protocol": PROTOCOL_VERSION, "settings": asdict(box.settings(readonly=readonly))}
    if copies:
        hello["copies"] = True
    return b"".join(encode_parts(hello))


def await_hello(
    transport: Transport, box: Box, timeout_s: float, closing: threading.Event, clock: Clock = CLOCK
) -> tuple[Decoder, dict[str, Any]]:
    """Wait for the agent's hello; returns it with the decoder, which may hold later bytes.

    Raises Refused for another protocol version, Unreachable without a hello and once ``closing`` is set.
    """
    decoder, deadline = Decoder(), clock.monotonic() + timeout_s
    while not closing.is_set() and clock.monotonic() <= deadline:
        data = transport.receive(min(POLL_S, timeout_s))
        if data == b"":
            ended = f"the connection to {box.name} ended before the agent's hello"
            raise Unreachable(f"{ended} ({tail})" if (tail := transport.error_tail()) else ended)
        for frame in decoder.feed(data or b""):
            if frame["type"] != "hello":
                raise ProtocolError(f"{box.name} sent a frame before its hello")
            if frame.get("protocol") != PROTOCOL_VERSION:
                raise Refused(f"the agent uses protocol {frame.get('protocol')}, this program {PROTOCOL_VERSION}")
            return decoder, frame
    raise Unreachable(f"no hello from {box.name} within {timeout_s:.0f} s")
