"""What proves that an object is in a store: a checksum that the store computed, or its bytes.

``tests/soak/test_s3_proofs.py`` runs these tests over the wire, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.backup.destinations import open_destination
from grpo_train.backup.s3 import S3Store
from grpo_train.backup.store import StoreError
from tests.support.s3_checksums import Checksums
from tests.support.s3_faults import Fault, Faults, FaultyRequests
from tests.support.s3_servers import server
from tests.support.stores import bucket_store, content, describe_bucket, piece_of

PART = 5 << 20
SIZES = [1_000, PART + 1_000]


@pytest.fixture
def front() -> Iterator[Faults]:
    with FaultyRequests(server("moto")) as opened:
        yield opened


@pytest.fixture
def store(front: Faults) -> S3Store:
    return bucket_store(front.server, front.server.new_bucket(), port=front.port)


def problem(store: S3Store, key: str, size: int, sha256: str) -> str:
    with pytest.raises(StoreError, match=key) as caught:
        store.prove(key, size, sha256)
    return caught.value.code


def requests(front: Faults, method: str) -> int:
    return len([each for each, _ in front.seen if each == method])


def test_what_the_servers_do_is_found_out(front: Faults) -> None:
    assert bucket_store(server("rclone"), server("rclone").new_bucket()).try_checksums() == (False, True)
    store = bucket_store(front.server, front.server.new_bucket(), port=front.port)
    assert store.try_checksums() == (False, False)
    front.checksums = Checksums()
    assert store.try_checksums() == (True, False)
    assert list(store.entries("")) == []
    assert store.abort_stale_uploads("", -60) == 0


def test_a_store_that_only_reports_is_not_trusted(front: Faults, store: S3Store) -> None:
    front.checksums = Checksums()
    front.checksums.is_wrong = lambda *_: False  # type: ignore[method-assign]
    assert store.try_checksums() == (False, False)


def test_a_trial_is_made_once(front: Faults, tmp_path: Path) -> None:
    front.checksums = Checksums()
    bucket = front.server.new_bucket()
    describe_bucket(bucket, front.server, port=front.port)
    first = open_destination(None, tmp_path)
    assert first.trust.computes_sha256
    assert not first.trust.same_disk
    front.seen.clear()
    assert open_destination(None, tmp_path).trust == first.trust
    assert requests(front, "PUT") == 1
    assert open_destination(None, tmp_path, write=False).trust.computes_sha256


@pytest.mark.parametrize("size", SIZES)
def test_a_computed_checksum_saves_the_reading(front: Faults, store: S3Store, tmp_path: Path, size: int) -> None:
    front.checksums = Checksums()
    store.trust_checksums(True)
    piece = piece_of(tmp_path / "weights", content(size))
    store.write("weights", piece)
    front.seen.clear()
    store.prove("weights", piece.size, piece.sha256)
    assert [method for method, _ in front.seen] == ["HEAD"]


@pytest.mark.parametrize("size", SIZES)
def test_another_process_reads_what_it_cannot_compute(front: Faults, store: S3Store, tmp_path: Path, size: int) -> None:
    front.checksums = Checksums()
    store.trust_checksums(True)
    piece = piece_of(tmp_path / "weights", content(size))
    store.write("weights", piece)
    other = bucket_store(front.server, store.location.partition("/")[0], port=front.port)
    other.trust_checksums(True)
    front.seen.clear()
    other.prove("weights", piece.size, piece.sha256)
    assert requests(front, "GET") == (size > PART)


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_wrong_bytes_in_the_store_are_found(
    front: Faults, store: S3Store, tmp_path: Path, size: int, computes: bool
) -> None:
    if computes:
        front.checksums = Checksums()
        store.trust_checksums(True)
    piece = piece_of(tmp_path / "weights", content(size))
    store.write("weights", piece)
    for wrong in (content(size, seed=1), content(size)[:-1], b""):
        store.write("weights", piece_of(tmp_path / "wrong", wrong))
        assert problem(store, "weights", piece.size, piece.sha256) == "damaged"
    store.delete(["weights"])
    assert problem(store, "weights", piece.size, piece.sha256) == "missing"


@pytest.mark.parametrize("fault", ["flip_sent", "shorten_sent"])
@pytest.mark.parametrize("size", SIZES)
def test_a_store_that_keeps_other_bytes_is_found_out(
    front: Faults, store: S3Store, tmp_path: Path, size: int, fault: str
) -> None:
    piece = piece_of(tmp_path / "weights", content(size))
    front.add(Fault(fault, "PUT", "(weights|partNumber=2)$"))  # the first part would be too small for one
    store.write("weights", piece)
    assert problem(store, "weights", piece.size, piece.sha256) == "damaged"
    store.write("weights", piece)
    store.prove("weights", piece.size, piece.sha256)


def test_a_head_that_lies_proves_nothing(front: Faults, store: S3Store, tmp_path: Path) -> None:
    piece = piece_of(tmp_path / "weights", content(1_000))
    store.write("weights", piece)
    front.add(Fault("lie", "HEAD", times=99))
    for computes in (False, True):
        store.trust_checksums(computes)
        store.prove("weights", piece.size, piece.sha256)
    store.write_small("weights", b"1234567")
    assert problem(store, "weights", piece.size, piece.sha256) == "damaged"


def test_bytes_that_change_on_the_way_back_are_found(front: Faults, store: S3Store, tmp_path: Path) -> None:
    piece = piece_of(tmp_path / "weights", content(1_000))
    store.write("weights", piece)
    front.add(Fault("flip", "GET"))
    assert problem(store, "weights", piece.size, piece.sha256) == "damaged"
    store.prove("weights", piece.size, piece.sha256)
