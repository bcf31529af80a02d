"""A TCP proxy on a loopback port that can delay, reset or drop traffic.

with ChaosProxy(target_port) as proxy:
    ...connect to proxy.port...
    proxy.reset()          # reset every open connection; new ones pass
    proxy.reset_end(back=True)  # reset the target's end alone; the client's end stays open and silent
    proxy.black_hole()     # pass nothing, silently; new connections are accepted and hang
    proxy.dead(back=True)  # the same in one direction
    proxy.refuse()         # reset open and new connections
    proxy.close_port()     # the same, and new connections are refused as by a machine without a server
    proxy.delay(0.04)      # seconds, in each direction
    proxy.slow(1_000)      # bytes/s, in each direction
    proxy.flip(back=True)  # damage the next byte of a direction
    proxy.resume()         # back to normal: what waited arrives, as after a short outage
    proxy.pass_through()   # back to normal; connections of a black hole are reset
    proxy.plan(Fault("flip", offset=1_820, back=True))  # one fault for each of the next connections
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from tests.support.ports import free_port

LOOK_S = 0.05
"""Between two looks of a connection whether its network has changed."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Fault:
    """One fault of one connection, before the byte at ``offset`` of one direction."""

    kind: str
    """``reset``, ``fin`` (this direction ends, the other continues), ``flip`` (that byte is damaged) or ``stall``."""
    offset: int
    back: bool
    """The direction: from the target to the client."""
    mask: int = 1
    """Bits that ``flip`` inverts."""
    seconds: float = 20.0
    """Length of a stall."""


class Connection:
    """One proxied connection."""

    def __init__(self, client: socket.socket, target: socket.socket, fault: Fault | None) -> None:
        self.client = client
        self.target = target
        self.fault = fault
        self.passed = {False: 0, True: 0}
        """Bytes passed so far: to the target, to the client."""
        self.heads = {False: bytearray(), True: bytearray()}
        """The first 16 KiB of each direction."""
        self.ended = {False: False, True: False}
        self.half_open = False
        """One end was reset; nothing passes, and the other end is not told."""

    def reset(self) -> None:
        for sock in (self.client, self.target):
            _reset(sock)


class ChaosProxy:
    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self._target = (target_host, target_port)
        self._mode = "pass"
        self._dead: frozenset[bool] = frozenset()
        self._delay = 0.0
        self._rate = 0.0
        self._open: list[Connection] = []
        self._half_open: list[Connection] = []
        self._plan: deque[Fault] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._over = threading.Event()
        self.port = free_port()
        self._listener = socket.create_server(("127.0.0.1", self.port))  # a port by number is kept by close_port
        self.accepted = 0
        """Connections accepted so far."""
        self.bytes_back = 0
        """Bytes received from the target."""
        self.fired: list[Fault] = []
        """Planned faults that have happened."""
        self.last: Connection | None = None
        """The latest connection."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ChaosProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # modes -----------------------------------------------------------------------------------------------------

    def pass_through(self) -> None:
        """Pass everything without delay. Connections of a black hole have lost data and are reset."""
        lossy = self._mode == "hole"
        self.resume()
        if lossy:
            self._reset_all()

    def resume(self) -> None:
        """Pass everything without delay, also what waited."""
        if self._mode == "closed":
            self._listener.listen(128)
        self._mode, self._dead, self._delay, self._rate = "pass", frozenset(), 0.0, 0.0

    def delay(self, seconds: float) -> None:
        self.resume()
        self._delay = seconds

    def slow(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s

    def reset(self) -> None:
        self.resume()
        self._reset_all()

    def reset_end(self, *, back: bool) -> None:
        """Reset the client's end, or the target's (``back``). The other end stays open until :meth:`close`."""
        with self._lock:
            connections, self._open = self._open, []
            self._half_open += connections
        for connection in connections:
            connection.half_open = True
            _reset(connection.target if back else connection.client)

    def black_hole(self) -> None:
        self._mode, self._dead = "hole", frozenset((False, True))

    def dead(self, *, back: bool) -> None:
        self._dead = frozenset((back,))

    def refuse(self) -> None:
        self._mode = "refuse"
        self._reset_all()

    def close_port(self) -> None:
        self._mode = "closed"
        self._listener.shutdown(socket.SHUT_RDWR)  # stays bound
        self._reset_all()

    def flip(self, *, back: bool, mask: int = 1) -> None:
        """Damage the next byte of the latest connection."""
        if connection := self.last:
            connection.fault = Fault("flip", connection.passed[back], back, mask)

    def close(self) -> None:
        self._closed = True
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            self._open += self._half_open
        self._reset_all()

    # ------------------------------------------------------------------------------------------------------------

    def plan(self, *faults: Fault) -> None:
        """Give each of the next connections one fault."""
        self._plan.extend(faults)

    @property
    def planned(self) -> int:
        """Planned faults that no connection has taken yet."""
        return len(self._plan)

    def _reset_all(self) -> None:
        with self._lock:
            connections, self._open = self._open, []
        for connection in connections:
            connection.reset()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                self._over.wait(LOOK_S)  # the port is closed
                continue
            self.accepted += 1
            if self._mode == "refuse":
                _reset(client)
                continue
            try:
                target = socket.create_connection(self._target, 5)
            except OSError:
                _reset(client)
                continue
            for sock in (client, target):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(client, target, self._plan.popleft() if self._plan else None)
            with self._lock:
                self._open.append(connection)
                self.last = connection
            for back in (False, True):
                threading.Thread(target=self._pump, args=(connection, back), daemon=True).start()

    def _pump(self, connection: Connection, back: bool) -> None:
        source, sink = connection.client, connection.target
        if back:
            source, sink = sink, source
        try:
            while not self._closed and not connection.half_open:
                if back in self._dead:
                    self._over.wait(LOOK_S)  # the buffer fills up, as on a real dead link
                    continue
                if not select.select([source], [], [], LOOK_S)[0] or back in self._dead:
                    continue
                data = source.recv(max(1, int(self._rate / 10)) if self._rate else 65_536)
                if not data:
                    break
                if self._delay:
                    self._over.wait(self._delay)
                if rate := self._rate:
                    self._over.wait(len(data) / rate)
                fault, start = connection.fault, connection.passed[back]
                if fault and fault.back is back and fault.offset < start + len(data):
                    connection.fault = None
                    self.fired.append(fault)
                    if not self._fire(fault, connection, sink, data, max(0, fault.offset - start)):
                        break
                else:
                    self._send(connection, sink, data, back)
                head = connection.heads[back]
                head += data[: 16_384 - len(head)]
                connection.passed[back] += len(data)
                self.bytes_back += len(data) if back else 0
        except (OSError, ValueError):
            pass
        if not connection.half_open:
            self._end(connection, back)

    def _send(self, connection: Connection, sink: socket.socket, data: bytes, back: bool) -> None:
        """Send without blocking, so that a reset reaches an end that does not read."""
        view = memoryview(data)
        while view and not self._closed and not connection.half_open:
            if back in self._dead:
                self._over.wait(LOOK_S)
            elif select.select([], [sink], [], LOOK_S)[1]:
                with suppress(BlockingIOError):
                    view = view[sink.send(view, socket.MSG_DONTWAIT) :]

    def _fire(self, fault: Fault, connection: Connection, sink: socket.socket, data: bytes, at: int) -> bool:
        """Pass ``data`` with a fault before its byte ``at``; returns whether this direction continues."""
        if fault.kind == "flip":
            sink.sendall(data[:at] + bytes([data[at] ^ fault.mask]) + data[at + 1 :])
            return True
        sink.sendall(data[:at])
        if fault.kind == "stall":
            self._over.wait(fault.seconds)
            sink.sendall(data[at:])
            return True
        if fault.kind == "reset":
            connection.reset()
        return False

    def _end(self, connection: Connection, back: bool) -> None:
        """Pass the end of one direction on; close both sockets after the second."""
        try:
            (connection.client if back else connection.target).shutdown(socket.SHUT_WR)
        except OSError:
            pass
        with self._lock:
            connection.ended[back] = True
            if not all(connection.ended.values()):
                return
            if connection in self._open:
                self._open.remove(connection)
        connection.client.close()
        connection.target.close()


def _reset(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        pass
    sock.close()
