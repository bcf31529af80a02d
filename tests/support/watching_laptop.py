"""A laptop that follows logs, as a process: ``python -m tests.support.watching_laptop ORDERS.json``.

``events.jsonl`` gets what the client says, one object per line with the time on the monotonic clock. The bytes that
arrive of log N are written to ``N.0``, after its first rotation to ``N.1``, and so on. It ends with its input.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from remote.boxes import Box
from remote.client import BoxClient
from remote.events import (
    BoxGreeted,
    ClientEvent,
    ClockMeasured,
    GpuSampled,
    LinkChanged,
    LogArrived,
    LogRotated,
    RunsReported,
    SessionsReported,
)
from remote.protocol import RemoteError
from remote.transports.transport import Timing

ASK_EVERY_S = 0.5
MOST_PENDING = 8


class Laptop:
    def __init__(self, orders: dict[str, Any]) -> None:
        self.folder = Path(orders["folder"])
        self.run = orders["run"]
        self._events = (self.folder / "events.jsonl").open("a", buffering=1)
        self._contents: Counter[int] = Counter()
        """Subscription to the number of its rotations."""
        self._numbers: dict[int, int] = {}
        self._pending: set[Future[dict[str, Any]]] = set()
        box, timing = Box(**orders["box"]), Timing(**orders["timing"])
        self.client = BoxClient(box, self._on_event, host_keys_file=orders["host_keys"], timing=timing)
        for number, (path, tail_bytes) in enumerate(orders["logs"]):
            self._numbers[self.client.follow(path, tail_bytes=tail_bytes)] = number

    def say(self, event: str, **facts: Any) -> None:
        self._events.write(json.dumps({"at": time.monotonic(), "event": event, **facts}) + "\n")

    def _on_event(self, event: ClientEvent) -> None:
        name = type(event).__name__
        match event:
            case LogArrived(subscription=subscription, data=data):
                file = self.folder / f"{self._numbers[subscription]}.{self._contents[subscription]}"
                with file.open("ab", buffering=0) as copy:
                    copy.write(data)
                self.client.consumed(subscription, len(data))
            case LogRotated(subscription=subscription):
                self._contents[subscription] += 1
                self.say(name, log=self._numbers[subscription])
            case LinkChanged():
                self.say(name, state=event.state.value, detail=event.detail, latency_ms=event.latency_ms)
            case BoxGreeted():
                self.say(name, agent=event.host["pid"])
            case RunsReported(runs=runs):
                self.say(name, runs={row["run"]: row["state"] for row in runs})
            case ClockMeasured(skew_s=skew_s):
                self.say(name, skew_s=skew_s)
            case SessionsReported() | GpuSampled():
                pass
            case _:
                self.say(name, text=str(event))

    def ask(self, number: int) -> None:
        """Send one request."""
        if len(self._pending) >= MOST_PENDING:
            return
        op, params = ("show_run", {"run": self.run}) if number % 2 else ("list_runs", {})
        future = self.client.request(op, **params)
        self._pending.add(future)
        future.add_done_callback(lambda future: self._answered(op, future))

    def _answered(self, op: str, future: Future[dict[str, Any]]) -> None:
        self._pending.discard(future)
        try:
            reply = future.result()
        except RemoteError as error:
            self.say("Failed", op=op, code=error.code, message=error.message)
        else:
            rows = reply["runs"] if op == "list_runs" else [reply["summary"]]
            self.say("Replied", op=op, runs={row["run"]: row["state"] for row in rows})


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    laptop = Laptop(orders)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    laptop.client.start()
    number = 0
    while not ended.wait(ASK_EVERY_S):
        if orders["asks"]:
            number += 1
            laptop.ask(number)
    laptop.client.close()


if __name__ == "__main__":
    main()
