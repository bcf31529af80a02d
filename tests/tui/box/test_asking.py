"""When a request is sent, sent again, and what is said meanwhile."""

from __future__ import annotations

import pytest

from grpo_tui.box.asking import RETRY_S, Asking


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.asking = Asking(lambda: self.now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_request_is_sent_once_and_again_after_a_pause(clock: Clock) -> None:
    asking = clock.asking
    assert asking.begin("a")
    assert not asking.begin("a", 0.0), "in flight"
    assert asking.end("a")
    assert not asking.begin("a"), "an answer lasts"
    clock.now += 9
    assert not asking.begin("a", 10.0)
    clock.now += 1
    assert asking.begin("a", 10.0)


def test_a_failure_is_said_and_tried_again(clock: Clock) -> None:
    asking = clock.asking
    asking.start("a")
    asking.end("a", "no disk")
    assert asking.instead() == f"✖ no disk; asked again every {RETRY_S:.0f} s"
    assert not asking.is_answered
    assert not asking.begin("a", 0.0)
    assert asking.begin("b"), "another request need not wait"
    assert asking.end("b")
    assert asking.is_answered
    assert not asking.problem


def test_a_newer_request_drops_the_reply_to_an_older_one(clock: Clock) -> None:
    asking = clock.asking
    asking.start("a")
    asking.start("b")
    asking.cancel("a")
    assert not asking.end("a")
    assert asking.end("b")
    asking.start("c")
    asking.cancel("c")
    assert asking.ended == "b"
    assert asking.begin("c")


def test_a_coarse_answer_is_not_the_end_of_the_wait(clock: Clock) -> None:
    asking = clock.asking
    assert asking.words() == ""
    asking.start("a")
    assert asking.words() == "asking the box"
    clock.now += 3
    asking.end("a", is_whole=False)
    clock.now += 1
    assert asking.begin("a", 0.5)
    assert asking.words() == "asking the box 4 s"
    clock.now += 2
    asking.end("a")
    assert (asking.words(), asking.age) == ("", 6.0)
