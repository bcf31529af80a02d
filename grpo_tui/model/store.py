"""All that the face knows of one box, as plain values. No Textual, no sockets: client events in, facts out.

Owned by one thread (the app's). The client's thread only puts events into an :class:`Inbox`; the app empties it.
Each topic has a version that moves when something changed, so that a widget repaints only then.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.files import number, parse_time
from grpo_tui.model.checkpoints import CheckpointView, checkpoint_views
from grpo_tui.model.formatting import LIVE, Freshness, duration, short_age
from grpo_tui.model.run_logs import RunLogs
from remote.events import (
    BoxGreeted,
    ClientEvent,
    GpuSampled,
    HostKeyAsked,
    Link,
    LinkChanged,
    LogArrived,
    LogFailed,
    LogRotated,
    RunsReported,
    SessionsReported,
)

STALE_STEPS = 5
"""A live run's data is stale after so many typical steps without a new row …"""
STALE_FLOOR_S = 30.0
"""… and never sooner than this …"""
STARTING_FLOOR_S = 180.0
"""… or than this while its model is loaded."""


class Inbox:
    """Events from the client's thread, in order. ``wake`` is called once per batch, from that thread."""

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._events: deque[ClientEvent] = deque()
        self._woken = False
        self.wake = wake

    def put(self, event: ClientEvent) -> None:
        self._events.append(event)
        if not self._woken:
            self._woken = True
            self.wake()

    def drain(self, seconds: float, apply: Callable[[ClientEvent], None]) -> bool:
        """Apply events for at most ``seconds``; True when some are left (and nobody will be woken for them)."""
        deadline = time.monotonic() + seconds
        while self._events:
            apply(self._events.popleft())
            if self._events and time.monotonic() > deadline:
                return True
        self._woken = False
        return bool(self._events)


@dataclass(frozen=True)
class RunRow:
    """A run as the list shows it."""

    name: str
    state: str
    host: str = ""
    step: int = 0
    total_steps: int | None = None
    reward: float | None = None
    step_seconds: float | None = None
    logged_at: float | None = None
    run_seconds: float | None = None
    updated_at: float | None = None
    stage: str = ""
    error: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    nproc: int | None = None
    stop_asked: bool = False
    layout: str = "run"

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @classmethod
    def from_summary(cls, row: dict[str, Any]) -> RunRow:
        """From a row of ``RunDir.summary()``; whatever is missing is unknown."""
        error = row.get("error")
        total = number(row.get("total_steps"))
        return cls(
            name=str(row.get("run", "")),
            state=str(row.get("state", "")),
            host=str(row.get("host") or ""),
            step=int(number(row.get("step")) or 0),
            total_steps=None if total is None else int(total),
            reward=number(row.get("reward")),
            step_seconds=number(row.get("step_seconds")),
            logged_at=_time_or_none(row.get("logged_at")),
            run_seconds=number(row.get("run_seconds")),
            updated_at=_time_or_none(row.get("updated_at")),
            stage=str(row.get("stage") or ""),
            error=error if isinstance(error, dict) else {"summary": str(error)} if error else {},
            restarts=int(number(row.get("restarts")) or 0),
            nproc=None if number(row.get("nproc")) is None else int(number(row.get("nproc")) or 1),
            stop_asked=bool(row.get("stop_asked")),
            layout=str(row.get("layout", "run")),
        )


class Store:
    """The facts about one box and the run that is selected on it."""

    def __init__(self, box: str, price_per_hour: float | None = None, now: Callable[[], float] = time.time) -> None:
        self.box = box
        self.price_per_hour = price_per_hour
        self.now = now
        self.link = LinkChanged(Link.CONNECTING)
        self.link_since = now()
        self.link_at = now()
        """When the link last said anything: the base of ``retry_in_s``."""
        self.ever_connected = False
        self.host: dict[str, Any] | None = None
        self.clock_skew = 0.0
        """Seconds to add to a time of the box to have this machine's."""
        self.checks: list[dict[str, Any]] = []
        """What the box's doctor found: name, ok, detail, hint."""
        self.host_key: HostKeyAsked | None = None
        self.runs: list[RunRow] | None = None
        """Newest first; None before the first report."""
        self.selected: str | None = None
        self.logs: RunLogs | None = None
        self.sessions: list[dict[str, Any]] = []
        self.gpus: list[dict[str, Any]] | None = None
        self.gpu_note = ""
        self.gpu_at = now()
        self.shown: dict[str, Any] = {}
        """The box's last answer to show_run for the selected run."""
        self.shown_at: float | None = None
        self._views: list[CheckpointView] = []
        self.versions = dict.fromkeys(("link", "runs", "selected", "shown", "sessions", "gpu"), 0)
        self._subscriptions: dict[int, str] = {}

    # in ------------------------------------------------------------------------------------------------

    def apply(self, event: ClientEvent) -> None:
        """Take one event."""
        if isinstance(event, LogArrived):
            self._feed(event.subscription, event.offset, event.data)
        elif isinstance(event, LogRotated):
            if self.logs and (log := self._subscriptions.get(event.subscription)):
                self.logs.reset(log)
        elif isinstance(event, LogFailed):
            if self.logs and (log := self._subscriptions.get(event.subscription)):
                self.logs.problems[log] = event.message
        elif isinstance(event, LinkChanged):
            self._link_changed(event)
        elif isinstance(event, RunsReported):
            self.runs = [RunRow.from_summary(row) for row in event.runs]
            self._moved("runs")
        elif isinstance(event, SessionsReported):
            self.sessions = event.sessions
            self._moved("sessions")
        elif isinstance(event, GpuSampled):
            self.gpus, self.gpu_note, self.gpu_at = event.gpus, event.note, self.now()
            self._moved("gpu")
        elif isinstance(event, BoxGreeted):
            self.host = event.host
            if (box_time := number(event.host.get("time"))) is not None:
                self.clock_skew = self.now() - box_time
            self._moved("link")
        elif isinstance(event, HostKeyAsked):
            self.host_key = event
            self._moved("link")

    def select(self, run: str | None) -> None:
        """Turn to another run; its logs start empty."""
        if run == self.selected:
            return
        self.selected = run
        self.logs = RunLogs(run) if run else None
        self.shown, self.shown_at, self._views = {}, None, []
        self._subscriptions = {}
        self._moved("selected")

    def subscribed(self, subscription: int, log: str) -> None:
        """A follow of the selected run's log goes by this id; bytes of unknown ids are passed over."""
        self._subscriptions[subscription] = log

    def show(self, run: str, answer: dict[str, Any]) -> None:
        """The box's answer to show_run."""
        if run == self.selected:
            if answer != self.shown:
                self.shown, self._views = answer, checkpoint_views(run, answer)
                self._moved("shown")
            self.shown_at = self.now()

    def examined(self, answer: dict[str, Any]) -> None:
        """The box's answer to doctor."""
        self.checks = [check for check in answer.get("checks") or () if isinstance(check, dict)]
        self._moved("link")

    # out -----------------------------------------------------------------------------------------------

    @property
    def run(self) -> RunRow | None:
        """The selected run's row."""
        return next((row for row in self.runs or () if row.name == self.selected), None)

    @property
    def connected(self) -> bool:
        return self.link.state in (Link.CONNECTED, Link.STALE)

    @property
    def step(self) -> int:
        """The selected run's last step: the log's, which is newer than the list's."""
        row = self.run
        from_log = self.logs.last_step if self.logs else None
        return from_log if from_log is not None else row.step if row else 0

    def age(self, at: float | None) -> float | None:
        """Seconds since a time by the box's clock."""
        return None if at is None else max(0.0, self.now() - (at + self.clock_skew))

    def row_age(self, row: RunRow) -> float | None:
        """Age of the newest thing known of a run."""
        logged = row.logged_at
        if row.name == self.selected and self.logs and self.logs.last_time:
            logged = max(logged or 0.0, self.logs.last_time)
        if row.state == "starting" and row.updated_at is not None:  # a resumed run's log is as old as its last stop
            logged = max(logged or 0.0, row.updated_at)
        return self.age(logged if logged is not None else row.updated_at)

    def row_tone(self, row: RunRow) -> str:
        """``live`` while a live run logs as it should, ``warn`` when it has fallen silent, ``rest`` when it is over."""
        if not row.is_live:
            return "rest"
        if not self.connected:
            return "bad"
        age = self.row_age(row)
        floor = STARTING_FLOOR_S if row.state == "starting" else STALE_FLOOR_S
        patience = max(floor, STALE_STEPS * (self.step_seconds(row) or 0.0))
        return "warn" if age is not None and age > patience else "live"

    def freshness(self) -> Freshness:
        """Of the selected run's data, for the panels that show it."""
        row = self.run
        if row is None:
            return Freshness()
        age = self.row_age(row)
        tone = self.row_tone(row)
        if age is None:
            return Freshness("no data yet", tone)
        if tone == "bad":
            return Freshness(f"link lost · {short_age(age)} old", tone)
        if tone == "warn":
            return Freshness(f"stale {short_age(age)}", tone)
        return Freshness(f"{short_age(age)} ago", tone)

    def gpu_freshness(self) -> Freshness:
        """Of the GPU samples."""
        age = self.now() - self.gpu_at
        if not self.connected:
            return Freshness(f"link lost · {short_age(age)} old", "bad")
        return Freshness(f"stale {short_age(age)}", "warn") if age > STALE_FLOOR_S else Freshness("now", "live")

    def checkpoints(self) -> list[CheckpointView]:
        """The selected run's checkpoints, newest first."""
        return self._views

    def step_seconds(self, row: RunRow) -> float | None:
        """A typical recent step of a run."""
        if row.name == self.selected and self.logs and (median := self.logs.step_seconds()) is not None:
            return median
        return row.step_seconds

    def eta(self) -> float | None:
        """Seconds to the selected run's last step at its present pace, or None."""
        row = self.run
        if row is None or not row.is_live or row.total_steps is None:
            return None
        pace = self.step_seconds(row)
        return None if pace is None else max(0, row.total_steps - self.step) * pace

    def cost(self) -> float | None:
        """Dollars the selected run has cost so far, or None where the price or its time is unknown."""
        row = self.run
        if row is None or self.price_per_hour is None or row.run_seconds is None:
            return None
        since = self.age(row.updated_at) if row.is_live and self.connected else 0.0
        return self.price_per_hour * (row.run_seconds + min(since or 0.0, 60.0)) / 3600

    def ailment(self) -> dict[str, Any] | None:
        """The first thing that keeps this box from training, as its doctor says it, or None."""
        vital = ("engine", "tmux", "root")
        return next((check for check in self.checks if check.get("name") in vital and not check.get("ok")), None)

    def live_runs(self) -> list[RunRow]:
        """Runs that go on."""
        return [row for row in self.runs or () if row.is_live]

    def sessions_of(self, run: str) -> list[str]:
        """Names of the tmux sessions that belong to a run, the training one first."""
        mine = [
            str(session.get("name", ""))
            for session in self.sessions
            if not session.get("dead") and (session.get("run") or session.get("name")) == run
        ]
        return sorted(mine, key=lambda name: name.startswith("eval_"))

    def evaluating(self) -> bool:
        """Whether an evaluation of the selected run goes on in a session of its own."""
        return any(name.startswith("eval_") for name in self.sessions_of(self.selected or ""))

    def stage_times(self) -> list[tuple[str, float]]:
        """Mean seconds of each stage of the last 15 steps (``time/*`` without ``time/step``), longest first.

        A stage that takes no time is one that this run does without.
        """
        if self.logs is None:
            return []
        found = []
        for key, series in self.logs.series.items():
            if key.startswith("time/") and key != "time/step" and (recent := series.recent(15)):
                found.append((key.removeprefix("time/"), statistics.fmean(recent)))
        return sorted((stage for stage in found if stage[1] > 0), key=lambda stage: -stage[1])

    def link_words(self) -> tuple[str, str]:
        """The link in words, and the tone: ``live warn bad busy``."""
        link, since = self.link, self.now() - self.link_since
        if link.state is Link.CONNECTED:
            return (f"{link.latency_ms:.0f} ms" if link.latency_ms is not None else "connected"), "live"
        if link.state is Link.CONNECTING:
            return "connecting …", "busy"
        if link.state is Link.STALE:
            return f"silent for {duration(since + 5)}", "warn"
        if link.state is Link.LOST:
            words = f"link lost {duration(since)} ago"
            if link.retry_in_s is not None:
                left = max(0.0, link.retry_in_s - (self.now() - self.link_at))
                words += f", retrying in {duration(left)}" if left >= 1 else ", retrying now"
            return words, "bad"
        return ("refused", "bad") if link.state is Link.REFUSED else ("closed", "rest")

    # inside --------------------------------------------------------------------------------------------

    def _moved(self, topic: str) -> None:
        self.versions[topic] += 1

    def _link_changed(self, event: LinkChanged) -> None:
        if event.state is not self.link.state:
            retrying = {self.link.state, event.state} == {Link.LOST, Link.CONNECTING} and self.ever_connected
            if not retrying:
                self.link_since = self.now()
        # Reconnecting is still a lost link to the user, until it stands again.
        if event.state is Link.CONNECTING and self.ever_connected and self.link.state is Link.LOST:
            event = LinkChanged(Link.LOST, event.detail or self.link.detail, retry_in_s=0.0)
        self.link, self.link_at = event, self.now()
        self.ever_connected |= event.state is Link.CONNECTED
        if event.state is Link.CONNECTED:
            self.host_key = None
        self._moved("link")

    def _feed(self, subscription: int, offset: int, data: bytes) -> None:
        log = self._subscriptions.get(subscription)
        if self.logs is not None and log is not None:
            self.logs.feed(log, offset, data)


def _time_or_none(value: Any) -> float | None:
    try:
        return parse_time(str(value)) if value else None
    except ValueError:
        return None
