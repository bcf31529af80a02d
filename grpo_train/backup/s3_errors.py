"""What the failures of an S3 request mean: an error for the user, or a cause to try again."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from grpo_train.backup.access import Access
from grpo_train.backup.store import StoreError
from grpo_train.run_dir.files import number_in

_AGAIN = {
    "BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestLimitExceeded", "RequestTimeout",
    "ServiceUnavailable", "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException",
    "XAmzContentSHA256Mismatch",
}  # fmt: skip
"""Also as the answer for one key of several, which has no status of its own."""
_LACKS = {"NotImplemented", "MethodNotAllowed"}
_KEY = {"InvalidAccessKeyId": "the access key ID", "SignatureDoesNotMatch": "the secret access key"}
_ENDED = {"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall"}
_TOKEN = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "ExpiredTokenException"}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
_CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}
_FULL = {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "507"}
_NAME = {"KeyTooLongError", "InvalidURI", "InvalidObjectName", "XMinioInvalidObjectName"}
_RIGHTS = {
    "list_objects_v2": "list objects (s3:ListBucket)",
    "list_multipart_uploads": "list uploads (s3:ListBucketMultipartUploads)",
    "list_parts": "list the parts of an upload (s3:ListMultipartUploadParts)",
    "abort_multipart_upload": "end uploads (s3:AbortMultipartUpload)",
    "get_object": "read objects (s3:GetObject)",
    "head_object": "read objects (s3:GetObject)",
    "delete_objects": "delete objects (s3:DeleteObject)",
}
_TO_WRITE = "write objects (s3:PutObject)"


class UploadEnded(StoreError):
    """A multipart upload that cannot be continued: it was aborted, or a stored part differs from what was sent."""


@dataclass(frozen=True)
class StorePlace:
    """What the messages of a store name."""

    url: str
    bucket: str
    endpoint: str
    region: str
    access: Access


def refusal(
    facts: dict[str, Any], meta: dict[str, Any], operation: str, place: StorePlace, clock_offset_s: float
) -> StoreError | None:
    """What an error that a store answers means for the user; None where the request is worth another try.

    ``facts`` and ``meta``: ``Error`` and ``ResponseMetadata`` of botocore. ``clock_offset_s``: store's clock less this
    machine's.
    """
    code, status = str(facts.get("Code", "")), int(meta.get("HTTPStatusCode") or 0)
    source = place.access.source

    def refused(message: str, kind: str = "refused") -> StoreError:
        return StoreError(f"{place.url}: {message}", code=kind)

    if code in _AGAIN or status in (408, 429) or (status >= 500 and status != 501 and code not in _FULL):
        return None
    if code in _ENDED:
        return UploadEnded(f"{place.url}: the upload has ended ({code})")
    if code in _KEY:
        return refused(f"{place.endpoint} does not accept {_KEY[code]} from {source}")
    if code in _TOKEN:
        return refused(f"the session token from {source} is expired or invalid; write a new one there")
    if code in _CLOCK:
        return refused(clock_problem(clock_offset_s), "clock")
    if code == "NoSuchBucket":
        return refused(
            f"the bucket '{place.bucket}' does not exist at {place.endpoint}; create it, or correct its name",
            "no_bucket",
        )
    if code in _REGION:
        header = meta.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
        right = str(facts.get("Region") or header)
        hint = f"set region: {right}" if right else "set the bucket's region"
        return refused(f"the bucket '{place.bucket}' is not in region {place.region}; {hint}", "wrong_region")
    if code in _FULL:
        return refused("the store is full", "full")
    if code in _LACKS or status == 501:
        return refused(f"{operation}: the store does not have this request ({code or status})", "unsupported")
    if code in ("NoSuchKey", "404"):
        return refused("no such object", "missing")
    if code in _NAME:
        return refused("the store refuses the name", "bad_name")
    if code in ("AccessDenied", "Forbidden", "Unauthorized", "AllAccessDisabled") or status in (401, 403):
        return refused(f"the credentials from {source} have no right to {_RIGHTS.get(operation, _TO_WRITE)}")
    said = "".join(c for c in str(facts.get("Message", "")) if c.isprintable())[:200]
    for value in (place.access.secret, place.access.token, place.access.key_id):
        said = said.replace(value, "…") if value else said
    return refused(f"{operation}: the store answers {code or status} {said}".rstrip())


def unusable(place: StorePlace, error: Exception) -> StoreError:
    """A configuration of boto3 that allows no request: a profile, an endpoint, a region or a login."""
    said = "".join(c for c in str(error) if c.isprintable())[:300]
    return StoreError(f"{place.url}: {said}; correct {place.access.source}", code="refused")


def clock_problem(offset_s: float) -> str:
    """A message for a clock that differs from the store's by ``offset_s`` (positive: this machine is behind)."""
    minutes = abs(offset_s) / 60
    side = "behind" if offset_s > 0 else "ahead of"
    return f"this machine's clock is {minutes:.0f} min {side} the store's; run: sudo timedatectl set-ntp true"


def cause_of(error: BaseException, endpoint: str) -> str:
    """Why a request failed that is worth another try, for people."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        facts = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
        return f"{endpoint} answers {status} {facts.get('Code', '')}".rstrip()
    if isinstance(error, exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            f"the certificate of {endpoint} cannot be verified ({_reason(error)}); a private authority needs 'ca_file'"
        )
    if isinstance(error, (exceptions.ReadTimeoutError, exceptions.ConnectTimeoutError, TimeoutError)):
        return f"{endpoint} does not answer"
    if isinstance(error, exceptions.EndpointConnectionError):
        return f"cannot connect to {endpoint} ({_reason(error)})"
    return f"the connection to {endpoint} broke ({_reason(error)})"


def _reason(error: BaseException) -> str:
    """The innermost reason of a chain of exceptions."""
    seen: BaseException | None = error
    while seen is not None:
        error, seen = seen, seen.__cause__ or seen.__context__
    text = getattr(error, "strerror", None) or getattr(error, "verify_message", None) or str(error)
    return "".join(c for c in text if c.isprintable())[:120] or type(error).__name__


def date_of(headers: dict[str, str]) -> float | None:
    """Seconds since the epoch of a ``Date`` header."""
    try:
        return parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (TypeError, ValueError):
        return None


def retry_after(error: Any) -> float:
    """Seconds that a store asks to wait, at most 120; 0 if it asks nothing."""
    headers = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return min(120.0, max(0.0, number_in(headers.get("retry-after")) or 0.0))  # a store may write a date
