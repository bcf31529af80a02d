"""A link that stands: a live run on a box behind a bad network, and a laptop in a process of its own.

    with standing(folder, "fast", "openssh", seed="1") as lane:
        for kind in kinds:
            lane.survive(kind)
        lane.finish()

A lane has its own sshd, so that lanes can run side by side. The laptop's clock can be set, through libfaketime.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from remote.transports.transport import Timing
from tests.soak.standing_faults import Faults
from tests.support.agent import agents
from tests.support.faketime import faked_clock, forget_clocks
from tests.support.flooded_client import resident_mb
from tests.support.log_loads import RUN, Load
from tests.support.opening import Kind, Lane, opening
from tests.support.truth import Event, Trouble, assert_truthful

REPOSITORY = Path(__file__).resolve().parents[2]
LEAK_AFTER = 10
"""Faults until descriptors, threads and memory are first counted."""
AGENT_OUTLIVES_S = 15.0
GROWTH_MB = 20.0
RECOVER_S = 120.0
AGENTS_EVERY_S = 2.0


class Standing:
    """One laptop, one link, one box with one load."""

    def __init__(self, folder: Path, load: Load, lane: Lane, seed: str, pace: float) -> None:
        self.name = f"{lane.box.transport} {seed}"
        self.load, self.proxy, self.timing, self.home = load, lane.proxy, lane.timing, lane.sshd.home
        self.chance = random.Random(seed)
        self.offset_s = 0.0
        """Of the laptop's clock."""
        self.received = folder / "received"
        self.received.mkdir()
        self.events: list[Event] = []
        self.troubles: list[Trouble] = []
        self.memory_mb: list[float] = []
        """Of the laptop after each fault."""
        self.counted: tuple[int, ...] | None = None
        """Descriptors, threads and children of the laptop after ten faults …"""
        self.counted_at_end: tuple[int, ...] | None = None
        """… and at the end."""
        self.faults = Faults(self, self.chance, pace)
        self._clock = folder / "clock"
        self._read = 0
        self._agents: dict[int, float] = {}
        """Agents, and when each was first seen."""
        self._looked = 0.0
        self._stopped = False
        self.set_clock(0)
        self.job = _process("log_loads", load.name, load.root, seed, load.rate)
        assert self.job.stdout is not None
        assert self.job.stdout.readline() == b"started\n"
        orders = {
            "box": asdict(replace(lane.box, root=str(load.root), price_per_hour=None)),
            "timing": asdict(lane.timing),
            "host_keys": str(lane.hosts),
            "folder": str(self.received),
            "run": RUN,
            "logs": load.follows(),
            "asks": load.name == "trickle",
        }
        (folder / "orders.json").write_text(json.dumps(orders))
        self.laptop = _process("watching_laptop", folder / "orders.json", environment=faked_clock(self._clock))

    # ------------------------------------------------------------------------------------------------- time passes

    def until(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait for a condition, and watch the agents meanwhile."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"{self.name}: timed out after {timeout} s: {what}"
            self._look()
            time.sleep(0.05)

    def pass_time(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._look()
            time.sleep(min(0.1, left))

    def _look(self) -> None:
        self._read_events()
        now = time.monotonic()
        if now - self._looked > AGENTS_EVERY_S:
            self._looked = now
            self._check_agents(now)
            assert self.laptop.poll() is None, f"{self.name}: the laptop ended"

    def _read_events(self) -> None:
        file = self.received / "events.jsonl"
        if not file.exists():
            return
        with file.open("rb") as stream:
            stream.seek(self._read)
            data = stream.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        self.events += map(json.loads, data.splitlines())

    def _check_agents(self, now: float) -> None:
        """No agent is older than 15 s after the laptop dropped its connection."""
        alive = agents(self.home)
        self._agents = {pid: self._agents.get(pid, now) for pid in alive}
        ends = [e["at"] for e in self.events if e["event"] == "LinkChanged" and e["state"] in ("lost", "closed")]
        for pid, seen in self._agents.items():
            left = min((at for at in ends if at >= seen), default=now)
            late = f"{self.name}: agent {pid} lives {now - left:.1f} s after its client"
            assert now - left <= AGENT_OUTLIVES_S + AGENTS_EVERY_S, late

    # ------------------------------------------------------------------------------------------------- the laptop

    @property
    def agent(self) -> int | None:
        """Pid of the agent that greeted last."""
        return next((event["agent"] for event in reversed(self.events) if event["event"] == "BoxGreeted"), None)

    @property
    def link(self) -> str:
        """State of the link, as the laptop shows it."""
        return next((e["state"] for e in reversed(self.events) if e["event"] == "LinkChanged"), "")

    @property
    def skew_s(self) -> float | None:
        """Difference of the clocks, as the laptop shows it."""
        return next((e["skew_s"] for e in reversed(self.events) if e["event"] == "ClockMeasured"), None)

    def set_clock(self, offset_s: float) -> None:
        """Set the laptop's clock."""
        self.offset_s = offset_s
        staged = self._clock.with_suffix(".new")
        staged.write_text(f"{offset_s:+.0f}s")
        staged.rename(self._clock)

    def catch_up(self, timeout: float = RECOVER_S) -> None:
        """Wait until the laptop has everything that has been written so far, and something that came later."""
        before = self.load.written()
        self.until(lambda: self._stopped or self.load.written() != before, 30, "a line")
        written = self.load.written()
        self.until(lambda: self.load.has_arrived(written, self.received), timeout, "the logs arrive")
        self.until(lambda: self.link == "connected", timeout, "the link is shown as connected")

    def count(self) -> tuple[int, ...]:
        """Descriptors, threads and children of the laptop."""
        laptop = psutil.Process(self.laptop.pid)
        return laptop.num_fds(), laptop.num_threads(), len(laptop.children())

    # ------------------------------------------------------------------------------------------------- faults

    def survive(self, kind: str) -> None:
        """Let a fault happen, and mostly wait until the link has recovered by itself."""
        trouble = self.faults.strike(kind)
        self.troubles.append(trouble)
        if len(self.troubles) == LEAK_AFTER or self.chance.random() < 0.8:
            self.catch_up()
        trouble.settled = time.monotonic()
        self.memory_mb.append(resident_mb("VmRSS", self.laptop.pid))
        if len(self.troubles) == LEAK_AFTER:
            self.counted = self._count_at_rest()

    def _count_at_rest(self) -> tuple[int, ...]:
        """The least that the laptop uses within some seconds."""
        counts = []
        for _ in range(20):
            self.pass_time(0.1)
            counts.append(self.count())
        return tuple(map(min, *counts))

    def finish(self) -> int:
        """Check everything that was promised; returns the bytes that arrived."""
        assert self.job.stdin is not None
        assert self.job.stdout is not None
        self.catch_up()
        self.job.stdin.write(b"\n")
        self.job.stdin.flush()
        assert self.job.stdout.readline() == b"stopped\n"
        self._stopped = True
        self.catch_up()
        self.pass_time(1.0)  # for bytes that arrive twice
        self.until(lambda: abs((self.skew_s or 0) - self.offset_s) < 2, 10, f"the clock is {self.offset_s} s ahead")
        if (counted := self.counted) is not None:
            leaked = f"{self.count()} descriptors, threads, children; {counted} before"
            self.until(lambda: all(map(int.__le__, self.count(), counted)), 20, leaked)
            self.counted_at_end = self.count()
        total = self.load.assert_equal(self.received)
        self.close()
        self._read_events()
        assert_truthful(self.events, self.troubles, self.timing)
        early = self.memory_mb[:LEAK_AFTER][-1:]
        growth = max(self.memory_mb[LEAK_AFTER - 1 :], default=0) - early[0] if self.memory_mb[LEAK_AFTER - 1 :] else 0
        assert growth <= GROWTH_MB, f"{self.name}: {growth:.0f} MB more than after {LEAK_AFTER} faults"
        return total

    def report(self, total: int) -> str:
        """The faults and the figures of this lane."""
        kinds = dict(Counter(trouble.kind for trouble in self.troubles))
        memory = f"{self.memory_mb[0]:.0f} to {self.memory_mb[-1]:.0f} MB, at most {max(self.memory_mb):.0f}"
        counted = f"descriptors, threads, children: {self.counted}, {self.counted_at_end}"
        return f"{self.name}: {len(self.troubles)} faults {kinds}; {total:,} bytes equal; {memory}; {counted}"

    def close(self) -> None:
        """End the laptop; its agents then end."""
        assert self.laptop.stdin is not None
        self.laptop.stdin.close()
        self.laptop.wait(60)
        left = time.monotonic()
        while agents(self.home):
            assert time.monotonic() - left < AGENT_OUTLIVES_S, f"{self.name}: an agent is left"
            time.sleep(0.1)

    def end(self) -> None:
        """End every process."""
        for process in (self.laptop, self.job):
            process.kill()
            process.wait()
        forget_clocks()


@contextmanager
def standing(
    folder: Path, load: str, transport: Kind, *, seed: str, timing: Timing | None = None, pace: float = 1.0,
    rate: float = 0,
) -> Iterator[Standing]:  # fmt: skip
    """A lane whose link is up. ``pace`` scales the length of its faults, ``rate`` sets its lines/s."""
    with opening(folder, timing or Timing(), transport) as road:
        (folder / "root").mkdir()
        lane = Standing(folder, Load(load, folder / "root", rate), road, seed, pace)
        try:
            lane.until(lambda: lane.link == "connected", 60, "the first connection")
            yield lane
        finally:
            lane.end()


def _process(module: str, *arguments: object, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"tests.support.{module}", *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
