"""One GET request with an API key, by the standard library. The key goes nowhere but into the request's header."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.version import VERSION
from grpo_train.run_dir.web_page import words_of
from remote.protocol.text import clean
from remote.providers.provider import ProviderError

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
