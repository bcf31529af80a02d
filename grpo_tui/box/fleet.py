"""Many boxes at once: a client each, and what each says about itself. No Textual.

A client stays open as long as its box is watched, and the box reports what changes by itself. It is read-only and asks
a person nothing: several boxes may wait for an answer at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from grpo_train.run_dir import LIVE_STATES
from grpo_train.run_dir.files import parse_time
from grpo_tui.box.link import MakeClient, make_box_client
from remote.boxes import Box, Provider
from remote.events import (
    ClientEvent,
    ClockMeasured,
    GpuSampled,
    HostKeyAsked,
    Link,
    LinkChanged,
    MachineChanged,
    QuestionAsked,
    RunsReported,
    TopicFailed,
)
from remote.protocol import STALE_AFTER_S
from remote.protocol.rows import UNREADABLE
from remote.providers import ProviderError, instances, last_error, last_seen

OTHER_MACHINE = "another machine than the last time answers under this name, with a host key that is known"
OTHER_MACHINE_HINT = (
    "its disk is a copy, or you accepted its key; what this machine remembers under the name is of the former one. "
    "To keep them apart, give it another name in boxes.yaml"
)


@dataclass(frozen=True)
class Glance:
    """One look at a box; of one that was never reached, only name, address, price and problem are known."""

    name: str
    address: str
    price_per_hour: float | None
    instance: str = ""
    """State of its instance, as its provider said last, ``? (REASON)`` where it could not be asked; "" without one."""
    problem: str = ""
    """Why it is not reached now, or why it cannot read its runs; "" if all is well."""
    live: tuple[str, ...] = ()
    """Its live runs."""
    gpus: int | None = None
    """Its GPUs; None if it did not say."""
    gpus_free: int | None = None
    """GPUs that nothing uses; None where its driver does not report enough to know."""
    gpu_problem: str = ""
    """Why its GPUs, or some of them, cannot be read or used."""
    idle_s: float | None = None
    """Seconds since a run last wrote its state; None while one is live, or without runs."""
    age_s: float | None = None
    """Seconds since the box was last heard; 0 while its link is up, None if it never was."""

    @property
    def gpus_said(self) -> str:
        """``2 of 4``, ``? of 4``, ``no GPU``, or ``?`` where they could not be read."""
        if self.gpus is None:
            return "?"
        return f"{'?' if self.gpus_free is None else self.gpus_free} of {self.gpus}" if self.gpus else "no GPU"


def gpu_counts(rows: Iterable[Mapping[str, Any]] | None, problem: str) -> dict[str, Any]:
    """The fields of a glance about GPUs, from the rows of the last sample and why they cannot be read now."""
    if rows is None or problem:
        return {"gpus": None, "gpus_free": None, "gpu_problem": problem}
    rows = list(rows)
    bad = [row for row in rows if row.get("problem") or UNREADABLE in row]
    free = [row.get("free") for row in rows if row not in bad]
    words = [f"GPU {row.get('index', '?')}: {row.get('problem') or row[UNREADABLE]}" for row in bad]
    return {"gpus": len(rows), "gpus_free": None if None in free else sum(free), "gpu_problem": "; ".join(words)}


LINK_S = 15.0
"""How long :func:`look` lets a box take to connect, and then to answer."""
LISTED_S = 30.0
"""Interval at which providers list their instances while a fleet is watched."""


def _make_client(box: Box, on_event: Callable[[ClientEvent], None]) -> Any:
    return make_box_client(box, on_event, readonly=True)


class BoxWatch:
    """One box, and what it said last. Every method may be called from any thread."""

    def __init__(self, box: Box, make_client: MakeClient = _make_client, now: Callable[[], float] = time.time) -> None:
        self.box, self._now = box, now
        self._changed = threading.Condition()
        self._link = LinkChanged(Link.CONNECTING)
        self._heard_at: float | None = None
        """When the box was last heard; it was never while this is None."""
        self._asks = ""
        """What it asks, which only a person can answer."""
        self._runs: list[dict[str, Any]] | None = None
        self._gpus: list[dict[str, Any]] | None = None
        self._failed: dict[str, str] = {}
        """Topics that the box cannot read, and why."""
        self._skew_s = 0.0
        self._is_other = False
        self._client = make_client(box, self._take)

    def start(self) -> None:
        """Connect; returns immediately."""
        self._client.start()

    def close(self) -> None:
        """End the connection; takes seconds for a box that hangs."""
        self._client.close()

    def glance(self) -> Glance:
        """What the box said last, as of now."""
        with self._changed:
            now = self._now()
            glance = _first_glance(self.box, now, self._problem())
            if self._heard_at is None:
                return glance
            rows = self._runs or []
            live = tuple(str(row["run"]) for row in rows if row.get("state") in LIVE_STATES)
            wrote = max((_seconds(row.get("updated_at")) for row in rows), default=0.0)
            return replace(
                glance,
                live=live,
                **gpu_counts(self._gpus, self._failed.get("gpu", "")),
                idle_s=max(0.0, now - wrote - self._skew_s) if wrote and not live else None,
                age_s=0.0 if self._link.state is Link.CONNECTED else max(0.0, now - self._heard_at),
            )

    def wait(self, link_s: float) -> Glance:
        """Wait until the box has said everything, or until it is known why it does not."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_down() or self._heard_at is not None, link_s)
            if not self._is_down() and self._heard_at is None:
                return _first_glance(self.box, self._now(), f"no connection within {link_s:.0f} s")
            self._changed.wait_for(lambda: self._is_down() or self._has_said_all(), link_s)
            if not self._is_down() and self._runs is None:
                self._failed["runs"] = f"it did not list its runs within {link_s:.0f} s"
        return self.glance()

    def _has_said_all(self) -> bool:
        return self._runs is not None and (self._gpus is not None or "gpu" in self._failed)

    def _is_down(self) -> bool:
        """Whether it is known why it says nothing."""
        down = self._link.state not in (Link.CONNECTED, Link.CONNECTING)
        return bool(self._asks) or down or "runs" in self._failed

    def _problem(self) -> str:
        if self._asks:
            return f"{self._asks}: connect to it once, in the app or with  grpo-tui doctor --box {self.box.name}"
        if self._link.state not in (Link.CONNECTED, Link.CONNECTING):
            return self._link.detail or f"the link is {self._link.state.value}"
        return self._failed.get("runs", OTHER_MACHINE if self._is_other else "")

    def _take(self, event: ClientEvent) -> None:
        with self._changed:
            if isinstance(event, LinkChanged):
                self._link_changed(event)
            elif isinstance(event, RunsReported):
                self._runs = event.runs
                self._failed.pop("runs", None)
            elif isinstance(event, GpuSampled):
                self._gpus = event.gpus
                self._failed.pop("gpu", None)
            elif isinstance(event, TopicFailed):
                self._failed[event.topic] = event.message
            elif isinstance(event, ClockMeasured):
                self._skew_s = event.skew_s
            elif isinstance(event, MachineChanged):
                self._is_other = True
            elif isinstance(event, HostKeyAsked):
                self._asks = "its host key is not known"
            elif isinstance(event, QuestionAsked):
                self._asks = "it asks to log in"
            self._changed.notify_all()
        if isinstance(event, HostKeyAsked):
            self._client.answer_host_key(False)
        elif isinstance(event, QuestionAsked) and event.kind != "touch":
            self._client.answer_question(None)

    def _link_changed(self, event: LinkChanged) -> None:
        before, self._link = self._link.state, event
        if event.state is Link.CONNECTED:
            self._asks = ""
            self._heard_at = self._now()
        elif before is Link.CONNECTED:
            self._heard_at = self._now() - (STALE_AFTER_S if event.state is Link.STALE else 0.0)


class Fleet:
    """The boxes of a list, watched from :meth:`start` to :meth:`close`."""

    def __init__(self, boxes: Iterable[Box], current: str = "", make_client: MakeClient = _make_client) -> None:
        """``current``: the box that the caller is connected to, of which only its provider is asked."""
        boxes = list(boxes)
        self._watches = {box.name: BoxWatch(box, make_client) for box in boxes if box.name != current}
        self._providers = {box.provider for box in boxes if box.provider is not None}
        self._over = threading.Event()

    def start(self) -> None:
        """Connect to each; returns immediately."""
        for watch in self._watches.values():
            watch.start()
        for provider in self._providers:
            threading.Thread(target=self._list, args=(provider,), daemon=True).start()

    def _list(self, provider: Provider) -> None:
        """Have the states of the instances listed again and again."""
        while not self._over.is_set():
            with suppress(ProviderError):  # the boxes that wait for it say so
                instances(provider, self._over.is_set)
            self._over.wait(LISTED_S)

    def glance(self, name: str) -> Glance | None:
        """What a box said last; None if it is not watched."""
        watch = self._watches.get(name)
        return None if watch is None else watch.glance()

    def close(self) -> None:
        """End every connection without waiting for it."""
        self._over.set()
        for watch in self._watches.values():
            threading.Thread(target=watch.close, daemon=True).start()


def priced_and_placed(box: Box, now: float) -> tuple[float | None, str, str]:
    """Dollars per hour, address and state of a box; what boxes.yaml does not say, as its provider said last.

    The state is ``? (REASON)`` where the provider could not be asked.
    """
    seen, error = last_seen(box), last_error(box)
    price, state = box.price_at(now), f"? ({error})" if error else ""
    if seen is None:
        return price, box.address(), state
    return seen.price_per_hour if price is None else price, seen.address or box.address(), state or seen.state


def _first_glance(box: Box, now: float, problem: str) -> Glance:
    """What is known about a box that has not been heard."""
    price, address, state = priced_and_placed(box, now)
    return Glance(box.name, address, price, state, problem)


def look(box: Box) -> Glance:
    """One look at a box. Never raises for a box that is not reached."""
    watch = BoxWatch(box)
    watch.start()
    try:
        return watch.wait(LINK_S)
    finally:
        watch.close()


def _seconds(text: Any) -> float:
    """A time of a box, in seconds since the epoch; 0 if it is none."""
    try:
        return parse_time(str(text))
    except ValueError:
        return 0.0
