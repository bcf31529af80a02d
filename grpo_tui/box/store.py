"""State of one box as plain values: client events in, facts out. No Textual, no sockets.

Owned by the app's thread; the client's thread puts events into an :class:`~grpo_tui.box.link.Inbox`. Each topic has
a version that increases with every change, so that a widget repaints only then.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_train.history.cost import dollars
from grpo_train.run_dir.configs import Value, config_values
from grpo_train.run_dir.display import duration
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.sessions import session_name
from grpo_tui.box.asking import LIVE_S, SOON_S, Asking, monotonic
from grpo_tui.box.curves import Curves
from grpo_tui.box.formatting import short_age
from grpo_tui.box.log import LogFiles, RunLogs
from grpo_tui.box.rows import CheckpointView, RunRow, RunRows, checkpoint_views, work_on
from remote.events import (
    BoxGreeted,
    ClientEvent,
    ClockMeasured,
    GpuSampled,
    HostKeyAsked,
    Link,
    LinkChanged,
    LogArrived,
    LogRotated,
    MachineChanged,
    RunsReported,
    SessionsReported,
    TopicFailed,
)
from remote.protocol.frames import UNKNOWN
from remote.protocol.rows import UNREADABLE

SET_S = 10.0
"""A larger change of the difference between the clocks is a clock that was set."""
TOLERATED_S = 5.0
"""A larger difference between the clocks is a warning."""
SET_CLOCK = "sudo timedatectl set-ntp true"
"""The command that sets the clock of a box, and keeps it right."""
KEPT = 20
"""Settings of the box's clock that are remembered."""


class BoxClock:
    """The measured difference between the clocks, and those before the box's clock was set."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._skew_s = 0.0
        """Seconds to add to a time on the box's clock to get this machine's."""
        self._skews: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """The differences and since when, newest first."""
        self._own: float | None = None
        """This machine's clock against its monotonic one at the last measurement; None before the first."""

    def measured(self, skew_s: float) -> None:
        """Take a measurement."""
        own, before = self._now() - time.monotonic(), self._own
        if before is None or abs(own - before) > SET_S:  # this machine's clock was set, or it was suspended
            self._skews.clear()
        if not self._skews:
            self._skews.append((skew_s, -math.inf))
        elif abs(skew_s - self._skew_s) > SET_S:
            self._skews.appendleft((skew_s, self._now()))
        else:
            self._skews[0] = (skew_s, self._skews[0][1])
        self._skew_s, self._own = skew_s, own

    @property
    def skew_s(self) -> float:
        """Seconds to add to a time on the box's clock to get this machine's."""
        return self._skew_s

    def age(self, at: float | None) -> float | None:
        """Seconds since a time on the box's clock, by the clock that the box had when it wrote it."""
        if at is None:
            return None
        now = end = self._now()
        for skew_s, since in self._skews:
            if since - SET_S <= at + skew_s <= end + SET_S:
                return max(0.0, now - (at + skew_s))
            end = since
        return max(0.0, now - (at + self._skew_s))


def clock_check(skew_s: float) -> dict[str, Any]:
    """The finding about a box's clock, in the form of the doctor's."""
    if abs(skew_s) <= TOLERATED_S:
        return {"name": "clock", "ok": True, "detail": f"within {max(1.0, abs(skew_s)):.0f} s"}
    side = "behind" if skew_s > 0 else "ahead"
    return {
        "name": "clock",
        "ok": False,
        "detail": f"{duration(abs(skew_s))} {side}",
        "hint": f"{SET_CLOCK} (on the box)",
    }


class Marks:
    """Names of runs. A mark survives updates of the list, and ends with its run."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def toggle(self, name: str) -> bool:
        """Mark a run, or remove its mark; returns whether it is marked now."""
        if name in self._names:
            del self._names[name]
            return False
        self._names[name] = None
        return True

    def clear(self) -> None:
        """Remove all marks."""
        self._names.clear()

    def keep(self, listed: Container[str]) -> None:
        """Remove the marks of runs that are not listed."""
        self._names = {name: None for name in self._names if name in listed}


class MetricTable:
    """The metrics that a run logs, with their ranges, and when the box is to be asked for them."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.rows: list[dict[str, Any]] = []
        self.ended: dict[str, int] = {}
        """The last step of each metric that later steps lack."""
        self.asking = Asking(now)
        self._is_coarse = True

    def due(self, is_live: bool) -> bool:
        """Whether to ask now; the request is in flight then. A live run's metrics change."""
        return self.asking.begin("metrics", SOON_S if self._is_coarse else LIVE_S if is_live else None)

    @property
    def is_known(self) -> bool:
        """Whether the whole log was read for it."""
        return not self._is_coarse

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``metrics``."""
        self.asking.end("metrics")
        self.recall(reply)
        self._is_coarse = reply["state"] != "whole"

    def recall(self, reply: Mapping[str, Any]) -> None:
        """Show the list that the laptop kept, until the box answers."""
        self.rows = [row for row in reply["metrics"] if UNREADABLE not in row]
        steps = {str(row["name"]): to_float(row.get("last_step")) for row in self.rows}
        newest = max((step for step in steps.values() if step is not None), default=0.0)
        self.ended = {name: round(step) for name, step in steps.items() if step is not None and step < newest}

    def invalidate(self) -> None:
        """The log was replaced: ask anew."""
        self.asking.forget()


TOPIC_NAMES = {"runs": "list", "sessions": "session list", "gpu": "GPU sample"}
CURVE_VIEWS = ("home", "charts")
STALE_STEPS = 5
"""Data of a live run is stale after this many typical steps without a new row …"""
STALE_FLOOR_S = 30.0
"""… and never sooner than this …"""
STARTING_FLOOR_S = 180.0
"""… or than this while the run is starting."""
CHECK_LENGTH = 1_000
"""Maximum characters of a doctor's finding, and of its hint."""


@dataclass(frozen=True)
class Freshness:
    """Age of the data in a panel, as text and as a tone."""

    text: str = ""
    tone: str = "rest"
    """``rest`` (nothing is expected), ``live`` (fresh), ``warn`` (stale) or ``bad`` (the link is lost)."""


class Store:
    """State of one box and of the run that is selected on it."""

    def __init__(self, box: str, price_per_hour: float | None = None, now: Callable[[], float] = time.time) -> None:
        self.box = box
        self.price_per_hour = price_per_hour
        self.now = now
        self.link = LinkChanged(Link.CONNECTING)
        self.link_since = now()
        self.link_at = now()
        """Time of the last link event: ``retry_in_s`` counts from it."""
        self.ever_connected = False
        self.host: dict[str, Any] | None = None
        self.is_other_machine = False
        """Whether it was another machine the last time, and the user was not told yet."""
        self.engine = UNKNOWN
        self._clock = BoxClock(now)
        self.checks: list[dict[str, Any]] = []
        self.doctor = Asking()
        """Findings of the box's doctor: name, ok, detail, hint."""
        self.host_key: HostKeyAsked | None = None
        self.runs: list[RunRow] | None = None
        """Newest first; None before the first report."""
        self.recalled_at: float | None = None
        """When the box sent this list, if the laptop kept it; None if it is of this session."""
        self._rows = RunRows()
        self._by_name: dict[str, RunRow] = {}
        self._live: list[RunRow] = []
        self.marks = Marks()
        self.selected: str | None = None
        self.logs: RunLogs | None = None
        self.curves: dict[str, Curves] = {}
        """Curves of the selected run, by view."""
        self.metrics = MetricTable()
        self._log_files: dict[str, LogFiles] = {}
        self.sessions: list[dict[str, Any]] = []
        self.gpus: list[dict[str, Any]] | None = None
        self.gpu_note = ""
        self.gpu_at = now()
        self.shown: dict[str, Any] = {}
        """The last reply to ``show_run`` for the selected run."""
        self.shown_at: float | None = None
        self._views: list[CheckpointView] = []
        self.topic_at: dict[str, float] = {}
        """Time of the last good value of each topic."""
        self.topic_problems: dict[str, str] = {}
        """Why the box cannot read a topic now."""
        self.versions = dict.fromkeys(("link", "runs", "selected", "shown", "sessions", "gpu"), 0)
        self._subscriptions: dict[int, str] = {}

    # updates -------------------------------------------------------------------------------------------

    def apply(self, event: ClientEvent) -> None:
        """Apply one event."""
        if isinstance(event, LogArrived):
            self._feed(event.subscription, event.offset, event.data)
        elif isinstance(event, LogRotated):
            if self.logs and (log := self._subscriptions.get(event.subscription)):
                self.logs.reset(log)
                if log == "train_log":
                    self._invalidate_curves()
        elif isinstance(event, LinkChanged):
            self._link_changed(event)
        elif isinstance(event, RunsReported):
            self.recalled_at = None
            self._take_runs(event.runs)
            self._read("runs")
        elif isinstance(event, SessionsReported):
            self.sessions = [session for session in event.sessions if UNREADABLE not in session]
            self._read("sessions")
        elif isinstance(event, GpuSampled):
            self.gpus, self.gpu_note, self.gpu_at = event.gpus, event.note, self.now()
            self._read("gpu")
        elif isinstance(event, TopicFailed):
            self.topic_problems[event.topic] = event.message
            self._changed(event.topic)
        elif isinstance(event, BoxGreeted):
            self.host, self.engine = event.host, event.engine
            if (box_time := event.host.get("time")) is not None:
                self._clock.measured(self.now() - box_time)
            self._changed("link")
        elif isinstance(event, MachineChanged):
            self.is_other_machine = True
        elif isinstance(event, ClockMeasured):
            self._clock.measured(event.skew_s)
            self._changed("link")
        elif isinstance(event, HostKeyAsked):
            self.host_key = event
            self._changed("link")

    def recall_runs(self, runs: list[dict[str, Any]], at: float) -> None:
        """Show the list of runs that the laptop kept, until the box sends its own."""
        self.recalled_at = at
        self._take_runs(runs)
        self._changed("runs")

    def _take_runs(self, runs: list[dict[str, Any]]) -> None:
        self.runs = self._rows.of(runs)
        self._by_name = {row.name: row for row in self.runs}
        self._live = [row for row in self.runs if row.is_live]
        self.marks.keep(self._by_name)

    def select(self, run: str | None) -> None:
        """Select another run; its logs start empty."""
        if run == self.selected:
            return
        self.selected = run
        self.logs = RunLogs(run) if run else None
        self.curves = {view: Curves(run) for view in CURVE_VIEWS} if run else {}
        self.metrics = MetricTable()
        self.shown, self.shown_at, self._views = {}, None, []
        self._subscriptions = {}
        self._changed("selected")

    def subscribed(self, subscription: int, log: str) -> None:
        """Register the subscription of a log of the selected run; data of unknown subscriptions is ignored."""
        self._subscriptions[subscription] = log

    def show(self, run: str, reply: dict[str, Any], at: float | None = None) -> None:
        """Apply the reply to ``show_run``, of now or of another time."""
        if run == self.selected:
            if reply != self.shown:
                self.shown, self._views = reply, checkpoint_views(run, reply)
                self._changed("shown")
            self.shown_at = self.now() if at is None else at

    def examined(self, reply: dict[str, Any]) -> None:
        """Apply the reply to ``doctor``."""
        texts = ("detail", "hint")  # shown in whole
        self.checks = [
            {key: value[:CHECK_LENGTH] if key in texts else value for key, value in check.items()}
            for check in reply.get("checks") or ()
        ]
        self._changed("link")

    # facts ---------------------------------------------------------------------------------------------

    @property
    def run(self) -> RunRow | None:
        """Row of the selected run."""
        return self._by_name.get(self.selected or "")

    @property
    def log_files(self) -> LogFiles | None:
        """The files of the selected run."""
        run = self.selected
        return None if run is None else self._log_files.setdefault(run, LogFiles(run))

    @property
    def connected(self) -> bool:
        return self.link.state in (Link.CONNECTED, Link.STALE)

    @property
    def step(self) -> int:
        """Last step of the selected run: from its log, which is newer than the list."""
        row = self.run
        from_log = self.logs.last_step if self.logs and self.loading() is None else None
        return from_log if from_log is not None else row.step if row else 0

    def loading(self) -> float | None:
        """Share of the selected run's training log that has arrived, by its steps; None if all of it has."""
        row, logs = self.run, self.logs
        if row is None or logs is None or row.layout != "run" or row.is_unreadable or row.step <= 0:
            return None
        last = logs.last_step or 0
        return last / row.step if last < row.step else None

    def log_version(self, log: str) -> tuple[str, int] | None:
        """A value that differs whenever this log of the selected run does; None without a run."""
        return (self.logs.run, self.logs.version[log]) if self.logs else None

    def age(self, at: float | None) -> float | None:
        """Seconds since a time on the box's clock."""
        return self._clock.age(at)

    @property
    def skew_s(self) -> float:
        """Seconds to add to a time on the box's clock to get this machine's."""
        return self._clock.skew_s

    def row_age(self, row: RunRow) -> float | None:
        """Age in seconds of the newest data of a run."""
        logged = row.logged_at
        if row.name == self.selected and self.logs and self.logs.last_time:
            logged = max(logged or 0.0, self.logs.last_time)
        if row.state == "starting" and row.updated_at is not None:  # the log of a resumed run is old
            logged = max(logged or 0.0, row.updated_at)
        return self.age(logged if logged is not None else row.updated_at)

    def row_tone(self, row: RunRow) -> str:
        """``live`` if a live run logs as expected, ``warn`` if it is silent, ``bad`` without a link, else ``rest``."""
        if not row.is_live:
            return "rest"
        if not self.connected:
            return "bad"
        age = self.row_age(row)
        floor = STARTING_FLOOR_S if row.state == "starting" else STALE_FLOOR_S
        patience = max(floor, STALE_STEPS * (self.step_seconds(row) or 0.0))
        return "warn" if age is not None and age > patience else "live"

    @property
    def no_completions(self) -> str:
        """What is said in place of the completions of a run that has none."""
        return "no completions were logged" if self.run is not None and self.run.is_over else "no completions yet"

    def freshness(self) -> Freshness:
        """Freshness of the data of the selected run."""
        row = self.run
        if row is None:
            return Freshness()
        age = self.row_age(row)
        tone = self.row_tone(row)
        if age is None:
            return Freshness("no data yet", tone)
        if tone == "bad":
            return Freshness(f"{'link lost · ' if self.ever_connected else ''}{short_age(age)} old", tone)
        if tone == "warn":
            return Freshness(f"stale {short_age(age)}", tone)
        return Freshness(f"{short_age(age)} ago", tone)

    def gpu_freshness(self) -> Freshness:
        """Freshness of the GPU samples."""
        age = self.now() - self.gpu_at
        if problem := self.topic_problem("gpu"):
            return Freshness(problem, "warn")
        if not self.connected:
            return Freshness(f"link lost · {short_age(age)} old", "bad")
        return Freshness(f"stale {short_age(age)}", "warn") if age > STALE_FLOOR_S else Freshness("now", "live")

    def checkpoints(self) -> list[CheckpointView]:
        """Checkpoints of the selected run, newest first."""
        return self._views

    def complete_steps(self) -> list[int]:
        """Steps of the complete checkpoints of the selected run, ascending."""
        return sorted(view.step for view in self._views if view.step and view.is_complete)

    def step_seconds(self, row: RunRow) -> float | None:
        """Seconds of a recent step of a run."""
        if row.name == self.selected and self.logs and (recent := self.logs.recent("time/step")) is not None:
            return recent
        return row.step_seconds

    def failed_check(self) -> dict[str, Any] | None:
        """The first failed doctor check without which the box cannot train, or None."""
        required = ("engine", "tmux", "root")
        return next((check for check in self.checks if check.get("name") in required and not check.get("ok")), None)

    def check_to_act_on(self, name: str) -> str:
        """Detail and hint of a doctor check that has a hint, else ""."""
        check = next((check for check in self.checks if check.get("name") == name and check.get("hint")), None)
        return f"{check.get('detail')}: {check['hint']}" if check else ""

    def warning(self) -> str:
        """What keeps this program from using the box fully, such as an engine of another version; "" if nothing."""
        if check := self.failed_check():
            return " · ".join(check[key] for key in ("detail", "hint") if check.get(key))
        return self.engine.mismatch()

    def topic_problem(self, topic: str) -> str:
        """Age of a topic's last value and why it is not read, such as ``list is 40 s old: disk full``; "" if it is."""
        message = self.topic_problems.get(topic)
        if message is None or not self.connected:
            return ""
        name, at = TOPIC_NAMES[topic], self.topic_at.get(topic)
        return f"no {name}: {message}" if at is None else f"{name} is {duration(self.now() - at)} old: {message}"

    @property
    def topic_problem_now(self) -> str:
        """The problem of the first topic that cannot be read; "" without one."""
        return next(filter(None, map(self.topic_problem, TOPIC_NAMES)), "")

    def live_runs(self) -> list[RunRow]:
        """Runs that are not over."""
        return self._live

    def sessions_of(self, run: str) -> list[str]:
        """Names of the live tmux sessions of a run, the training session first; not the one that answers questions."""
        asked = session_name(f"ask_{run}")
        names = [
            session["name"]
            for session in self.sessions
            if not session.get("dead") and (session.get("run") or session["name"]) == run and session["name"] != asked
        ]
        return sorted(names, key=lambda name: name != session_name(run))

    def evaluation_sessions(self, run: str) -> list[str]:
        """Names of the live evaluation sessions of a run."""
        return [name for name in self.sessions_of(run) if name.startswith("eval_")]

    def backup_work(self, run: RunRow) -> str:
        """What is being done to the backups of a run, such as ``being backed up``; "" for nothing."""
        return work_on(self.sessions_of(run.name), run.name, run.transfer)

    @property
    def config(self) -> dict[str, Value]:
        """The configuration of the selected run, by ``section.key``; empty while it is not known."""
        return config_values(str(self.shown.get("config_text") or ""))

    def evaluating(self) -> str:
        """What is said while the selected run is evaluated: ``step_20: 512/1,024 done``; "" otherwise."""
        row = self.run
        if row is None or not (row.state == "evaluating" or self.evaluation_sessions(row.name)):
            return ""
        found = [each for each in self.shown.get("evaluations") or () if each.get("total")]
        if not found:
            return "evaluating …"
        done, total = (sum(int(each[key]) for each in found) for key in ("done", "total"))
        return f"{found[0]['target']}: {done:,}/{total:,} done"

    def link_label(self) -> tuple[str, str]:
        """Text and tone (``live``, ``warn``, ``bad``, ``busy``, ``rest``) of the link."""
        link, since = self.link, self.now() - self.link_since
        if link.state is Link.CONNECTED:
            return (f"{link.latency_ms:.0f} ms" if link.latency_ms is not None else "connected"), "live"
        if link.state is Link.CONNECTING:
            return "connecting …", "busy"
        if link.state is Link.STALE:
            return f"silent for {duration(since + 5)}", "warn"
        if link.state not in (Link.LOST, Link.REFUSED):
            return "closed", "rest"
        lost = f"link lost {duration(since)} ago" if self.ever_connected else "not reached yet"
        text = lost if link.state is Link.LOST else "not connected"
        if link.retry_in_s is not None:
            left = max(0.0, link.retry_in_s - (self.now() - self.link_at))
            text += f", retrying in {duration(left)}" if left >= 1 else ", retrying now"
        return text, "bad"

    def _read(self, topic: str) -> None:
        """A topic has a new value."""
        self.topic_at[topic] = self.now()
        self.topic_problems.pop(topic, None)
        self._changed(topic)

    def _changed(self, topic: str) -> None:
        self.versions[topic] += 1

    def _link_changed(self, event: LinkChanged) -> None:
        if event.state is not self.link.state:
            retrying = {self.link.state, event.state} == {Link.LOST, Link.CONNECTING} and self.ever_connected
            if not retrying:
                self.link_since = self.now()
        # The user sees a lost link until the reconnection has succeeded.
        if event.state is Link.CONNECTING and self.ever_connected and self.link.state is Link.LOST:
            event = LinkChanged(Link.LOST, event.detail or self.link.detail, retry_in_s=0.0)
        self.link, self.link_at = event, self.now()
        self.ever_connected |= event.state is Link.CONNECTED
        if event.state is Link.CONNECTED:
            self.host_key = None
        self._changed("link")

    def _feed(self, subscription: int, offset: int, data: bytes) -> None:
        log = self._subscriptions.get(subscription)
        if self.logs is not None and log is not None and self.logs.feed(log, offset, data):
            self._invalidate_curves()

    def _invalidate_curves(self) -> None:
        for curves in self.curves.values():
            curves.invalidate()
        self.metrics.invalidate()


NO_PRICE = "no cost: set price_per_hour of this box in boxes.yaml"
"""What is shown in place of costs on a box without a price."""


def step_of(store: Store, row: RunRow) -> int:
    """Last step of a run."""
    return store.step if row.name == store.selected else row.step


def eta(store: Store, row: RunRow | None) -> float | None:
    """Seconds until the last step of a run at its current pace, or None."""
    if row is None or not row.is_live or row.total_steps is None or row.shown_state == "stopping":
        return None
    if store.recalled_at is not None or not store.connected:
        return None
    pace = store.step_seconds(row)
    return None if pace is None else max(0, row.total_steps - step_of(store, row)) * pace


def took(store: Store, row: RunRow | None) -> float | None:
    """Seconds that a run has run so far, or None."""
    if row is None or row.run_seconds is None:
        return None
    since_update = store.age(row.updated_at) if row.is_live and store.connected else 0.0
    return row.run_seconds + min(since_update or 0.0, 60.0)


def cost(store: Store, row: RunRow | None) -> float | None:
    """Cost of a run so far in dollars, or None if the price or its run time is unknown."""
    seconds = took(store, row)
    return None if seconds is None or store.price_per_hour is None else dollars(store.price_per_hour, seconds)
