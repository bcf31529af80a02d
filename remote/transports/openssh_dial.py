"""A connection to an address as the box reaches it: a child ``ssh -W`` over the master that stands."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from remote.base import Unreachable

EXIT_S = 2.0


class DialedSsh:
    """See :class:`remote.transports.transport.Stream`. An address that refuses ends the stream."""

    def __init__(self, command: list[str], link_has_ended: Callable[[], bool]) -> None:
        """Start ssh. Raises Unreachable."""
        self.was_cut = link_has_ended  # ssh ends with 0 in either case
        self._ours, theirs = socket.socketpair()
        self._is_closed = False
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError as error:
            self._ours.close()
            raise Unreachable(f"cannot run {command[0]}: {error.strerror or error}") from error

    def recv(self, size: int, /) -> bytes:
        return self._ours.recv(size)

    def sendall(self, data: bytes, /) -> None:
        self._ours.sendall(data)

    def shutdown(self, how: int, /) -> None:
        self._ours.shutdown(how)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)  # wakes a thread that receives
        self._ours.close()
        threading.Thread(target=self._reap, name="ssh-dial", daemon=True).start()

    def _reap(self) -> None:
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
