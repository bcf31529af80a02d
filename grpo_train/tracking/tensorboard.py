"""TensorBoard for one run: on loopback, below a random path, until nobody is connected any more."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError

POLL_S = 0.5
FIRST_S = 300.0
"""The first connection is awaited this long."""


class TensorBoardError(UserError):
    """TensorBoard cannot show the run."""

    code = "no_tensorboard"


def serve_events(folder: Path, announce: Callable[[int, str], None], idle_s: float, clock: Clock = CLOCK) -> None:
    """Serve a directory of event files until nobody has been connected for ``idle_s``.

    ``announce`` gets the port and the path (``/RANDOM/``) once it listens. Raises TensorBoardError.
    """
    try:
        from tensorboard import default, program
    except ImportError as error:  # a broken installation
        raise TensorBoardError(f"TensorBoard cannot be imported: {error}") from error
    counter = _Counter(clock)
    path = f"/{secrets.token_urlsafe(12)}/"
    board = program.TensorBoard(default.get_plugins(), server_class=counter.counting(program.WerkzeugServer))
    board.configure(
        argv=["tensorboard", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0", "--path_prefix", path[:-1]]
    )
    try:
        server = board._make_server()
    except (program.TensorBoardServerException, OSError) as error:  # no free port
        raise TensorBoardError(f"TensorBoard did not start: {error}") from error
    threading.Thread(target=server.serve_forever, name="tensorboard", daemon=True).start()
    announce(int(server.server_port), path)
    counter.wait_until_idle(idle_s)
    server.shutdown()


class _Counter:
    """Counts the open connections of a server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open = 0
        self._seen = False
        self._idle_since = self._clock.monotonic()

    def counting(self, server_class: Any) -> Any:
        """The server's class, with its connections counted."""
        counter = self

        class Server(server_class):
            def process_request(self, request: Any, client_address: Any) -> None:
                counter.add(1)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                counter.add(-1)

        return Server

    def add(self, count: int) -> None:
        with self._lock:
            self._open += count
            self._seen = True
            self._idle_since = self._clock.monotonic()

    def wait_until_idle(self, idle_s: float) -> None:
        """Wait until there has been no connection for ``idle_s``; for the first one, FIRST_S."""
        while True:
            self._clock.sleep(min(POLL_S, idle_s))
            with self._lock:
                limit = idle_s if self._seen else max(idle_s, FIRST_S)
                if self._open == 0 and self._clock.monotonic() - self._idle_since >= limit:
                    return
