"""What the GPUs and the processor of a box did, and what to do about a GPU that idles. No Textual."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.box.formatting import shortened
from grpo_tui.box.store import Store
from remote.protocol.box import NO_VALUE
from remote.protocol.rows import UNREADABLE

IDLE_TOLD_S = 300.0
"""An idle GPU is pointed out from then on."""
NAME = 24
"""Cells of a run's name."""


def unlisted(gpu: Mapping[str, Any]) -> str:
    """What there is to say about the use of a GPU without a listed process; "" for one that is free."""
    if gpu.get("free"):
        return ""
    return "use not known" if gpu.get("free") is None else "in use, process not listed"


def advice(store: Store, gpu: Mapping[str, Any], key: Callable[[str], str]) -> str:
    """What a person can do about an idle GPU; "" where the app does not know. ``key``: text of an action's key."""
    processes = [process for process in gpu.get("processes") or () if process.get("pid") is not None]
    live = store.live_runs()
    if not processes and gpu.get("free") is False:
        return "held by a process that is not listed, such as one of another container"
    if processes:
        runs = [str(process["run"]) for process in processes if process.get("run")]
        if not runs:
            one = processes[0]
            return f"held by {one.get('name') or 'a process'} (pid {one['pid']:.0f}), which is not ours"
        if runs[0] in {row.name for row in live}:
            return f"{shortened(runs[0], NAME)} is waiting: {key('logs')} shows its logs"
        return f"{shortened(runs[0], NAME)} is over: kill pid {processes[0]['pid']:.0f} in a shell on the box"
    if not live:
        return f"{key('home')}, then {key('launch')} launches a run"
    count = len(store.gpus or ())
    few = next((row for row in live if row.nproc is not None and row.nproc < count and not row.host), None)
    if few is None:
        return ""
    name = shortened(few.name, NAME)
    return f"{key('stop')} stops {name}, {key('resume')} resumes it on {count} GPUs"


EVERY_S = 2.0
KEPT = 20_000
"""Own samples: 11 hours."""
IDLE = 5.0
"""Use in percent below which a GPU is idle."""
JOINED_S = 300.0
"""Samples of a run that end this long before the own ones begin continue them."""
FIELDS = ("utilization_percent", "memory_used_mib", "power_w", "temperature_c")


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one time; unknown values are None."""

    at: float
    """On this machine's clock."""
    use: float | None
    memory_mib: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass
class BoxHistory:
    """Samples by GPU, and when the link was lost."""

    own: dict[int, deque[GpuSample]] = field(default_factory=dict)
    filled: dict[int, list[GpuSample]] = field(default_factory=dict)
    """From the logs of runs, for the window that is shown."""
    cpu: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    memory: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    disks: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    lost: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=1_000))
    """Begin and end of each time without a link."""
    began: float | None = None
    _sampled_at: float = 0.0
    _lost_since: float | None = None
    machine: Mapping[str, Any] | None = None
    """The last reply to ``box_facts`` …"""
    machine_at: float = 0.0
    """… and when it came."""
    last_used: dict[int, tuple[str, float]] = field(default_factory=dict)
    """GPU to the run that had a process on it last, and when."""
    _idle_since: dict[int, float] = field(default_factory=dict)
    _idle_before: dict[int, tuple[float, float]] = field(default_factory=dict)
    """GPU to begin and end of the time in which the last samples of runs have no use."""

    def take(self, store: Store) -> None:
        """Sample the GPUs as they are known now. The box sends only what changed: without news they are as before."""
        now = store.now()
        if self.began is None and store.connected:
            self.began = now
        if not store.connected:
            if self._lost_since is None and self.began is not None:
                self._lost_since = now
            return
        if self._lost_since is not None:
            self.lost.append((self._lost_since, now))
            self._lost_since = None
        if now - self._sampled_at < EVERY_S or store.topic_problem("gpu") or store.gpus is None:
            return
        self._sampled_at = now
        for gpu in store.gpus:
            if UNREADABLE not in gpu and (index := gpu.get("index")) is not None:
                runs = [str(process["run"]) for process in gpu.get("processes") or () if process.get("run")]
                if runs:
                    self.last_used[int(index)] = (", ".join(dict.fromkeys(runs)), now)
                values = [gpu.get(name) for name in FIELDS]
                self.own.setdefault(int(index), deque(maxlen=KEPT)).append(GpuSample(now, *values))
                if values[0] is not None and values[0] < IDLE:
                    self._idle_since.setdefault(int(index), now)
                else:
                    self._idle_since.pop(int(index), None)

    def facts(self, reply: Mapping[str, Any], now: float) -> None:
        """Take a reply to ``box_facts``."""
        self.machine, self.machine_at = reply, now
        if (percent := reply.get("cpu_percent")) is not None:
            self.cpu.append((now, percent))
        used, total = reply.get("memory_used_mib"), reply.get("memory_total_mib")
        if used is not None and total:
            self.memory.append((now, 100 * used / total))
        for disk in reply.get("disks", ()):
            if UNREADABLE not in disk and "used" in disk:
                self.disks.setdefault(disk["path"], deque(maxlen=KEPT)).append((now, disk["used"]))

    def fill(self, replies: Sequence[Mapping[str, Any]], skew_s: float) -> None:
        """Take replies to ``gpu_history``; times are turned to this machine's clock."""
        self.filled = {}
        for reply in replies:
            for row in reply["histories"]:
                if UNREADABLE in row:
                    continue
                known = self.filled.setdefault(int(row["index"]), [])
                for at, *values in zip(*row["columns"], strict=True):
                    read = [None if value == NO_VALUE else value for value in values]
                    insort(known, GpuSample(at + skew_s, *read), key=lambda sample: sample.at)
        self._idle_before = {}
        for index, known in self.filled.items():
            idle = 0
            while idle < len(known) and (use := known[-1 - idle].use) is not None and use < IDLE:
                idle += 1
            if idle:
                self._idle_before[index] = (known[-idle].at, known[-1].at)

    def samples(self, index: int, low: float, high: float) -> list[GpuSample]:
        """A GPU's samples in a range, in order: the app's own, and those of runs where it has none."""
        own = [sample for sample in self.own.get(index, ()) if low <= sample.at <= high]
        starts = [sample.at for sample in own]
        found = list(own)
        for sample in self.filled.get(index, ()):
            if low <= sample.at <= high:
                place = bisect_left(starts, sample.at)
                near = [abs(starts[at] - sample.at) for at in (place - 1, place) if 0 <= at < len(starts)]
                if not near or min(near) > 3 * EVERY_S:
                    found.append(sample)
        return sorted(found, key=lambda sample: sample.at)

    def lost_within(self, low: float, high: float, now: float) -> list[tuple[float, float]]:
        """The times without a link in a range."""
        open_one = [(self._lost_since, now)] if self._lost_since is not None else []
        spans = [(max(low, begin), min(high, end)) for begin, end in [*self.lost, *open_one]]
        return [span for span in spans if span[0] < span[1]]

    def idle_for(self, index: int, now: float) -> float:
        """Seconds since a GPU was last seen in use, here or by a run; 0 if it is in use."""
        since = self._idle_since.get(index)
        if since is None:
            return 0.0
        begin, end = self._idle_before.get(index, (since, since))
        return max(0.0, now - (min(begin, since) if end >= since - JOINED_S else since))

    def uptime_s(self, now: float) -> float | None:
        """Seconds that the box has been up; None if that is not known."""
        uptime = self.machine.get("uptime_s") if self.machine else None
        return None if uptime is None else float(uptime + now - self.machine_at)

    def today_s(self, now: float) -> float | None:
        """Seconds that the box has been up since midnight on this machine's clock; None if that is not known."""
        uptime = self.uptime_s(now)
        if uptime is None:
            return None
        day = time.localtime(now)
        midnight = time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))
        return min(uptime, max(0.0, now - midnight))

    def free(self) -> tuple[float, float] | None:
        """Free and all bytes of the disk that holds the runs; None if they are not known."""
        for disk in self.machine["disks"] if self.machine else ():
            if disk.get("what") == "root" and disk.get("total"):
                return disk["total"] - disk.get("used", 0.0), disk["total"]
        return None

    def pace(self, path: str) -> float | None:
        """Bytes a second by which a disk fills, over at least ten minutes; None if that is not known."""
        samples = self.disks.get(path)
        if not samples or samples[-1][0] - samples[0][0] < 600:
            return None
        return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
