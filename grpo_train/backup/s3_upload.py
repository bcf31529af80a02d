"""Uploads to an S3 store: small files in one request, large ones in parts that a later upload finds and keeps.

The parts of a cut upload are listed by the store, so nothing about them is kept here: a part counts as sent when its
checksum is that of the bytes which are on this disk now.

Files are sent with a SHA-256 where the store computes its own. Elsewhere they are read back, and TLS protects them on
the way: a Content-MD5, which takes a third of the processor time of sending, is only sent to a store that asks for one,
and after an object came back damaged, so that a store that checks it refuses a damaged part.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from grpo_train.backup.s3_errors import UploadEnded
from grpo_train.backup.s3_requests import S3Requests
from grpo_train.backup.store import FilePiece, OnBytes, StoreError, read_piece

logger = logging.getLogger(__name__)
PART = 8 << 20
"""Bytes of a part; files up to this size are one request."""
MAX_PARTS = 10_000
MAX_BYTES = 5 << 40
"""Limits of S3."""


@dataclass
class _Part:
    """A part in the store."""

    etag: str
    size: int
    sha256: str = ""
    """Base64; "" where the store reports none."""

    def holds(self, data: bytes) -> bool:
        """Whether it holds these bytes, as far as its checksum says."""
        if len(data) != self.size:
            return False
        return self.sha256 == base64_sha256(data) if self.sha256 else self.etag == hashlib.md5(data).hexdigest()


@dataclass
class _Upload:
    """A multipart upload that is under way."""

    key: str
    id: str
    found: dict[int, _Part]
    """Parts that an earlier process left."""
    sent: dict[int, _Part] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None
    """Of the first part that failed."""


class Uploader:
    """Uploads files of one store, with at most ``transfers`` parts on the way at a time."""

    def __init__(self, requests: S3Requests, transfers: int, part: int = PART) -> None:
        self.sends_sha256 = False
        """Whether the store checks SHA-256 checksums, so that they are sent."""
        self.sends_md5 = False
        """Whether files are sent with a Content-MD5 otherwise."""
        self._lists_uploads = True
        """Whether the store lists uploads in parts, as far as is known."""
        self._requests = requests
        self._part = part
        self._workers = ThreadPoolExecutor(transfers, thread_name_prefix="upload")
        self._slots = threading.BoundedSemaphore(transfers + 1)

    def upload(self, key: str, piece: FilePiece, on_bytes: OnBytes | None, size_of: Callable[[], int | None]) -> str:
        """Store a piece under a full key; returns the checksum that the store must report, or "".

        ``size_of`` returns the size of the object under the key, if there is one. Raises StoreError.
        """
        if piece.size <= self._part:
            checksum = base64.b64encode(bytes.fromhex(piece.sha256)).decode() if self.sends_sha256 else ""
            data = b"".join(read_piece(piece, self._part))
            self._put("put_object", data, checksum, Key=key)
            if on_bytes:
                on_bytes(len(data))
            return checksum
        if piece.size > MAX_BYTES:
            raise StoreError(f"{piece.path}: {piece.size} bytes, more than an object can hold", code="full")
        for last_try in (False, False, True):
            upload, is_sent = self._resume(key) or self._create(key), False
            try:
                self._send(upload, piece, on_bytes)
                is_sent = True
                return self._complete(upload)
            except UploadEnded:
                self.abort(upload.key, upload.id)
                if is_sent and size_of() == piece.size:  # the answer to its completion was lost
                    return ""
                if last_try:
                    raise
            except StoreError as error:
                if error.code == "changed":
                    self.abort(upload.key, upload.id)
                raise
        raise AssertionError

    def put(self, key: str, data: bytes) -> None:
        """Store a small object in one request."""
        checksum = base64_sha256(data) if self.sends_sha256 else ""
        self._requests.call("put_object", Key=key, Body=data, **(_sha256(checksum) if checksum else _md5(data)))

    def uploads(self, prefix: str) -> list[dict[str, Any]]:
        """Uploads in parts that are under way or were cut: ``Key``, ``UploadId``, ``Initiated``.

        None are known where the store does not list them, which is logged once.
        """
        found: list[dict[str, Any]] = []
        arguments: dict[str, Any] = {"Prefix": prefix}
        while self._lists_uploads:
            try:
                page = self._requests.call("list_multipart_uploads", **arguments)
            except UploadEnded:  # rclone, in a bucket without any
                break
            except StoreError as error:
                if error.code != "unsupported":
                    raise
                self._lists_uploads = False
                logger.warning("%s; uploads in parts that are cut stay there and are begun again", error)
                break
            found += page.get("Uploads", ())
            if not page.get("IsTruncated"):
                break
            arguments |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        return found

    def abort(self, key: str, upload_id: str) -> bool:
        """End an upload in parts; returns whether there was one."""
        try:
            self._requests.call("abort_multipart_upload", Key=key, UploadId=upload_id)
        except UploadEnded:
            return False
        return True

    # --------------------------------------------------------------------------------------------------- parts

    def _send(self, upload: _Upload, piece: FilePiece, on_bytes: OnBytes | None) -> None:
        """Send the parts that are not in the store yet, several at a time."""
        waiting: list[Future[None]] = []
        size = max(self._part, -(-piece.size // MAX_PARTS))
        parts, number = read_piece(piece, size), 0
        try:
            while not upload.stop.is_set() and (data := self._next_part(parts)):
                number += 1
                waiting.append(self._workers.submit(self._send_part, upload, number, data, on_bytes))
                del data  # it is the worker's
            wait(waiting)
        finally:
            upload.stop.set()
            for future in waiting:
                if future.cancel():
                    self._slots.release()
            wait(waiting)
        if upload.failure:
            raise upload.failure

    def _next_part(self, parts: Iterator[bytes]) -> bytes:
        """Read a part once there is a slot for it, which is given back with the part; b"" after the last one."""
        self._slots.acquire()
        data = b""
        try:
            data = next(parts, b"")
            return data
        finally:
            if not data:
                self._slots.release()

    def _send_part(self, upload: _Upload, number: int, data: bytes, on_bytes: OnBytes | None) -> None:
        try:
            if upload.stop.is_set():
                return
            found = upload.found.get(number)
            if found and not found.holds(data):  # not every server lets a part be replaced
                raise UploadEnded(f"{self._requests.place.url}: a part of the cut upload holds other bytes")
            if not found:
                checksum = base64_sha256(data) if self.sends_sha256 else ""
                response = self._put(
                    "upload_part",
                    data,
                    checksum,
                    Key=upload.key,
                    UploadId=upload.id,
                    PartNumber=number,
                    stop=upload.stop,
                    if_broken=lambda: self._call("list_parts", upload, stop=upload.stop, MaxParts=1),
                )
                found = _Part(str(response["ETag"]), len(data), checksum)
            upload.sent[number] = found
            if on_bytes:
                on_bytes(len(data))
        except BaseException as error:
            upload.failure = upload.failure or error
            upload.stop.set()
        finally:
            self._slots.release()

    def _complete(self, upload: _Upload) -> str:
        parts: list[dict[str, Any]] = []
        for number, part in sorted(upload.sent.items()):
            parts.append({"PartNumber": number, "ETag": part.etag})
            if part.sha256:
                parts[-1]["ChecksumSHA256"] = part.sha256
        self._call("complete_multipart_upload", upload, MultipartUpload={"Parts": parts})
        if not all(part.sha256 for part in upload.sent.values()):
            return ""
        joined = b"".join(base64.b64decode(part.sha256) for _, part in sorted(upload.sent.items()))
        return f"{base64_sha256(joined)}-{len(parts)}"

    # ------------------------------------------------------------------------------------------------- uploads

    def _create(self, key: str) -> _Upload:
        algorithm: dict[str, Any] = {"ChecksumAlgorithm": "SHA256"} if self.sends_sha256 else {}
        response = self._requests.call("create_multipart_upload", Key=key, **algorithm)
        return _Upload(key, str(response["UploadId"]), {})

    def _resume(self, key: str) -> _Upload | None:
        """The newest upload of a key that was cut, with its parts."""
        cut = [item for item in self.uploads(key) if item["Key"] == key]
        if not cut:
            return None
        newest = max(cut, key=lambda item: item["Initiated"])
        upload, marker = _Upload(key, newest["UploadId"], {}), 0
        while True:
            try:
                page = self._call("list_parts", upload, PartNumberMarker=marker)
            except UploadEnded:  # by another process, since it was listed
                return None
            for item in page.get("Parts", ()):
                part = _Part(item["ETag"].strip('"'), item["Size"], item.get("ChecksumSHA256", ""))
                upload.found[item["PartNumber"]] = part
            marker = page.get("NextPartNumberMarker", 0)
            if not page.get("IsTruncated"):
                return upload

    def _put(self, operation: str, data: bytes, sha256: str, **arguments: Any) -> dict[str, Any]:
        """Send bytes of a file; ``sha256``: base64, or "" where the store does not check it."""
        if not sha256 and not self.sends_md5:
            try:
                return self._requests.call(operation, Body=data, **arguments)
            except StoreError as error:
                if not _asks_for_md5(error):
                    raise
                self.sends_md5 = True
        checksum = _sha256(sha256) if sha256 else _md5(data)
        return self._requests.call(operation, Body=data, **arguments, **checksum)

    def _call(self, operation: str, upload: _Upload, **arguments: Any) -> dict[str, Any]:
        return self._requests.call(operation, Key=upload.key, UploadId=upload.id, **arguments)


def base64_sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def _sha256(checksum: str) -> dict[str, Any]:
    return {"ChecksumSHA256": checksum}


def _md5(data: bytes) -> dict[str, Any]:
    return {"ContentMD5": base64.b64encode(hashlib.md5(data).digest()).decode()}


def _asks_for_md5(error: StoreError) -> bool:
    """Whether a store refuses bytes that come without a Content-MD5, as some do for buckets with object lock."""
    facts = getattr(error.__cause__, "response", {}).get("Error", {})
    return "MD5" in f"{facts.get('Code')} {facts.get('Message')}".upper()
