"""Requests to an S3 store: repeated with back-off, each with a deadline; the store's clock. boto3 only sends them."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from grpo_train.backup.access import Access
from grpo_train.backup.s3_errors import StorePlace, cause_of, date_of, refusal, retry_after, unusable
from grpo_train.backup.store import RateLimit, StoreError
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.web_page import is_page, words_of

OnWait = Callable[[str, float], None]
"""Called before a wait with its cause, for people, and its seconds."""

_BLOCK = 256 << 10
_SLOWEST = 16 << 10
"""Bytes per second below which a request is given up and repeated."""


@dataclass(frozen=True)
class S3Timing:
    """Seconds."""

    silence: float = 60.0
    """A request without a byte for this long is given up and repeated."""
    patience: float = 600.0
    """Repeats without success for this long end in ``unreachable``."""
    first_wait: float = 1.0
    longest_wait: float = 60.0


class Backoff:
    """Waits between the tries of one request: random, and twice as long each time."""

    def __init__(self, timing: S3Timing, stop: threading.Event, on_wait: OnWait | None, clock: Clock = CLOCK) -> None:
        self._timing, self._stop, self._on_wait, self._clock = timing, stop, on_wait, clock
        self.progressed()

    def progressed(self) -> None:
        """Start again with the shortest wait: bytes have moved."""
        self._wait = self._timing.first_wait
        self._began: float | None = None

    def wait(self, url: str, cause: str, at_least: float = 0.0) -> None:
        """Wait for the next try. Raises StoreError (``unreachable``) after the time of patience."""
        now = self._clock.monotonic()
        self._began = self._began or now
        left = self._timing.patience - (now - self._began)
        if left <= 0:
            minutes = self._timing.patience / 60
            raise StoreError(f"{url}: {cause}; given up after {minutes:.0f} min, run the command again to continue")
        seconds = min(left, max(at_least, self._wait * random.uniform(0.5, 1.0)))
        self._wait = min(self._timing.longest_wait, 2 * self._wait)
        if self._on_wait:
            self._on_wait(cause, seconds)
        if self._clock.wait(self._stop, seconds):
            raise StoreError(f"{url}: stopped while waiting ({cause})")


_PROMISED = {
    "get_object": {"ETag"}, "head_object": {"ETag", "LastModified"}, "list_objects_v2": {"IsTruncated"},
}  # fmt: skip
"""What every S3 store sends: without it, an answer is not from one."""


class Body:
    """The bytes of one request: within the limit of the rate, ended by a deadline or a stop."""

    def __init__(
        self, data: bytes, limit: RateLimit | None, timing: S3Timing, stop: threading.Event, clock: Clock = CLOCK
    ) -> None:
        self._data, self._limit, self._stop, self._clock = memoryview(data), limit, stop, clock
        self._allowed = timing.silence + len(data) / _SLOWEST
        self.seek(0)

    def read(self, _size: int = -1) -> memoryview:
        """The next block; larger blocks than asked for save calls. Nothing is copied."""
        if self._stop.is_set() or self._clock.monotonic() - self._began > self._allowed:
            raise TimeoutError("the request took too long")
        block = self._data[self._at : self._at + _BLOCK]
        self._at += len(block)
        if self._limit:
            asked = self._clock.monotonic()
            self._limit.take(len(block))
            self._began += self._clock.monotonic() - asked  # the store is not to blame for this wait
        return block

    def seek(self, at: int, whence: int = 0) -> int:
        self._at = (0, getattr(self, "_at", 0), len(self._data))[whence] + at
        self._began = self._clock.monotonic()
        return self._at

    def tell(self) -> int:
        return self._at

    def __len__(self) -> int:
        return len(self._data)


class S3Requests:
    """Sends the requests of one store. All methods may be called by several threads."""

    def __init__(
        self,
        access: Access,
        place: StorePlace,
        *,
        ca_file: str = "",
        connections: int = 16,
        timing: S3Timing | None = None,
        limit: RateLimit | None = None,
        on_wait: OnWait | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        self.timing = timing or S3Timing()
        self.limit = limit
        self._on_wait, self._clock = on_wait, clock
        self._client = _client(access, place, ca_file, connections, self.timing)
        self.place = StorePlace(
            place.url,
            place.bucket,
            place.endpoint or str(self._client.meta.endpoint_url),
            place.region or str(self._client.meta.region_name),
            access,
        )
        self._store_date: tuple[float, float] | None = None
        """The last ``Date`` of the store, and the monotonic time when it came."""

    def call(
        self,
        operation: str,
        stop: threading.Event | None = None,
        if_broken: Callable[[], object] = lambda: None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """The response to a request about the bucket. ``Body`` is bytes. Raises StoreError.

        ``if_broken`` is called before the next try when a connection broke: a server that refuses a large body may
        close the connection before its answer can be read.
        """
        from botocore.exceptions import ClientError

        try:
            return self._send(operation, stop, arguments, lambda status: False, if_broken)
        except ClientError as error:
            refused = self.refusal_of(error.response.get("Error", {}), operation, error.response["ResponseMetadata"])
            assert refused
            raise refused from error

    def try_once(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """The response to a request that the store may refuse; None if it does. Raises StoreError."""
        from botocore.exceptions import ClientError

        try:
            return self._send(operation, None, arguments, lambda status: status in (400, 501))
        except ClientError:
            return None

    def _send(
        self,
        operation: str,
        stop: threading.Event | None,
        arguments: dict[str, Any],
        is_final: Callable[[int], bool],
        if_broken: Callable[[], object] = lambda: None,
    ) -> dict[str, Any]:
        """Send a request until it is answered. Raises ClientError for a refusal, StoreError."""
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        stop = stop or threading.Event()
        backoff = self.backoff(stop)
        data = arguments.pop("Body", None)
        while True:
            if data is not None:
                arguments["Body"] = Body(data, self.limit, self.timing, stop, self._clock)
            try:
                response = getattr(self._client, operation)(Bucket=self.place.bucket, **arguments)
                if not _PROMISED.get(operation, set()) <= response.keys():
                    raise ResponseParserError(f"no {' and '.join(_PROMISED[operation])}")
                self._note_date(response)
                return response  # type: ignore[no-any-return]
            except exceptions.ClientError as error:
                self._note_date(error.response)
                meta = error.response["ResponseMetadata"]
                if is_final(meta.get("HTTPStatusCode", 0)) or self.refusal_of(error.response["Error"], operation, meta):
                    raise
                backoff.wait(self.place.url, cause_of(error, self.place.endpoint), retry_after(error))
            except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
                raise StoreError(
                    f"{self.place.url}: no credentials; write AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into a file "
                    "that only you can read, and name it with 'credentials' in backup.yaml",
                    code="refused",
                ) from error
            except exceptions.ParamValidationError as error:  # a bucket that botocore knows to be impossible
                raise StoreError(f"{self.place.url}: {error}", code="bad_name") from error
            except (
                exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError, OSError
            ) as error:  # fmt: skip
                backoff.wait(self.place.url, cause_of(error, self.place.endpoint))
                if_broken()
            except exceptions.BotoCoreError as error:  # a login that has ended, a role that cannot be taken
                raise unusable(self.place, error) from error
            except (ResponseParserError, RecursionError) as error:  # a web page; a redirect, which botocore follows
                where = self.place.endpoint or "its endpoint"
                cause = f"{where} answers what an S3 store would not (a web page, or a redirect)"
                if self._store_date is None:  # it never was one
                    raise StoreError(f"{self.place.url}: {cause}; correct the endpoint", code="refused") from error
                backoff.wait(self.place.url, cause)

    def refusal_of(
        self, facts: dict[str, Any], operation: str, meta: dict[str, Any] | None = None
    ) -> StoreError | None:
        """What an error in a response means for the user; None where the request is worth another try."""
        return refusal(facts, meta or {}, operation, self.place, self.clock_offset())

    def backoff(self, stop: threading.Event | None = None) -> Backoff:
        return Backoff(self.timing, stop or threading.Event(), self._on_wait, self._clock)

    def now(self) -> float:
        """Seconds since the epoch by the store's clock, from the latest response; one must have come."""
        if self._store_date is None:
            return self._clock.time()
        date, then = self._store_date
        return date + self._clock.monotonic() - then

    def clock_offset(self) -> float:
        """Seconds by which the store's clock is ahead of this machine's."""
        return self.now() - self._clock.time()

    def _note_date(self, response: dict[str, Any]) -> None:
        date = date_of(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}))
        if date is not None:
            self._store_date = (date, self._clock.monotonic())


def _client(access: Access, place: StorePlace, ca_file: str, connections: int, timing: S3Timing) -> Any:
    """A boto3 client that tries each request once and adds no checksum of its own. Raises StoreError.

    Credentials that are given go with their own endpoint and region: profiles and ``~/.aws/config`` are not read.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header

    try:
        session = _session(own=not access.key_id)
        # TLS protects a body already. Without it, the signature contains the body's hash.
        signing = {} if place.endpoint.startswith("http://") else {"payload_signing_enabled": False}
        client = session.client(
            "s3",
            aws_access_key_id=access.key_id or None,
            aws_secret_access_key=access.secret or None,
            aws_session_token=access.token or None,
            endpoint_url=place.endpoint or None,
            region_name=place.region or session.region_name or "us-east-1",
            verify=ca_file or None,
            config=Config(
                signature_version="s3v4",
                connect_timeout=timing.silence,
                read_timeout=timing.silence,
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                max_pool_connections=connections,
                ignore_configured_endpoint_urls=bool(access.key_id),
                tcp_keepalive=True,
                s3={"addressing_style": "path" if place.endpoint else "auto", **signing},
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise unusable(place, error) from error
    client.meta.events.unregister("before-call.s3", add_expect_header)  # rights were tried before; saves a round trip
    client.meta.events.register_first("before-parse.s3", functools.partial(_refuse_pages, place))
    return client


def _refuse_pages(place: StorePlace, response_dict: dict[str, Any], **_: Any) -> None:
    """Raise StoreError for a web page: botocore reads that of a 404 as a missing object, and others as it can."""
    body, status = response_dict["body"], response_dict["status_code"]
    if isinstance(body, bytes) and status < 500 and status not in (408, 429) and is_page(body):
        said = f"{place.endpoint or 'the store'} answers with a page that is not a store's (HTTP {status})"
        raise StoreError(f"{place.url}: {said}: “{words_of(body)}”; a proxy may be in between", code="unreachable")


@functools.cache
def _session(own: bool) -> Any:
    """What all clients of this process share: reading boto3's data files takes a moment.

    ``own``: with the profile, the config and the credentials of this account.
    """
    import boto3
    import botocore.session

    nothing = (None, None, None, None)
    core = botocore.session.Session({} if own else {"profile": nothing, "config_file": nothing})
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time_of)
    return boto3.session.Session(botocore_session=core)


def _time_of(text: Any) -> datetime:
    """A time in a response. botocore's own parser tries many formats, which takes half of the time of a listing."""
    from botocore.utils import parse_timestamp

    if isinstance(text, str) and text.endswith("Z"):
        try:
            return datetime.fromisoformat(f"{text[:-1]}+00:00")
        except ValueError:
            pass
    parsed: datetime = parse_timestamp(text)
    return parsed
