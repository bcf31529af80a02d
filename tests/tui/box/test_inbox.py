"""The inbox keeps what is new, in order, and stays bounded whatever a box sends and however long the app sleeps."""

from __future__ import annotations

import random

from grpo_tui.box.link import JOINED, Inbox
from remote.client import Follow
from remote.events import (
    ClientEvent,
    GpuSampled,
    Link,
    LinkChanged,
    LogArrived,
    LogFailed,
    LogRotated,
    RunsReported,
    TopicFailed,
)
from remote.protocol import INITIAL_CREDIT, Cursor


class Reader:
    """An inbox, and what the app reads from it."""

    def __init__(self) -> None:
        self.woken = 0
        self.discarded: list[LogArrived] = []
        self.taken: list[ClientEvent] = []
        self.inbox = Inbox(self._wake, self.discarded.append)

    def _wake(self) -> None:
        self.woken += 1

    def drain(self, seconds: float = 60.0) -> list[ClientEvent]:
        self.taken = []
        while self.inbox.drain(seconds, self.taken.append):
            pass
        return self.taken


def arrived(subscription: int, offset: int, data: bytes) -> LogArrived:
    return LogArrived(subscription, "log", offset, data, Cursor("log", offset + len(data)))


def test_one_wake_per_batch() -> None:
    reader = Reader()
    for count in (1, 2, 3):
        for subscription in range(100):
            reader.inbox.put(LogRotated(subscription, "log"))
        assert reader.woken == count
        taken: list[ClientEvent] = []
        assert reader.inbox.drain(-1.0, taken.append) is True
        assert len(taken) == 1
        assert len(reader.drain()) == 99
    reader.inbox.put(RunsReported([]))
    assert reader.inbox.drain(-1.0, reader.taken.append) is False
    reader.inbox.put(RunsReported([]))
    assert reader.woken == 5


def test_only_the_newest_value_waits() -> None:
    reader = Reader()
    for index in range(1_000):
        reader.inbox.put(RunsReported([{"run": str(index)}]))
        reader.inbox.put(LinkChanged(Link.LOST, str(index)))
        reader.inbox.put(TopicFailed("gpu", str(index)))
    reader.inbox.put(TopicFailed("runs", "unreadable"))
    reader.inbox.put(GpuSampled([]))
    reader.inbox.put(RunsReported([]))
    assert reader.drain() == [
        LinkChanged(Link.LOST, "999"),
        TopicFailed("gpu", "999"),
        TopicFailed("runs", "unreadable"),
        GpuSampled([]),
        RunsReported([]),
    ]


def test_short_pieces_of_a_log_are_joined() -> None:
    reader = Reader()
    for offset in range(20_000):
        reader.inbox.put(arrived(1, offset, b"x"))
        reader.inbox.put(arrived(2, offset, b"y"))
    reader.inbox.put(LogFailed(2, "log", "gone"))
    events = reader.drain()
    assert len(events) <= 2 * (20_000 // JOINED + 1) + 1
    for subscription, byte in ((1, b"x"), (2, b"y")):
        pieces = [event for event in events if isinstance(event, LogArrived) and event.subscription == subscription]
        assert b"".join(piece.data for piece in pieces) == byte * 20_000
        assert [piece.cursor.offset for piece in pieces] == [piece.offset + len(piece.data) for piece in pieces]
    assert events[-1] == LogFailed(2, "log", "gone")


def test_a_rotation_discards_what_waits() -> None:
    reader = Reader()
    for _ in range(10_000):
        reader.inbox.put(LogRotated(1, "log"))
        reader.inbox.put(arrived(1, 0, b"old"))
    reader.inbox.put(arrived(2, 0, b"other"))
    reader.inbox.put(LogRotated(1, "log"))
    reader.inbox.put(arrived(1, 0, b"new"))
    assert sum(len(event.data) for event in reader.discarded) == 30_000
    assert reader.drain() == [LogRotated(1, "log"), arrived(2, 0, b"other"), arrived(1, 0, b"new")]


def test_a_busy_log_does_not_delay_others() -> None:
    reader = Reader()
    reader.inbox.put(arrived(1, 0, b"x" * JOINED))
    reader.inbox.put(arrived(2, 0, b"y"))
    taken: list[ClientEvent] = []
    for index in range(3):  # more arrives while the app reads
        reader.inbox.put(arrived(1, (index + 1) * JOINED, b"x" * JOINED))
        reader.inbox.drain(-1.0, taken.append)
    assert arrived(2, 0, b"y") in taken
    reader.inbox.put(LinkChanged(Link.LOST))
    reader.inbox.drain(-1.0, taken.append)
    assert taken[-1] == LinkChanged(Link.LOST)


def test_a_sleeping_app_keeps_at_most_the_credit() -> None:
    chance = random.Random(12)
    for _ in range(20):
        reader, follow = Reader(), Follow(1, "log", Cursor("log"), None)
        follow.subscribe_frame()
        returned = 0
        for _ in range(3_000):
            if chance.random() < 0.02:
                reader.inbox.put(follow.rotated())
            else:
                size = chance.choice((1, 10, 5_000, 32_768))
                if size > follow.credit:
                    continue
                frame = {"offset": follow.cursor.offset if follow.cursor else 0, "text": "x" * size}
                reader.inbox.put(follow.data(frame))
            returned += sum(follow.consumed(len(event.data)) for event in reader.discarded)
            reader.discarded.clear()
        kept = [event for event in reader.drain() if isinstance(event, LogArrived)]
        assert sum(len(event.data) for event in kept) == follow.unconsumed <= INITIAL_CREDIT
        assert len(kept) <= INITIAL_CREDIT // JOINED + 1
