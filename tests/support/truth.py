"""Whether what a laptop said was true, given the faults of its link: about the job, the link and the clock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from remote.transports.transport import Timing
from tests.support.log_loads import STATES
from tests.support.opening import FALSE

LATE_S = 3.0
"""Time for a busy machine to say that the link is stale or lost."""
PENDING_S = 20.0
"""Time for a fault to end the link: a damaged length shows when the silence has lasted."""
UP = ("connected", "stale")
Event = dict[str, Any]


@dataclass
class Trouble:
    """One fault of a link that stood. Times are on the monotonic clock."""

    kind: str
    began: float
    ended: float = 0.0
    settled: float = 0.0
    """When everything had arrived again, or the next fault began."""
    silent: bool = False
    """Nothing reached the laptop."""
    harmless: bool = False
    """The link must survive it."""
    refuses: bool = False
    """Connections were refused."""
    offset_s: float = 0.0
    """Of the laptop's clock afterwards."""


def assert_truthful(events: Sequence[Event], troubles: Sequence[Trouble], timing: Timing) -> None:
    """No statement was false, and no person was needed. Raises AssertionError with the event and the fault."""
    for event in events:
        _assert_job(event)
        if event["event"] == "LinkChanged":
            _assert_words(event, troubles)
    _assert_clock(events, troubles)
    links = [event for event in events if event["event"] == "LinkChanged"]
    for trouble in troubles:
        if trouble.silent:
            _assert_silence_is_said(links, trouble, timing)
        if trouble.harmless:
            _assert_survived(links, trouble, [other for other in troubles if not other.harmless])


def _assert_job(event: Event) -> None:
    match event["event"]:
        case "RunsReported":
            assert event["runs"] == STATES, event
        case "Replied":
            assert event["runs"].items() <= STATES.items(), event
            assert event["runs"], event
        case "Failed":
            assert event["code"] in ("unreachable", "timeout"), event
        case "LinkChanged" | "BoxGreeted" | "LogRotated" | "ClockMeasured":
            pass
        case _:  # a question, a topic or a log that failed
            raise AssertionError(event)


def _assert_clock(events: Sequence[Event], troubles: Sequence[Trouble]) -> None:
    """The difference of the clocks is right within 2 s and what the network may hide, half of a round trip."""
    hidden_s = 0.0
    for event in events:
        if event["event"] == "LinkChanged":
            hidden_s = (event["latency_ms"] or 0.0) / 2_000
        if event["event"] == "ClockMeasured":
            before = [0.0, *(trouble.offset_s for trouble in troubles if trouble.began <= event["at"])]
            wrong_s = min(abs(event["skew_s"] - offset_s) for offset_s in before[-2:])
            assert wrong_s < 2.0 + hidden_s, event


def _assert_words(event: Event, troubles: Sequence[Trouble]) -> None:
    detail = event["detail"]
    refused = any(trouble.refuses and trouble.began <= event["at"] for trouble in troubles)
    assert event["state"] != "refused", event
    assert not FALSE.search(detail.replace("Connection refused", "") if refused else detail), event
    assert "suspended" not in detail, event  # a stopped process is no suspended machine, and a set clock neither
    assert event["latency_ms"] is None or 0 <= event["latency_ms"] < 600_000, event


def _assert_silence_is_said(links: Sequence[Event], trouble: Trouble, timing: Timing) -> None:
    """``connected`` is not shown for long when nothing arrives, nor is ``stale``."""
    for state, limit in (("connected", timing.stale_after), ("stale", timing.lost_after)):
        due = trouble.began + limit + LATE_S
        if due >= trouble.ended:
            continue
        before = [event for event in links if event["at"] <= due]
        shown = [before[-1], *(event for event in links if due < event["at"] < trouble.ended)]
        for event in shown:
            assert event["state"] not in (UP[:1] if state == "connected" else UP), f"{event} is shown in {trouble}"


def _assert_survived(links: Sequence[Event], trouble: Trouble, harmful: Sequence[Trouble]) -> None:
    """A link that stood was not lost, unless by a fault before."""
    for before, event in pairwise(links):
        if before["state"] not in UP or event["state"] in UP or not trouble.began < event["at"] < trouble.settled:
            continue
        others = [other for other in harmful if other.began < event["at"] < other.settled + PENDING_S]
        assert others, f"{event} after {trouble}"


def words(events: Sequence[Event]) -> Counter[str]:
    """Every text that was shown about the link, without its numbers, and how often."""
    texts = (f"{e['state']}: {e['detail']}" for e in events if e["event"] == "LinkChanged" and e["latency_ms"] is None)
    return Counter(re.sub(r"\d+", "N", text) for text in texts)
