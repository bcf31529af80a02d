"""A TCP proxy on a loopback port that can delay, reset or drop traffic.

with ChaosProxy(target_port) as proxy:
    ...connect to proxy.port...
    proxy.reset()          # reset every open connection; new ones pass
    proxy.black_hole()     # pass nothing, silently; new connections are accepted and hang
    proxy.refuse()         # reset open and new connections
    proxy.delay(0.04)      # seconds, in each direction
    proxy.pass_through()   # back to normal
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from types import TracebackType

_RESET = struct.pack("ii", 1, 0)


class ChaosProxy:
    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self._target = (target_host, target_port)
        self._mode = "pass"
        self._delay = 0.0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        """Connections accepted so far."""
        self.bytes_back = 0
        """Bytes received from the target."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ChaosProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # modes -----------------------------------------------------------------------------------------------------

    def pass_through(self) -> None:
        """Pass everything without delay. Connections of a black hole have lost data and are reset."""
        lossy = self._mode == "hole"
        self._mode, self._delay = "pass", 0.0
        if lossy:
            self._reset_all()

    def delay(self, seconds: float) -> None:
        self._mode, self._delay = "pass", seconds

    def reset(self) -> None:
        self._mode = "pass"
        self._reset_all()

    def black_hole(self) -> None:
        self._mode = "hole"

    def refuse(self) -> None:
        self._mode = "refuse"
        self._reset_all()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._reset_all()

    # ------------------------------------------------------------------------------------------------------------

    def _reset_all(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                _reset(sock)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self._mode == "refuse":
                _reset(client)
                continue
            try:
                target = socket.create_connection(self._target, 5)
            except OSError:
                _reset(client)
                continue
            with self._lock:
                self._pairs.append((client, target))
            for source, sink in ((client, target), (target, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(source, sink, sink is client), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        try:
            while not self._closed:
                if self._mode == "hole":
                    time.sleep(0.02)  # the buffer fills up, as on a real dead link
                    continue
                if not select.select([source], [], [], 0.05)[0] or self._mode == "hole":
                    continue
                data = source.recv(65_536)
                if not data:
                    break
                if self._delay:
                    time.sleep(self._delay)
                sink.sendall(data)
                self.bytes_back += len(data) if back else 0
        except (OSError, ValueError):
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def _reset(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        pass
    sock.close()
