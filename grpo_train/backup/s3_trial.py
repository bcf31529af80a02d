"""What an S3 store does with checksums, found out with small objects that are removed again."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any

from grpo_train.backup.s3_requests import S3Requests
from grpo_train.backup.same_disk import marker_name


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
