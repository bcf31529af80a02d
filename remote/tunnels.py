"""Tunnels: a port of this machine leads to an address as the box reaches it, over the link that stands.

    with Tunnel(client, "127.0.0.1", 6006, local_port=16007) as tunnel:
        print(tunnel.local)              # 127.0.0.1:16007

A tunnel listens on loopback only, and keeps its port while the link is lost: connections end with the link, and new
ones are refused until it is back.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from grpo_train.run_dir.errors import UserError
from remote.base import Unreachable
from remote.transports.transport import Stream

if TYPE_CHECKING:
    from types import TracebackType

    from remote.client import BoxClient

LOOPBACK = "127.0.0.1"
NEXT_PORTS = 50
"""Ports that are tried where the first is taken."""
MAX_CONNECTIONS = 128
HOLD_AGAIN_S = 1.0
_BLOCK = 1 << 16


class Tunnel:
    """One forwarded port. Its threads end with :meth:`close`."""

    def __init__(
        self, client: BoxClient, host: str, port: int, *, local_port: int, exact: bool = False, holds: bool = False
    ) -> None:
        """Listen; where the port is taken, on the next free one, or with ``exact`` raise UserError (``port_taken``).

        ``holds``: one connection stays open, from which the other end knows that somebody uses the tunnel.
        """
        self.host, self.port = host, port
        self._client = client
        self._listener = _listen(local_port, exact)
        self.local_port = int(self._listener.getsockname()[1])
        self._ended = threading.Event()
        self._open: set[Stream | socket.socket] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, name=f"tunnel-{self.local_port}", daemon=True)]
        if holds:
            self._threads.append(threading.Thread(target=self._hold, name=f"hold-{self.local_port}", daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def local(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{LOOPBACK}:{self.local_port}"

    @property
    def connections(self) -> int:
        """Connections that are open at both ends."""
        with self._lock:
            return len(self._open) // 2

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the tunnel, and its connections by a reset. Any thread; may be repeated."""
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _reset(end) if isinstance(end, socket.socket) else _close(end)

    def _dial(self) -> Stream:
        """A stream to the target. Raises Unreachable."""
        transport = self._client.transport
        if transport is None:
            raise Unreachable("not connected")
        return transport.dial(self.host, self.port)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.connections >= MAX_CONNECTIONS:
                near.close()
                continue
            threading.Thread(target=self._serve, args=(near,), name=f"tunnel-{self.local_port}-in", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Pass bytes on in both directions until both have ended."""
        try:
            far = self._dial()
        except Unreachable:
            near.close()
            return
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {near, far}
            ended = self._ended.is_set()
        try:
            if not ended:
                back = threading.Thread(target=_receive, args=(far, near, self._ended), name="tunnel-out", daemon=True)
                back.start()
                _send(near, far)
                back.join()
        finally:
            with self._lock:
                self._open -= {near, far}
            _close(near)
            _close(far)

    def _hold(self) -> None:
        """Keep one connection to the target that says nothing."""
        while not self._ended.is_set():
            with suppress(Unreachable, OSError):
                held = self._dial()
                with self._lock:
                    self._open.add(held)
                try:
                    while not self._ended.is_set() and held.recv(_BLOCK):
                        pass
                finally:
                    with self._lock:
                        self._open.discard(held)
                    _close(held)
            self._client.clock.wait(self._ended, HOLD_AGAIN_S)


def _listen(port: int, exact: bool) -> socket.socket:
    for candidate in range(port, min(65_536, port + (1 if exact else NEXT_PORTS))):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, candidate))
            listener.listen()
        except OSError:
            listener.close()
            continue
        return listener
    which = f"port {port} of this machine is" if exact else f"the ports {port} to {port + NEXT_PORTS - 1} here are"
    raise UserError(f"{which} taken; choose another", code="port_taken")


def _send(near: socket.socket, far: Stream) -> None:
    """Copy until the near end has ended its direction. A connection that broke ends both."""
    try:
        while data := near.recv(_BLOCK):
            far.sendall(data)
        far.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):
        _close(far)
        _reset(near)


def _receive(far: Stream, near: socket.socket, ended: threading.Event) -> None:
    """Copy until the far end has ended its direction. A link that broke, or a tunnel that ``ended``, resets the near
    end: half an answer must not look whole.
    """
    try:
        while data := far.recv(_BLOCK):
            near.sendall(data)
        if far.was_cut() or ended.is_set():
            _reset(near)
        else:
            near.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):
        _close(far)
        _reset(near)


def _reset(near: socket.socket) -> None:
    """End a connection so that the other end gets an error."""
    with suppress(OSError):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        near.shutdown(socket.SHUT_RD)  # wakes a thread that receives, and says nothing to the other end
    near.close()


def _close(end: Stream | socket.socket) -> None:
    with suppress(OSError, EOFError):
        end.shutdown(socket.SHUT_RDWR)  # wakes a thread that receives
    with suppress(OSError, EOFError):
        end.close()
