"""What the box view shows: the window of time, the machine's facts, the sessions. No Textual."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_train.history.cost import dollars
from grpo_train.run_dir.display import duration
from grpo_train.run_dir.files import utc_from
from grpo_tui.box.asking import SOON_S, Asking
from grpo_tui.box.export import table_of
from grpo_tui.box.formatting import money, one_line
from grpo_tui.box.gpus import IDLE_TOLD_S, BoxHistory
from grpo_tui.box.rows import command_of
from grpo_tui.box.store import Store

WINDOWS = (600, 1_800, 7_200, 21_600, 86_400, 0)
"""Seconds; 0 = the whole life of the box."""
FACTS_S = 2.0
FILL_S = 60.0
MAX_RUNS = 8
"""Runs whose samples are requested for one window."""
MAX_SESSIONS = 20
SIZES_S = 60.0
"""Pause between two requests for the sizes of the checkpoints."""
FILL_COLUMNS = 240
GPU = ("time", "gpu", "use_percent", "memory_mib", "power_w", "temperature_c")
"""Columns of the saved table."""


@dataclass(frozen=True)
class Quantity:
    """What the charts of the GPUs show."""

    name: str
    unit: str
    field: str
    """Of a Sample …"""
    key: str
    """… and of a GPU as the box sends it."""
    scale: float = 1.0
    """Of its unit."""


QUANTITIES = (
    Quantity("use", "%", "use", "utilization_percent"),
    Quantity("memory", "GiB", "memory_mib", "memory_used_mib", 1 / 1024),
    Quantity("power", "W", "power_w", "power_w"),
    Quantity("temperature", "°C", "temperature_c", "temperature_c"),
)


@dataclass
class BoxView:
    """The view of one box."""

    history: BoxHistory
    window: int = 7_200
    shown: Quantity = QUANTITIES[0]
    facts: Mapping[str, Any] | None = None
    facts_at: float = 0.0
    lines: dict[str, str] = field(default_factory=dict)
    """The last line of each session."""
    sizes: Mapping[str, Any] | None = None
    """The last reply to ``checkpoint_sizes``."""
    version: int = 0
    asked: dict[str, Asking] = field(default_factory=lambda: defaultdict(Asking))
    """By what is asked for."""
    _filled: object = None

    def is_due(self, what: str, every_s: float) -> bool:
        """Whether a request is due; it is in flight then."""
        if what == "sizes" and self.sizes is not None and self.sizes["unmeasured"]:
            every_s = SOON_S
        return self.asked[what].begin(what, every_s)

    def ended(self, what: str, problem: str = "") -> None:
        """A request was answered, or failed."""
        self.asked[what].end(what, problem)
        self.version += 1

    def take_sizes(self, reply: Mapping[str, Any]) -> None:
        """Take a reply to ``checkpoint_sizes``; while runs are left to measure, the next request is due soon."""
        self.sizes = reply
        self.ended("sizes")

    def zoom(self, by: int) -> str:
        """A longer (+1) or a shorter (-1) window; returns its name."""
        place = WINDOWS.index(self.window) + by
        self.window = WINDOWS[min(len(WINDOWS) - 1, max(0, place))]
        self.asked["fill"].forget()
        self.version += 1
        return self.name

    def next_quantity(self) -> None:
        """Turn to the next quantity."""
        self.shown = QUANTITIES[(QUANTITIES.index(self.shown) + 1) % len(QUANTITIES)]
        self.version += 1

    @property
    def name(self) -> str:
        """The window in words."""
        names = {600: "last 10 minutes", 1_800: "last 30 minutes", 7_200: "last 2 hours", 21_600: "last 6 hours"}
        return names.get(self.window, "last 24 hours" if self.window else "the whole life of the box")

    def ends(self, store: Store) -> tuple[float, float]:
        """The range of time on this machine's clock."""
        now = store.now()
        if self.window:
            return now - self.window, now
        uptime = self.facts.get("uptime_s") if self.facts else None
        began = now - uptime if uptime else self.history.began or now - 600
        return min(began, now - 600), now

    def runs(self, store: Store) -> list[str]:
        """The runs that may have samples in the window, the newest first."""
        seconds = self.ends(store)[1] - self.ends(store)[0]
        found = []
        for row in store.runs or ():
            age = 0.0 if row.is_live else store.age(row.updated_at)
            if row.layout == "run" and not row.is_unreadable and age is not None and age < seconds:
                found.append(row.name)
        return found[:MAX_RUNS]

    def take_facts(self, reply: Mapping[str, Any], now: float) -> None:
        """Take a reply to ``box_facts``."""
        self.facts, self.facts_at = reply, now
        self.history.facts(reply, now)
        self.ended("facts")

    def machine(self, store: Store, address: str) -> dict[str, str]:
        """What the box is, by ``gpus`` (``2× H200``), ``address`` and ``uptime`` (only while it is connected)."""
        models = Counter(one_line(str(gpu["name"])) for gpu in store.gpus or () if gpu.get("name"))
        gpus = " + ".join(f"{count}× {model.removeprefix('NVIDIA ')}" for model, count in models.items())
        found = {"gpus": gpus, "address": address}
        uptime = self.history.uptime_s(store.now())
        if uptime is not None and store.connected:
            found["uptime"] = f"up {duration(uptime)}"
        return {name: text for name, text in found.items() if text}

    def idle_for(self, index: int, store: Store) -> float:
        """Seconds that a GPU has been idle, once that is long enough to point out; else 0."""
        seconds = self.history.idle_for(index, store.now())
        return seconds if seconds >= IDLE_TOLD_S else 0.0

    def idle(self, store: Store) -> list[str]:
        """``GPU 1 idle for 22 min: $0.46, its share of the price``, for each that has been idle for long."""
        gpus = [gpu for gpu in store.gpus or () if gpu.get("index") is not None]
        told = []
        for gpu in gpus:
            if seconds := self.idle_for(int(gpu["index"]), store):
                price = store.price_per_hour
                share = None if price is None else dollars(price / len(gpus), seconds)
                cost = f": {money(share)}, its share of the price" if share is not None else ""
                told.append(f"GPU {int(gpu['index'])} idle for {duration(seconds)}{cost}")
        return told


def what_of(session: Mapping[str, Any], runs: Iterable[str]) -> str:
    """What a session is: ``training``, ``evaluation``, ``backup`` or another command on backups, or ``not ours``."""
    run = session.get("run") or (session["name"] if session["name"] in runs else "")
    if not run:
        return "not ours"
    name = str(session["name"])
    if command := command_of(name, run):
        return command
    return "evaluation" if name.startswith("eval_") else "training"


def state_of(session: Mapping[str, Any]) -> str:
    """``running``, ``done``, or how it failed."""
    if not session.get("dead"):
        return "running"
    if session.get("signal"):
        return f"killed by {session['signal']}"
    status = session.get("exit_status")
    return "done" if not status else f"failed ({status:.0f})"


def gpu_table(history: BoxHistory, low: float, high: float) -> tuple[str, int]:
    """A CSV table of what the GPUs did in a range of time, and the number of its samples."""
    found = [
        (one.at, index, one.use, one.memory_mib, one.power_w, one.temperature_c)
        for index in sorted({*history.own, *history.filled})
        for one in history.samples(index, low, high)
    ]
    rows = ([utc_from(at), *values] for at, *values in sorted(found, key=lambda sample: sample[:2]))
    return table_of(GPU, rows), len(found)
