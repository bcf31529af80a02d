"""The clock of this machine, and the one that tests advance: both keep the same contract."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from grpo_train.run_dir.clock import CLOCK, Clock
from tests.support.clock import LeapingClock, TestClock


@pytest.fixture(params=["system", "test"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return CLOCK if request.param == "system" else TestClock()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_set_event_ends_a_wait(clock: Clock) -> None:
    event = threading.Event()
    assert not clock.wait(event, 0)
    threading.Thread(target=event.set).start()
    assert clock.wait(event)
    assert clock.wait(event, 1e6)


def test_a_readable_descriptor_ends_a_wait(clock: Clock, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    assert clock.select([reader], 0) == []
    threading.Thread(target=os.write, args=(writer, b"x")).start()
    assert clock.select([reader]) == [reader]
    assert clock.select([reader], 1e6) == [reader]


def test_the_end_of_a_process_ends_a_wait(clock: Clock) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert not clock.wait_exit(process, 0)
        process.stdin.close()
        assert clock.wait_exit(process)
        assert clock.wait_exit(process, 1e6)


def test_waits_end_at_their_times() -> None:
    clock, seen = TestClock(), list[tuple[str, float]]()
    began, never = clock.monotonic(), threading.Event()

    def tick(name: str, every: float, pipe: int | None = None) -> None:
        while clock.monotonic() - began < 3:
            if pipe is None:
                clock.wait(never, every)
            else:
                clock.select([pipe], every)
            seen.append((name, clock.monotonic() - began))

    reader, writer = os.pipe()
    threads = [threading.Thread(target=tick, args=("a", 1.0)), threading.Thread(target=tick, args=("b", 1.5, reader))]
    for thread in threads:
        thread.start()
    clock.wait_for_threads(2)
    clock.advance(2.5)
    assert seen == [("a", 1.0), ("b", 1.5), ("a", 2.0)]
    assert clock.advance_until(lambda: len(seen) > 3) == pytest.approx(0.5)
    clock.advance(1)
    for thread in threads:
        thread.join()
    assert sorted(seen) == [("a", 1.0), ("a", 2.0), ("a", 3.0), ("b", 1.5), ("b", 3.0)]
    os.close(reader)
    os.close(writer)


def test_what_follows_from_a_wait_is_done_at_its_time() -> None:
    """A message is read by the thread that waits for it before the time moves on."""
    clock = TestClock()
    reader, writer = os.pipe()
    read_at: list[float] = []

    def send() -> None:
        for _ in range(3):
            clock.sleep(1)
            os.write(writer, b"x")
        os.close(writer)

    def receive() -> None:
        while True:
            clock.select([reader])
            if not os.read(reader, 1):
                return
            read_at.append(clock.monotonic())

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    began = clock.monotonic()
    for thread in threads:
        thread.start()
    clock.wait_for_threads(2)
    clock.advance(10)
    assert [at - began for at in read_at] == [1, 2, 3]
    for thread in threads:
        thread.join()
    os.close(reader)


def test_skipped_waits_take_no_time() -> None:
    clock = LeapingClock()
    began = clock.monotonic()
    clock.sleep(100)
    assert not clock.wait(threading.Event(), 200)
    reader, writer = os.pipe()
    assert clock.select([reader], 50) == []
    os.write(writer, b"x")
    assert clock.select([reader], 50) == [reader]
    for end in (reader, writer):
        os.close(end)
    assert clock.monotonic() - began == 350


def test_a_suspend_moves_the_boot_time_alone() -> None:
    clock = TestClock()
    before = clock.monotonic(), clock.boottime(), clock.time()
    clock.suspend(60)
    clock.set(-5)
    assert (clock.monotonic(), clock.boottime(), clock.time()) == (before[0], before[1] + 60, before[2] + 55)
    with pytest.raises(AssertionError, match="not within"):
        clock.advance_until(lambda: False, 5)
