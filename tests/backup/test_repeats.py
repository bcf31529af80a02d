"""Trouble that may pass: requests are repeated, progress is kept, and after the time of patience the cause is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_train.backup.s3 import S3Store
from grpo_train.backup.s3_requests import Timing
from grpo_train.backup.store import StoreError
from tests.support.s3_front import Fault, Front
from tests.support.s3_servers import server
from tests.support.sshd import free_port
from tests.support.stores import bucket_store, content, piece_of, whole

PART = 5 << 20
QUICK = Timing(silence=60.0, patience=120.0, first_wait=0.01, longest_wait=0.05)
IMPATIENT = Timing(silence=60.0, patience=1.0, first_wait=0.01, longest_wait=0.05)
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
def front() -> Iterator[Front]:
    with Front(server("rclone")) as opened:
        yield opened


@pytest.fixture
def waits() -> list[tuple[str, float]]:
    return []


@pytest.fixture
def store(request: pytest.FixtureRequest, front: Front, waits: list[tuple[str, float]]) -> S3Store:
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    timing = replace(QUICK, silence=2.0) if params.get("name") == "silent" else QUICK

    def on_wait(cause: str, seconds: float) -> None:
        waits.append((cause, seconds))

    return bucket_store(front.server, front.server.new_bucket(), port=front.port, timing=timing, on_wait=on_wait)


def repeated(fault: Fault, method: str, match: str = "", times: int = 2) -> Fault:
    return Fault(fault.kind, method, match, times, fault.status, fault.code, fault.headers, fault.seconds)


@pytest.mark.parametrize("name", SENT)
def test_a_small_write_is_repeated(front: Front, store: S3Store, waits: list[tuple[str, float]], name: str) -> None:
    front.add(repeated(SENT[name], "PUT"))
    store.write_small("a", b"data" * 100)
    assert len(waits) >= 2
    assert whole(store, "a") == b"data" * 100


@pytest.mark.parametrize("name", FAULTS)
def test_a_part_is_repeated_alone(front: Front, store: S3Store, tmp_path: Path, name: str) -> None:
    piece = piece_of(tmp_path / "weights", content(2 * PART + 10))
    front.add(repeated(FAULTS[name], "PUT", r"partNumber=2\b"))
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)
    if name == "silent":  # any answer may take longer than this test's limit
        return
    assert len([path for method, path in front.seen if method == "PUT" and re.search(r"partNumber=1\b", path)]) == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_an_upload_that_ended_begins_again(front: Front, store: S3Store, tmp_path: Path, method: str) -> None:
    piece = piece_of(tmp_path / "weights", content(2 * PART + 10))
    front.add(Fault("refuse", method, "uploadId=", status=404, code="NoSuchUpload"))
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)
    assert store.abort_stale_uploads("", -60) == 0


def test_after_damage_parts_are_checked_when_sent(front: Front, store: S3Store, tmp_path: Path) -> None:
    piece = piece_of(tmp_path / "weights", content(2 * PART + 10))
    for number in range(3):
        front.add(Fault("flip_sent", "PUT", r"partNumber=1\b"))
        store.write("weights", piece)
        if number == 0:
            with pytest.raises(StoreError, match="differ"):
                store.prove("weights", piece.size, piece.sha256)
        else:  # the store refused that part, and it was sent again by itself
            store.prove("weights", piece.size, piece.sha256)


@pytest.mark.parametrize("size", [10, 2 * PART + 10])
def test_a_store_may_ask_for_an_md5(front: Front, store: S3Store, tmp_path: Path, size: int) -> None:
    piece = piece_of(tmp_path / "weights", content(size))
    front.add(Fault("refuse", "PUT", "weights", status=400, code="MissingContentMD5"))
    store.write("weights", piece)
    front.add(Fault("flip_sent", "PUT", "other"))
    store.write("other", piece)
    store.prove("other", piece.size, piece.sha256)


def test_a_completion_whose_answer_is_lost_is_done(front: Front, store: S3Store, tmp_path: Path) -> None:
    piece = piece_of(tmp_path / "weights", content(2 * PART + 10))
    front.add(Fault("drop_answer", "POST", "uploadId="))
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)
    assert len([path for method, path in front.seen if method == "PUT"]) == 3


@pytest.mark.parametrize("name", [*FAULTS, "cut"])
def test_a_read_continues_where_it_was(front: Front, store: S3Store, name: str) -> None:
    data = content(700_000)
    store.write_small("a", data)
    front.add(repeated({"cut": Fault("cut"), **FAULTS}[name], "GET", times=3))
    assert whole(store, "a") == data
    front.add(Fault("cut", "GET"))
    assert whole(store, "a", 300_000) == data[300_000:]


@pytest.mark.parametrize("name", FAULTS)
def test_listing_and_deleting_are_repeated(front: Front, store: S3Store, name: str) -> None:
    store.write_small("a", b"")
    for method in ("GET", "HEAD", "POST"):
        front.add(repeated(FAULTS[name], method, times=1))
    assert store.head("a")
    assert [entry.key for entry in store.entries("")] == ["a"]
    store.delete(["a"])
    front.clear()
    assert list(store.entries("")) == []


def test_an_object_that_is_replaced_midway_is_named(
    front: Front, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_train.backup.s3_read.RANGE", 1 << 20)  # more of them than are on the way at a time
    store.write_small("a", content(12 << 20))
    chunks = store.read("a")
    front.add(Fault("cut", "GET"))
    next(chunks)
    store.write_small("a", content(12 << 20, seed=1))
    with pytest.raises(StoreError, match="replaced while it was read") as caught:
        list(chunks)
    assert caught.value.code == "damaged"


def test_the_store_says_how_long_to_wait(front: Front, store: S3Store, waits: list[tuple[str, float]]) -> None:
    front.add(Fault("refuse", "PUT", headers={"Retry-After": "1"}))
    store.write_small("a", b"")
    (_, seconds), *others = waits
    assert (seconds, others) == (1.0, [])


def test_waits_grow_and_are_random(front: Front, waits: list[tuple[str, float]]) -> None:
    timing = Timing(silence=60, patience=120, first_wait=0.01, longest_wait=0.08)
    store = bucket_store(
        front.server, front.server.new_bucket(), port=front.port, timing=timing, on_wait=lambda *w: waits.append(w)
    )
    front.add(Fault("refuse", "PUT", times=8))
    store.write_small("a", b"")
    seconds = [each for _, each in waits]
    bounds = [0.01, 0.02, 0.04, 0.08, 0.08, 0.08, 0.08, 0.08]
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
def test_after_the_patience_the_cause_is_named(front: Front, tmp_path: Path, fault: Fault, cause: str) -> None:
    timing = replace(IMPATIENT, silence=0.5) if fault.kind == "silence" else IMPATIENT
    store = bucket_store(front.server, front.server.new_bucket(), port=front.port, timing=timing)
    piece = piece_of(tmp_path / "weights", content(2 * PART + 10))
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


def test_an_unknown_authority_is_named(front: Front) -> None:
    store = bucket_store(front.server, "any", port=front.port, timing=IMPATIENT, ca_file="")
    with pytest.raises(StoreError, match=r"certificate of .* cannot be verified .*'ca_file'") as caught:
        store.write_small("a", b"")
    assert caught.value.code == "unreachable"


def test_a_store_that_cannot_be_reached_is_named() -> None:
    closed = f"https://127.0.0.1:{free_port()}"
    for endpoint, cause in (("https://store.invalid", "cannot connect to"), (closed, "cannot connect to")):
        store = bucket_store(server("rclone"), "any", endpoint=endpoint, timing=IMPATIENT)
        with pytest.raises(StoreError, match=f"{cause} {endpoint}") as caught:
            list(store.entries(""))
        assert caught.value.code == "unreachable"
