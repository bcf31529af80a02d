"""Providers of rented machines: the machine of a box is found by its instance's name, whatever its address is today.

Nothing is launched or terminated here. Providers allow few requests (Lambda: one a second), so boxes of an account that
connect at the same time share one answer.

Lambda Cloud API v1: ``GET /instances``, with the key as a bearer token, which goes nowhere else. The shapes are those
of the published OpenAPI document (1.5.3 to 1.10.0, https://cloud.lambda.ai/api/v1/openapi.json):
``{"data": [{"id", "name", "ip", "status", "region": {"name"}, "instance_type": {"name", "price_cents_per_hour"}}]}``,
of which only ``id`` and ``status`` are always there. An instance also has a token for its notebook, which is dropped.
It was never run against the real service.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError, did_you_mean
from grpo_train.run_dir.version import VERSION
from grpo_train.run_dir.web_page import words_of
from remote.base import Refused, Unreachable
from remote.boxes import Box, Provider
from remote.protocol.text import clean

MAX_KEY = 1_000


class ProviderError(UserError):
    """A provider did not list its instances.

    ``code``: ``provider_key`` (the key, or the account), ``provider_busy`` (asked too often), ``provider_reply`` (an
    answer of another kind), ``provider_unreachable``. No message holds the key.
    """

    code = "provider_unreachable"


def read_key(provider: Provider) -> str:
    """The API key. Raises ProviderError for a file that is missing, that others can read, or that holds no key."""
    file = Path(provider.key_file).expanduser()

    def refuse(problem: str) -> ProviderError:
        return ProviderError(f"{file}: {problem}", code="provider_key")

    try:
        with open(file, "rb", opener=_open_without_waiting) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise refuse("not a regular file; the API key of the provider belongs there")
            if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
                raise refuse(f"other accounts can read this API key; run  chmod 600 {file}")
            text = stream.read(MAX_KEY + 1).strip()
    except FileNotFoundError:
        raise refuse("file not found; write the API key of the provider into it, and run chmod 600 on it") from None
    except OSError as error:
        raise refuse(f"cannot read: {error.strerror or error}") from error
    if not text or len(text) > MAX_KEY or not all(0x21 <= byte <= 0x7E for byte in text):
        raise refuse("not an API key: expected one word of printable characters, alone in the file")
    return text.decode("ascii")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


ENDED = ("terminating", "terminated", "preempted")


@dataclass(frozen=True)
class Instance:
    """One instance. "" stands for what the provider did not say."""

    id: str
    name: str
    state: str
    """``booting``, ``active``, ``unhealthy``, ``terminating``, ``terminated``, or another word of the provider."""
    address: str
    """IP address; "" while it has none."""
    region: str
    type: str
    price_per_hour: float | None
    """Dollars."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


if TYPE_CHECKING:
    from urllib.error import HTTPError

TIMEOUT_S = 20.0
"""For the whole request."""
TRIES = 4
"""With those after a 429."""
FIRST_WAIT_S = 1.0
"""After a 429 without ``Retry-After``; doubled each time."""
LONGEST_WAIT_S = 30.0
MAX_BYTES = 8 << 20
MAX_MESSAGE = 300
POLL_S = 0.2
IN_BETWEEN = "a proxy or a login page may be in between"


def get_json(url: str, key: str, closing: Callable[[], bool] = lambda: False, clock: Clock = CLOCK) -> Any:
    """The JSON value at a URL. A 429 is repeated after the time that it names, at most TRIES times.

    Raises ProviderError, also once ``closing`` is true while it waits.
    """
    from urllib.error import HTTPError

    for attempt in range(TRIES):
        try:
            return _get(url, key)
        except HTTPError as error:
            with error:
                refused = _refusal(url, key, error)
                if error.code != 429:
                    raise refused from None
                seconds = _retry_after(error, FIRST_WAIT_S * 2**attempt, clock)
        if seconds > LONGEST_WAIT_S or attempt == TRIES - 1:
            break
        if not _wait(seconds, closing, clock):
            raise ProviderError("the client is closed")
    message = f"{refused}; it was asked too often: wait {max(1.0, seconds):.0f} s and try again"
    raise ProviderError(message, code="provider_busy")


def _get(url: str, key: str) -> Any:
    import http.client
    import ssl
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """urllib would send the key along."""

        def redirect_request(self, *_: Any) -> None:
            return None

    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json", "User-Agent": f"grpo-tui/{VERSION}"}
    opener = build_opener(NoRedirects(), HTTPSHandler(context=ssl.create_default_context()))
    deadline = time.monotonic() + TIMEOUT_S
    try:
        with opener.open(Request(url, headers=headers), timeout=TIMEOUT_S) as response:
            data = b""
            while piece := response.read1(65_536):
                data += piece
                if len(data) > MAX_BYTES:
                    raise ProviderError(f"{url}: more than {MAX_BYTES >> 20} MiB", code="provider_reply")
                if time.monotonic() > deadline:
                    raise TimeoutError
            kind = response.headers.get_content_type()
    except TimeoutError:
        raise ProviderError(f"{url} did not answer within {TIMEOUT_S:.0f} s; try again later") from None
    except http.client.HTTPException as error:
        raise ProviderError(f"{url}: the answer ended early or is not HTTP ({type(error).__name__})") from None
    except OSError as error:  # URLError; HTTPError is one, too
        from urllib.error import HTTPError

        if isinstance(error, HTTPError):
            raise
        raise _unreachable(url, getattr(error, "reason", error)) from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        message = f"{url} did not answer with JSON but with {clean(kind)} ({len(data)} bytes){_quoted(data, key)}"
        raise ProviderError(f"{message}; {IN_BETWEEN}", code="provider_reply") from None


def _quoted(data: bytes, key: str) -> str:
    """``: “the words of a page”``; "" without any."""
    said = clean(words_of(data).replace(key, "[key]"))[:MAX_MESSAGE]
    return f": “{said}”" if said else ""


def _unreachable(url: str, reason: object) -> ProviderError:
    import ssl

    if isinstance(reason, TimeoutError):
        return ProviderError(f"{url} did not answer within {TIMEOUT_S:.0f} s; try again later")
    if isinstance(reason, ssl.SSLCertVerificationError):
        why = f"its certificate is not valid: {reason.verify_message}; check this machine's clock and proxies"
        return ProviderError(f"{url}: {why}")
    text = getattr(reason, "strerror", None) or str(reason)
    return ProviderError(f"{url} cannot be reached: {clean(text)[:MAX_MESSAGE]}; check this machine's network")


def _refusal(url: str, key: str, error: HTTPError) -> ProviderError:
    """What an HTTP status means. ``{"error": {"code", "message", "suggestion"}}`` is the body of a refusal; one that is
    not JSON is not the provider's answer."""
    import http.client

    words, data = f"{url}: HTTP {error.code}", b""
    try:
        data = error.read(65_536)
        body = json.loads(data)["error"]
        said = " ".join(str(body[name]) for name in ("message", "suggestion") if isinstance(body.get(name), str))
        words += f", {clean(said.replace(key, '[key]'))[:MAX_MESSAGE]}" if said else ""
    except (OSError, http.client.HTTPException, KeyError, TypeError, AttributeError):
        pass
    except (ValueError, RecursionError):
        if 300 <= error.code < 400:
            words += _quoted(data, key)
        elif data.strip():
            words += f" with a page that is not the API's answer{_quoted(data, key)}"
            code = "provider_unreachable" if error.code >= 500 else "provider_reply"
            return ProviderError(f"{words}; {IN_BETWEEN}, or 'url' is wrong", code=code)
    if error.code == 401:
        return ProviderError(
            f"{words}: the API key is not accepted; write a valid one into key_file", code="provider_key"
        )
    if error.code == 403:
        return ProviderError(f"{words}: the account of this API key may not do that", code="provider_key")
    if 300 <= error.code < 400:
        return ProviderError(
            f"{words}: it redirects, and the API key does not follow; {IN_BETWEEN}, or 'url' is wrong",
            code="provider_reply",
        )
    if error.code == 404:
        return ProviderError(f"{words}: there is no such API; correct 'url'", code="provider_reply")
    if error.code >= 500:
        return ProviderError(f"{words}: the provider has a problem; try again later")
    return ProviderError(words, code="provider_reply")


def _retry_after(error: HTTPError, otherwise: float, clock: Clock) -> float:
    """Seconds until the next request: ``Retry-After`` is a number of seconds or a date (RFC 9110, 10.2.3)."""
    text = error.headers.get("Retry-After", "").strip()
    if text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - clock.time())
    except (TypeError, ValueError, IndexError, OverflowError):
        return otherwise


def _wait(seconds: float, closing: Callable[[], bool], clock: Clock) -> bool:
    """Wait; returns whether it is still wanted."""
    until = clock.monotonic() + seconds
    while (left := until - clock.monotonic()) > 0:
        if closing():
            return False
        clock.sleep(min(POLL_S, left))
    return True


LONGEST = 200


def list_instances(
    provider: Provider, closing: Callable[[], bool] = lambda: False, clock: Clock = CLOCK
) -> list[Instance]:
    """The instances of an account that run, or did until a moment ago. Raises ProviderError."""
    url = f"{provider.base}/instances"
    reply = get_json(url, read_key(provider), closing, clock)
    rows = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and _text(row, "id") for row in rows):
        raise ProviderError(f"{url} did not answer with a list of instances", code="provider_reply")
    return [_instance(row) for row in rows]


def _instance(row: dict[str, Any]) -> Instance:
    kind, region = _object(row, "instance_type"), _object(row, "region")
    return Instance(
        _text(row, "id"),
        _text(row, "name"),
        _text(row, "status"),
        _address(_text(row, "ip")),
        _text(region, "name"),
        _text(kind, "name"),
        _dollars(kind.get("price_cents_per_hour")),
    )


def _object(row: dict[str, Any], key: str) -> dict[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return clean(value)[:LONGEST] if isinstance(value, str) else ""


def _address(text: str) -> str:
    """An IP address: what is not one would be looked up, or read as an option of ssh."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def _dollars(cents: Any) -> float | None:
    """The document says an integer; its examples have strings, too."""
    try:
        price = float(cents) / 100
    except (TypeError, ValueError, OverflowError):
        return None
    return price if math.isfinite(price) and price >= 0 and not isinstance(cents, bool) else None


FRESH_S = 3.0
"""An answer, or an error, stands for this long."""


@dataclass
class _Account:
    """What one account answered last."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    asked_at: float | None = None
    instances: list[Instance] = field(default_factory=list)
    error: ProviderError | None = None


_accounts: dict[tuple[str, str, str], _Account] = {}
_accounts_lock = threading.Lock()


def _account(provider: Provider) -> _Account:
    with _accounts_lock:
        return _accounts.setdefault((provider.kind, provider.base, provider.key_file), _Account())


def instances(provider: Provider, closing: Callable[[], bool] = lambda: False, clock: Clock = CLOCK) -> list[Instance]:
    """The instances of an account, at most FRESH_S old. Raises ProviderError."""
    account = _account(provider)
    with account.lock:
        now = clock.monotonic()
        if account.asked_at is None or now - account.asked_at >= FRESH_S:
            try:
                account.instances, account.error = list_instances(provider, closing, clock), None
            except ProviderError as error:
                account.error = error
            account.asked_at = clock.monotonic()
        if account.error is not None:
            raise ProviderError(str(account.error), code=account.error.code)
        return list(account.instances)


def last_seen(box: Box) -> Instance | None:
    """The instance of a box as it was listed last, without asking; None if it was not, or without a provider."""
    if box.provider is None:
        return None
    found = _named(box, _account(box.provider).instances)
    return found[-1] if found else None


def last_error(box: Box) -> str:
    """Why the instances of a box's account could not be listed last; "" if they were, or were not asked for."""
    error = None if box.provider is None else _account(box.provider).error
    return "" if error is None else str(error)


def located(box: Box, closing: Callable[[], bool] = lambda: False, clock: Clock = CLOCK) -> Box:
    """The box with the address of its instance; a box with an address, or without a provider, as it is.

    Raises Unreachable where asking again may help (it boots, the provider does not answer), else Refused.
    """
    if box.provider is None or box.host:
        return box
    name = instance_name(box)
    try:
        listed = instances(box.provider, closing, clock)
    except ProviderError as error:
        if error.code in ("provider_key", "provider_reply"):
            raise Refused(str(error)) from error
        raise Unreachable(str(error)) from error
    found = _named(box, listed)
    if not found:
        others = sorted({each.name for each in listed if each.name})
        hint = did_you_mean(name, others) if others else "this account has none with a name"
        raise Refused(f"{box.provider.kind} has no instance named '{name}'; {hint}")
    running = [each for each in found if not each.has_ended]
    if not running:
        raise Refused(f"the instance '{name}' is {found[-1].state}; rent another one under this name")
    if len(running) > 1:
        ids = ", ".join(each.id for each in running)
        raise Refused(f"{len(running)} instances are named '{name}' ({ids}); rename all but one")
    if not running[0].address:
        raise Unreachable(f"the instance '{name}' is {running[0].state or 'not ready'} and has no address yet")
    return replace(box, host=running[0].address)


def known(box: Box) -> Box:
    """As :func:`located`, with the address that was listed last, if there is one."""
    seen = last_seen(box)
    return located(box) if box.host or seen is None or not seen.address else replace(box, host=seen.address)


def instance_name(box: Box) -> str:
    """The name of the instance of a box with a provider."""
    return (box.provider.instance if box.provider else "") or box.name


def _named(box: Box, listed: list[Instance]) -> list[Instance]:
    """The instances of a box's name, those that run last."""
    found = [each for each in listed if each.name == instance_name(box)]
    return sorted(found, key=lambda each: not each.has_ended)
