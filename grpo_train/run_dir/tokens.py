"""Tokens of a completion as ``tokens.jsonl`` has them: four bytes each, in base64.

A line has a group of completions: ``step`` (the update whose pass gave the values), ``of`` (the step of their rows in
``rollouts.jsonl``), ``group``, and ``tokens``, by ``sample``. The bytes of N tokens:

    3        N, little-endian
    N        bits 0-4: characters of the text, 31 = see below; bits 5-6: a FATE; bit 7: written by an environment
    N        sampler's log-probability: code c of -(exp(c s) - 1) / 50, s = log(1 + 50 * 30) / 254; 255 = not known
    N        entropy, likewise without the sign
    N        log of the ratio: code 127 + c of (exp(c s) - 1) / 200, s = log(1 + 200 * 8) / 127, negative ones 127 - c
    2 each   characters of the texts of 31 or more, little-endian

A value is off by at most 1.5 % + 0.0003, the log of a ratio by 3 % + 0.0002. What is out of range has the last code.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import NamedTuple

FILE = "tokens.jsonl"
FATES = ("", "low", "high", "masked")
"""What the loss did with a token: nothing; clipped with a ratio below its range, or above it; weight 0, by the rollout
correction or as the completion is masked."""
UNKNOWN = 255
_LONG = 31
FINE, LARGEST = 50.0, 30.0
STEP = math.log1p(FINE * LARGEST) / 254
RATIO_FINE, RATIO_LARGEST = 200.0, 8.0
RATIO_STEP = math.log1p(RATIO_FINE * RATIO_LARGEST) / 127
_MAGNITUDES = [math.expm1(code * STEP) / FINE for code in range(UNKNOWN)]
_LOGS = [math.copysign(math.expm1(abs(code - 127) * RATIO_STEP) / RATIO_FINE, code - 127) for code in range(UNKNOWN)]


class Token(NamedTuple):
    """A token, its text in the completion, and what is known of it."""

    start: int
    end: int
    """Its characters; none for a part of a character that a later token completes, and for the end of the text."""
    logp: float | None
    """By the sampler."""
    entropy: float | None
    """Of the trainer's distribution, in nats."""
    ratio: float | None
    """The trainer's probability over the sampler's."""
    fate: str
    """One of FATES."""
    is_written: bool
    """By an environment, not by the model."""


def encode_tokens(
    lengths: Sequence[int],
    logps: bytes,
    entropies: bytes,
    ratios: bytes,
    fates: Sequence[int],
    written: Sequence[bool] = (),
) -> str:
    """The tokens of a completion. ``lengths``: characters of each text; then a code each, and places in FATES."""
    heads = bytes([min(length, _LONG) | fate << 5 for length, fate in zip(lengths, fates, strict=True)])
    if any(written):
        heads = bytes([head | each << 7 for head, each in zip(heads, written, strict=True)])
    long = b"".join(min(length, 0xFFFF).to_bytes(2, "little") for length in lengths if length >= _LONG)
    return base64.b64encode(
        b"".join([len(heads).to_bytes(3, "little"), heads, logps, entropies, ratios, long])
    ).decode()


def decode_tokens(text: str) -> list[Token]:
    """Raises ValueError for anything but what :func:`encode_tokens` writes."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
    count = int.from_bytes(data[:3], "little")
    heads, logps, entropies, ratios = (data[3 + at * count : 3 + (at + 1) * count] for at in range(4))
    long = iter(data[3 + 4 * count :])
    lengths = [head & _LONG for head in heads]
    if len(data) != 3 + 4 * count + 2 * lengths.count(_LONG):
        raise ValueError(f"{len(data)} bytes are not {count} tokens")
    tokens, end = [], 0
    for head, length, logp, entropy, ratio in zip(heads, lengths, logps, entropies, ratios, strict=True):
        start, end = end, end + (next(long) + (next(long) << 8) if length == _LONG else length)
        tokens.append(
            Token(
                start,
                end,
                None if logp == UNKNOWN else -_MAGNITUDES[logp] or 0.0,
                None if entropy == UNKNOWN else _MAGNITUDES[entropy],
                None if ratio == UNKNOWN else math.exp(_LOGS[ratio]),
                FATES[head >> 5 & 3],
                bool(head >> 7),
            )
        )
    return tokens
