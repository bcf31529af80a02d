"""A client under a flood, in a process that measures itself: ``python -m tests.support.flooded_client FLOOD SECONDS``.

It has the app's connection, inbox and store, and follows the logs of the selected run, as the app does.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What a flood cost, and what the app would have shown."""

    memory_mb: float
    """Peak over the start."""
    cpu: float
    """Cores used."""
    close_s: float
    connections: int
    shown: list[tuple[str, str]]
    """State and detail of the link, in order."""
    threads: int
    """Threads left after close."""
    seconds: float
    """How long the flood lasted."""

    def assert_bounded(self, reason: str, cores: float = 0.5, close_s: float = 1.0) -> None:
        """Assert the limits of the link: memory, CPU, time to quit, back-off, and a true state with its reason."""
        assert self.memory_mb < 150, self
        assert self.cpu < cores, self
        assert self.close_s < close_s, self
        assert any(reason in detail for _, detail in self.shown), self
        states = [state for state, _ in self.shown]
        assert states[-1] == "closed", self
        backed_off = int(math.log2(self.seconds / 0.8 + 1))  # waits of 1 s, 2 s, 4 s …, of which a fifth may be missing
        assert self.connections <= 1 + backed_off, self


def start(flood: str, seconds: float) -> subprocess.Popen[str]:
    """Start a measured client."""
    command = [sys.executable, "-m", "tests.support.flooded_client", flood, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO)


def outcome(process: subprocess.Popen[str], timeout: float) -> Outcome:
    """Its measurements."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output
    return Outcome(**json.loads(output))


def main(flood: str, seconds: float) -> Outcome:
    from grpo_tui.box.link import Connection
    from grpo_tui.box.store import Store
    from remote.client import BoxClient
    from remote.events import ClientEvent, LinkChanged, RunsReported
    from tests.support import floods
    from tests.support.hostile_box import BOX, HostileTransport, argv
    from tests.support.patience import eventually

    command = argv(getattr(floods, flood))
    connections: list[HostileTransport] = []
    shown: list[tuple[str, str]] = []
    loop = asyncio.new_event_loop()

    def transport(box: Any, ask: Any) -> HostileTransport:
        connections.append(HostileTransport(command))
        return connections[-1]

    def take(event: ClientEvent) -> None:
        connection.take(event)
        if isinstance(event, LinkChanged) and (not shown or shown[-1] != (event.state.value, event.detail)):
            shown.append((event.state.value, event.detail))
        if isinstance(event, RunsReported):
            connection.store.select(next((row.name for row in connection.store.runs or ()), None))
            connection.follow_selected()

    def drain() -> None:
        if rest_s := connection.drain(take):
            loop.call_later(rest_s, drain)
        if left_s() <= 0:
            loop.stop()

    store = Store(BOX.name)
    connection = Connection(
        BOX,
        store,
        lambda: loop.call_soon_threadsafe(drain),
        lambda box, on_event: BoxClient(box, on_event, transport_factory=transport),
    )
    memory, cpu, began = resident_mb("VmRSS"), time.process_time(), time.monotonic()
    connection.open()
    reason = {**floods.FLOODS, **floods.WITHIN_CREDIT}[getattr(floods, flood)]

    def left_s() -> float:
        """A slow machine floods slowly: it gets more time until the reason is shown."""
        whole = seconds if any(reason in detail for _, detail in shown) else max(60.0, seconds)
        return began + whole - time.monotonic()

    def end() -> None:
        if (left := left_s()) > 0:
            loop.call_later(left, end)
        else:
            loop.stop()

    loop.call_later(seconds, end)
    loop.run_forever()
    used, wall = time.process_time() - cpu, time.monotonic() - began
    peak = resident_mb("VmHWM")
    assert connection.client is not None
    closing = time.monotonic()
    connection.client.close()
    closed = time.monotonic() - closing

    def is_shown_as_closed() -> bool:
        connection.inbox.drain(1.0, take)
        return shown[-1][0] == "closed"

    eventually(is_shown_as_closed, 5)
    return Outcome(peak - memory, used / wall, closed, len(connections), shown, threading.active_count(), wall)


def resident_mb(field: str, pid: int | str = "self") -> float:
    """A line of a process's ``/proc/PID/status`` in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1_000 for line in lines if line.startswith(field))


if __name__ == "__main__":
    print(json.dumps(asdict(main(sys.argv[1], float(sys.argv[2])))))
