"""Columns of numbers as text: little-endian doubles, deflated, in base64. Standard library only; both ends use it."""

from __future__ import annotations

import base64
import binascii
import math
import sys
import zlib
from array import array
from collections.abc import Sequence


def pack(columns: Sequence[array[float]]) -> str:
    """Equally long columns of finite numbers as text."""
    joined = array("d")
    for column in columns:
        joined.extend(column)
    if sys.byteorder == "big":
        joined.byteswap()
    return base64.b64encode(zlib.compress(joined.tobytes(), 6)).decode()


def unpack(text: str, count: int, length: int) -> list[array[float]]:
    """``count`` columns of ``length`` numbers. Raises ValueError for anything else, which is not inflated."""
    size = 8 * count * length
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), size + 1)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"damaged columns: {error}") from None
    if len(data) != size or not inflate.eof:
        raise ValueError(f"columns of other than {count} x {length} numbers")
    joined = array("d")
    joined.frombytes(data)
    if sys.byteorder == "big":
        joined.byteswap()
    if not all(map(math.isfinite, joined)):
        raise ValueError("a number in the columns is not finite")
    return [joined[start : start + length] for start in range(0, count * length, length)] if length else [
        array("d") for _ in range(count)
    ]  # fmt: skip
