"""Trouble that may pass: requests are repeated, progress is kept, and after the time of patience the cause is named.

Here botocore's events make the trouble, and a clock is set forward by each wait; ``tests/soak/test_s3_repeats.py`` runs
the same tests over broken connections.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.s3 import S3Store
from grpo_train.backup.s3_requests import Backoff, S3Timing
from grpo_train.backup.store import FilePiece, StoreError
from tests.support.clock import LeapingClock, TestClock
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.s3_faults import Fault, Faults, FaultyRequests
from tests.support.s3_servers import server
from tests.support.stores import bucket_store, content, piece_of, whole

FAULTS = {
    "busy": Fault("refuse", status=503, code="SlowDown"),
    "internal error": Fault("refuse", status=500, code="InternalError"),
    "gateway without a body": Fault("refuse", status=502, code=""),
    "too many requests": Fault("refuse", status=429, code="TooManyRequests"),
    "dropped": Fault("drop"),
    "answer lost": Fault("drop_answer"),
    "silent": Fault("silence", seconds=300),
}
SENT = {"changed on the way": Fault("flip_sent", "PUT"), **FAULTS}


@pytest.fixture
def front() -> Iterator[Faults]:
    with FaultyRequests(server("rclone")) as opened:
        yield opened


@pytest.fixture
def part() -> int:
    """Bytes; this server takes parts that others would refuse as too small."""
    return 256 << 10


@pytest.fixture
def piece(tmp_path: Path, part: int) -> FilePiece:
    """A file of three parts."""
    return piece_of(tmp_path / "weights", content(2 * part + 10))


@pytest.fixture
def waiting() -> dict[str, Any]:
    """How a store waits."""
    return {"timing": S3Timing(), "clock": LeapingClock()}


@pytest.fixture
def impatient(waiting: dict[str, Any]) -> dict[str, Any]:
    """How a store waits whose patience a test sees end."""
    return waiting


@pytest.fixture
def waits() -> list[tuple[str, float]]:
    return []


@pytest.fixture
def store(front: Faults, waits: list[tuple[str, float]], waiting: dict[str, Any], part: int) -> S3Store:
    def on_wait(cause: str, seconds: float) -> None:
        waits.append((cause, seconds))

    return bucket_store(front.server, front.server.new_bucket(), port=front.port, part=part, on_wait=on_wait, **waiting)


def repeated(fault: Fault, method: str, match: str = "", times: int = 2) -> Fault:
    return Fault(fault.kind, method, match, times, fault.status, fault.code, fault.headers, fault.seconds)


@pytest.mark.parametrize("name", SENT)
def test_a_small_write_is_repeated(front: Faults, store: S3Store, waits: list[tuple[str, float]], name: str) -> None:
    front.add(repeated(SENT[name], "PUT"))
    store.write_small("a", b"data" * 100)
    assert len(waits) >= 2
    assert whole(store, "a") == b"data" * 100


@pytest.mark.parametrize("name", FAULTS)
def test_a_part_is_repeated_alone(front: Faults, store: S3Store, piece: FilePiece, name: str) -> None:
    front.add(repeated(FAULTS[name], "PUT", r"partNumber=2\b"))
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)
    if name == "silent":  # any answer may take longer than this test's limit
        return
    assert len([path for method, path in front.seen if method == "PUT" and re.search(r"partNumber=1\b", path)]) == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_an_upload_that_ended_begins_again(front: Faults, store: S3Store, piece: FilePiece, method: str) -> None:
    front.add(Fault("refuse", method, "uploadId=", status=404, code="NoSuchUpload"))
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)
    assert store.abort_stale_uploads("", -60) == 0


def test_after_damage_parts_are_checked_when_sent(front: Faults, store: S3Store, piece: FilePiece) -> None:
    for number in range(3):
        front.add(Fault("flip_sent", "PUT", r"partNumber=1\b"))
        store.write("weights", piece)
        if number == 0:
            with pytest.raises(StoreError, match="differ"):
                store.prove("weights", piece.size, piece.sha256)
        else:  # the store refused that part, and it was sent again by itself
            store.prove("weights", piece.size, piece.sha256)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_store_may_ask_for_an_md5(
    front: Faults, store: S3Store, tmp_path: Path, parts: int, piece: FilePiece
) -> None:
    if parts == 1:
        piece = piece_of(tmp_path / "weights", content(10))
    front.add(Fault("refuse", "PUT", "weights", status=400, code="MissingContentMD5"))
    store.write("weights", piece)
    front.add(Fault("flip_sent", "PUT", "other"))
    store.write("other", piece)
    store.prove("other", piece.size, piece.sha256)


def test_a_completion_whose_answer_is_lost_is_done(front: Faults, store: S3Store, piece: FilePiece) -> None:
    front.add(Fault("drop_answer", "POST", "uploadId="))
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)
    assert len([path for method, path in front.seen if method == "PUT"]) == 3


@pytest.mark.parametrize("name", [*FAULTS, "cut"])
def test_a_read_continues_where_it_was(front: Faults, store: S3Store, name: str) -> None:
    data = content(700_000)
    store.write_small("a", data)
    front.add(repeated({"cut": Fault("cut"), **FAULTS}[name], "GET", times=3))
    assert whole(store, "a") == data
    front.add(Fault("cut", "GET"))
    assert whole(store, "a", 300_000) == data[300_000:]


@pytest.mark.parametrize("name", FAULTS)
def test_listing_and_deleting_are_repeated(front: Faults, store: S3Store, name: str) -> None:
    store.write_small("a", b"")
    for method in ("GET", "HEAD", "POST"):
        front.add(repeated(FAULTS[name], method, times=1))
    assert store.head("a")
    assert [entry.key for entry in store.entries("")] == ["a"]
    store.delete(["a"])
    front.clear()
    assert list(store.entries("")) == []


def test_an_object_that_is_replaced_midway_is_named(
    front: Faults, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_train.backup.s3_read.RANGE", 1 << 16)  # more of them than are on the way at a time
    store.write_small("a", content(12 << 16))
    chunks = store.read("a")
    front.add(Fault("cut", "GET"))
    next(chunks)
    store.write_small("a", content(12 << 16, seed=1))
    with pytest.raises(StoreError, match="replaced while it was read") as caught:
        list(chunks)
    assert caught.value.code == "damaged"


def test_the_store_says_how_long_to_wait(front: Faults, store: S3Store, waits: list[tuple[str, float]]) -> None:
    front.add(Fault("refuse", "PUT", headers={"Retry-After": "1"}))
    store.write_small("a", b"")
    (_, seconds), *others = waits
    assert (seconds, others) == (1.0, [])


def test_waits_grow_and_are_random(
    front: Faults, store: S3Store, waits: list[tuple[str, float]], waiting: dict[str, Any]
) -> None:
    front.add(Fault("refuse", "PUT", times=8))
    store.write_small("a", b"")
    seconds, timing = [each for _, each in waits], waiting["timing"]
    bounds = [min(timing.longest_wait, timing.first_wait * 2**number) for number in range(8)]
    assert all(bound / 2 <= each <= bound for each, bound in zip(seconds, bounds, strict=True))
    assert len({each / bound for each, bound in zip(seconds, bounds, strict=True)}) > 1


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault("refuse", times=1e9), "answers 503 ServiceUnavailable"),
        (Fault("silence", times=1e9, seconds=300), "does not answer"),
        (Fault("drop", times=1e9), "the connection to https://127.0.0.1:[0-9]+ broke"),
    ],
)
def test_after_the_patience_the_cause_is_named(
    front: Faults, piece: FilePiece, part: int, fault: Fault, cause: str, impatient: dict[str, Any]
) -> None:
    store = bucket_store(front.server, front.server.new_bucket(), port=front.port, part=part, **impatient)
    front.add(fault)
    calls: list[Callable[[], object]] = [
        lambda: store.write("weights", piece),
        lambda: store.write_small("a", b""),
        lambda: whole(store, "a"),
        lambda: list(store.entries("")),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=cause) as caught:
            call()
        assert caught.value.code == "unreachable"
        assert "given up after" in str(caught.value)


def test_an_unknown_authority_is_named(front: Faults, impatient: dict[str, Any]) -> None:
    store = bucket_store(front.server, "any", port=front.port, ca_file="", **impatient)
    with pytest.raises(StoreError, match=r"certificate of .* cannot be verified .*'ca_file'") as caught:
        store.write_small("a", b"")
    assert caught.value.code == "unreachable"


def test_a_store_that_cannot_be_reached_is_named(impatient: dict[str, Any]) -> None:
    closed = f"https://127.0.0.1:{free_port()}"
    for endpoint, cause in (("https://store.invalid", "cannot connect to"), (closed, "cannot connect to")):
        store = bucket_store(server("rclone"), "any", endpoint=endpoint, **impatient)
        with pytest.raises(StoreError, match=f"{cause} {endpoint}") as caught:
            list(store.entries(""))
        assert caught.value.code == "unreachable"


def test_the_patience_is_ten_minutes() -> None:
    """Whatever the waits were; a store that moves bytes in between has it again."""
    clock, waits = LeapingClock(), []
    backoff = Backoff(S3Timing(), threading.Event(), lambda cause, seconds: waits.append(seconds), clock)

    def try_again_and_again() -> None:
        while True:
            backoff.wait("s3://bucket", "busy")

    for _ in range(2):
        began = clock.monotonic()
        with pytest.raises(StoreError, match="busy; given up after 10 min, run the command again to continue"):
            try_again_and_again()
        assert clock.monotonic() - began == pytest.approx(600)
        backoff.progressed()
    assert max(waits) <= 60


def test_a_stop_ends_a_wait() -> None:
    clock, stop = TestClock(), threading.Event()
    backoff = Backoff(S3Timing(), stop, None, clock)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(backoff.wait, "s3://bucket", "busy")
        clock.wait_for_threads(1)
        stop.set()
        with pytest.raises(StoreError, match=r"s3://bucket: stopped while waiting \(busy\)"):
            ended.result(60 * PATIENCE)
    assert clock.monotonic() == TestClock().monotonic()
