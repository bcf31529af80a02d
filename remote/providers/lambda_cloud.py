"""Lambda Cloud API v1: ``GET /instances``, with the key as a bearer token.

The shapes are those of the published OpenAPI document (1.5.3 to 1.10.0, https://cloud.lambda.ai/api/v1/openapi.json):
``{"data": [{"id", "name", "ip", "status", "region": {"name"}, "instance_type": {"name", "price_cents_per_hour"}}]}``,
of which only ``id`` and ``status`` are always there. An instance also has a token for its notebook, which is dropped.
It was never run against the real service.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.protocol.text import clean
from remote.providers.https import get_json
from remote.providers.instance import Instance
from remote.providers.provider import Provider, ProviderError

LONGEST = 200


def list_instances(
    provider: Provider, closing: Callable[[], bool] = lambda: False, clock: Clock = CLOCK
) -> list[Instance]:
    """The instances of an account that run, or did until a moment ago. Raises ProviderError."""
    url = f"{provider.base}/instances"
    reply = get_json(url, provider.read_key(), closing, clock)
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
