"""The report of some runs: one HTML page, which the engine on the box makes."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.intake import Rule

MAX_RUNS = 12
MAX_PAGE = 32 << 20
"""Bytes of a page."""

Runs: TypeAlias = Annotated[
    list[Annotated[str, Rule("a non-empty string", bool)]],
    Rule(f"a list of 1 to {MAX_RUNS} run names", lambda value: 1 <= len(value) <= MAX_RUNS),
]
Price: TypeAlias = Annotated[float, Rule("a number of 0 or more", lambda value: value >= 0)]


@dataclass(frozen=True)
class ReportRequest:
    """A report of one run, or a comparison of several."""

    runs: Runs
    price: Price | None = None
    """Of the box, in dollars per hour."""


class ReportReply(TypedDict):
    page: str
    """Compressed, in base64; unpacked, bytes."""


def pack_page(page: bytes) -> str:
    return base64.b64encode(zlib.compress(page)).decode()


def unpack_page(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply with its page. Raises ValueError for a damaged one, or one over MAX_PAGE."""
    try:
        stream = zlib.decompressobj()
        page = stream.decompress(base64.b64decode(reply["page"], validate=True), MAX_PAGE)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"'page' is damaged: {error}") from None
    if not stream.eof:
        raise ValueError(f"'page' is cut off, or has more than {MAX_PAGE} bytes")
    return {**reply, "page": page}
