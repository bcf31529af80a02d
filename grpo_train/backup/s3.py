"""A store in a bucket of any server that speaks S3. boto3 is imported when the first request is made.

boto3 signs and sends; what is repeated, when, and for how long is decided in :mod:`~grpo_train.backup.s3_requests`.
Amazon's transfer library is not used: it cannot continue the parts of a cut upload.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from grpo_train.backup.access import Access
from grpo_train.backup.s3_errors import StorePlace
from grpo_train.backup.s3_read import ObjectReader
from grpo_train.backup.s3_requests import OnWait, S3Requests, S3Timing
from grpo_train.backup.s3_upload import PART, Uploader
from grpo_train.backup.store import (
    FilePiece,
    OnBytes,
    RateLimit,
    StoredObject,
    StoreError,
    check_content,
    check_key,
    check_prefix,
    is_key,
)
from grpo_train.backup.trial import marker_name
from grpo_train.run_dir.clock import CLOCK, Clock

_KEYS_PER_DELETION = 1_000


class S3Store:
    """Objects below ``prefix`` in a bucket."""

    def __init__(
        self,
        access: Access,
        *,
        bucket: str = "",
        prefix: str = "",
        endpoint: str = "",
        region: str = "",
        ca_file: str = "",
        limit: RateLimit | None = None,
        transfers: int = 4,
        part: int = PART,
        timing: S3Timing | None = None,
        on_wait: OnWait | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        bucket = bucket or access.bucket
        if not bucket:
            raise StoreError(f"no bucket: set 'bucket', or S3_BUCKET in {access.source}", code="no_bucket")
        self._prefix = check_prefix(f"{prefix.strip('/')}/" if prefix.strip("/") else "")
        self.url = f"s3://{bucket}/{self._prefix}".rstrip("/")
        self.location = f"{bucket}/{self._prefix}".rstrip("/")
        self._requests = S3Requests(
            access,
            StorePlace(self.url, bucket, endpoint or access.endpoint, region or access.region, access),
            ca_file=ca_file,
            connections=4 * transfers,
            timing=timing,
            limit=limit,
            on_wait=on_wait,
            clock=clock,
        )
        self.identity = f"{self._requests.place.endpoint}/{self.location}"
        self._reader = ObjectReader(self._requests, transfers, limit)
        self._uploader = Uploader(self._requests, transfers, part)
        self._checksums: dict[str, tuple[str, str]] = {}
        """Of the objects in parts that were written: their SHA-256, and the checksum that the store must report."""

    def trust_checksums(self, computes_sha256: bool) -> None:
        """Send SHA-256 checksums, and take those that the store reports as proofs."""
        self._uploader.sends_sha256 = computes_sha256

    # ------------------------------------------------------------------------------------------------- listing

    def entries(self, prefix: str) -> Iterator[StoredObject]:
        for page in self._pages(prefix):
            for item in page.get("Contents", ()):
                key = item["Key"].removeprefix(self._prefix)
                if is_key(key):  # a folder made in a console is an object whose key ends with a slash
                    yield StoredObject(key, item["Size"], item["LastModified"].timestamp())

    def folders(self, prefix: str) -> list[str]:
        start = len(self._prefix + check_prefix(prefix))
        pages = self._pages(prefix, Delimiter="/")
        return sorted(item["Prefix"][start:-1] for page in pages for item in page.get("CommonPrefixes", ()))

    def _pages(self, prefix: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        full = self._prefix + check_prefix(prefix)
        while True:
            page = self._requests.call("list_objects_v2", Prefix=full, **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def head(self, key: str) -> StoredObject | None:
        facts = self._head(self._full(key))
        return StoredObject(key, facts["ContentLength"], facts["LastModified"].timestamp()) if facts else None

    def _head(self, full: str, **arguments: Any) -> dict[str, Any] | None:
        try:
            return self._requests.call("head_object", Key=full, **arguments)
        except StoreError as error:
            if error.code == "missing":
                return None
            raise

    # ------------------------------------------------------------------------------------------------- reading

    def read(self, key: str, start: int = 0) -> Iterator[memoryview]:
        return self._reader.read(self._full(key), f"{self.url}/{key}", start)

    def read_small(self, key: str, limit: int) -> bytes:
        data = bytearray()
        for chunk in self.read(key):
            data += chunk
            if len(data) > limit:
                raise StoreError(f"{self.url}/{key}: more than {limit} bytes", code="damaged")
        return bytes(data)

    # ------------------------------------------------------------------------------------------------- writing

    def write(self, key: str, piece: FilePiece, on_bytes: OnBytes | None = None) -> None:
        full = self._full(key)

        def size() -> int | None:
            facts = self._head(full)
            return facts["ContentLength"] if facts else None

        checksum = self._uploader.upload(full, piece, on_bytes, size)
        if checksum:
            self._checksums[key] = (piece.sha256, checksum)

    def write_small(self, key: str, data: bytes) -> None:
        self._uploader.put(self._full(key), data)

    def delete(self, keys: Iterable[str]) -> None:
        left = iter(keys)
        while batch := [self._full(key) for key in islice(left, _KEYS_PER_DELETION)]:
            backoff = self._requests.backoff()
            while batch:
                objects = [{"Key": full} for full in batch]
                answer = self._requests.call("delete_objects", Delete={"Objects": objects, "Quiet": True})
                failures = [item for item in answer.get("Errors", ()) if item.get("Code") != "NoSuchKey"]
                for failure in failures:
                    if refused := self._requests.refusal_of(failure, "delete_objects"):
                        raise refused
                batch = [item["Key"] for item in failures]
                if batch:
                    backoff.wait(self.url, f"{self._requests.place.endpoint} answers {failures[0].get('Code')}")

    def abort_stale_uploads(self, prefix: str, older_than_s: float) -> int:
        uploads = self._uploader.uploads(self._prefix + check_prefix(prefix))
        oldest = self._requests.now() - older_than_s
        stale = [item for item in uploads if item["Initiated"].timestamp() < oldest]
        return sum(self._uploader.abort(item["Key"], item["UploadId"]) for item in stale)

    # -------------------------------------------------------------------------------------------------- proofs

    def prove(self, key: str, size: int, sha256: str, on_bytes: OnBytes | None = None) -> bool:
        if not self._uploader.sends_sha256:
            self.read_back(key, size, sha256, on_bytes)
            return True
        facts = self._head(self._full(key), ChecksumMode="ENABLED")
        if not facts:
            raise StoreError(f"{self.url}/{key}: no such object", code="missing")
        reported = facts.get("ChecksumSHA256", "")
        known, checksum = self._checksums.get(key, ("", ""))
        expected = checksum if known == sha256 else base64.b64encode(bytes.fromhex(sha256)).decode()
        if facts["ContentLength"] == size and reported == expected:
            return False
        self.read_back(key, size, sha256, on_bytes)  # written in parts by another process, or damaged
        return True

    def read_back(self, key: str, size: int, sha256: str, on_bytes: OnBytes | None = None) -> None:
        try:
            check_content(self.read(key), f"{self.url}/{key}", size, sha256, on_bytes)
        except StoreError as error:
            if error.code == "damaged":
                self._uploader.sends_md5 = True
            raise

    def now(self) -> float:
        return self._requests.now()

    # --------------------------------------------------------------------------------------------------- trial

    def is_on_disk_of(self, folder: object) -> bool:
        return False  # only the markers tell

    def sees(self, name: str) -> bool:
        try:
            return self._head(name) is not None
        except StoreError as error:
            if error.code == "refused":  # no right above the prefix
                return False
            raise

    def try_checksums(self) -> tuple[bool, bool]:
        return try_checksums(self._requests, self._prefix)

    # -------------------------------------------------------------------------------------------------- errors

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)


def try_checksums(requests: S3Requests, prefix: str) -> tuple[bool, bool]:
    """(computes SHA-256 checksums itself, refuses a wrong Content-MD5)."""
    keys = [prefix + marker_name() for _ in range(3)]
    try:
        refuses_md5 = not _accepts(requests, keys[0], ContentMD5=_md5(b"other"))
        computes = not _accepts(requests, keys[0], ChecksumSHA256=_sha256(b"other")) and _reports(requests, keys)
        return computes, refuses_md5
    finally:
        requests.call("delete_objects", Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True})


def _accepts(requests: S3Requests, key: str, **checksum: str) -> bool:
    """Whether an object is stored whose checksum is wrong."""
    return requests.try_once("put_object", Key=key, Body=secrets.token_bytes(64), **checksum) is not None


def _reports(requests: S3Requests, keys: list[str]) -> bool:
    """Whether the right SHA-256 is reported of an object that came without one, and of one in parts."""
    data = secrets.token_bytes(64)
    requests.call("put_object", Key=keys[1], Body=data)
    source = {"Bucket": requests.place.bucket, "Key": keys[1]}
    if requests.try_once("copy_object", Key=keys[2], CopySource=source, ChecksumAlgorithm="SHA256") is None:
        return False
    if _reported(requests, keys[2]) != _sha256(data):
        return False
    upload = requests.call("create_multipart_upload", Key=keys[2], ChecksumAlgorithm="SHA256")["UploadId"]
    part: dict[str, Any] = {"Key": keys[2], "UploadId": upload, "PartNumber": 1, "Body": data}
    try:
        if requests.try_once("upload_part", **part, ChecksumSHA256=_sha256(b"other")) is not None:
            return False
        etag = requests.call("upload_part", **part, ChecksumSHA256=_sha256(data))["ETag"]
        parts = [{"PartNumber": 1, "ETag": etag, "ChecksumSHA256": _sha256(data)}]
        requests.call("complete_multipart_upload", Key=keys[2], UploadId=upload, MultipartUpload={"Parts": parts})
        upload = ""
    finally:
        if upload:
            requests.try_once("abort_multipart_upload", Key=keys[2], UploadId=upload)
    return _reported(requests, keys[2]) == _sha256(hashlib.sha256(data).digest()) + "-1"


def _reported(requests: S3Requests, key: str) -> str:
    facts = requests.call("head_object", Key=key, ChecksumMode="ENABLED")
    return str(facts.get("ChecksumSHA256", ""))


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def _sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()
