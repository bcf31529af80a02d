"""Frames: one JSON object per line, split into parts where it is too long."""

from __future__ import annotations

import base64
import json
from typing import Any

from remote.protocol.messages import Flood, ProtocolError

MAX_FRAME = 65_536
"""Bytes of one line, newline included."""
MAX_DATA = 32_768
"""Bytes of a file in one ``data`` frame: base64 and JSON escapes stay within MAX_FRAME."""
MAX_JOINED = 16 * 1024 * 1024
"""Bytes of a frame that arrives in parts."""
MAX_VALUES = 500_000
"""Values in a frame that arrives in parts: short ones take far more memory than their text."""
PART_LENGTH = 30_000
"""Characters of a ``part`` except the last. They are ASCII; escaped once more, they stay within MAX_FRAME."""


def encode(frame: dict[str, Any]) -> bytes:
    """One frame as a line. Raises ProtocolError when it is longer than MAX_FRAME."""
    line = _to_bytes(frame) + b"\n"
    if len(line) > MAX_FRAME:
        raise ProtocolError(f"a {frame.get('type')} frame of {len(line)} bytes is over the limit of {MAX_FRAME}")
    return line


def encode_parts(frame: dict[str, Any]) -> list[bytes]:
    """One frame as one line, or as consecutive ``part`` lines where it is too long (a list of 1,000 runs).

    Raises ProtocolError when it is longer than MAX_JOINED.
    """
    whole = _to_bytes(frame)
    if len(whole) < MAX_FRAME:
        return [whole + b"\n"]
    whole = json.dumps(frame, separators=(",", ":")).encode()
    if len(whole) > MAX_JOINED:
        raise ProtocolError(f"a {frame.get('type')} frame of {len(whole)} bytes is over the limit of {MAX_JOINED}")
    text = whole.decode()
    pieces = [text[cut : cut + PART_LENGTH] for cut in range(0, len(text), PART_LENGTH)]
    return [encode({"type": "part", "text": piece, "more": i + 1 < len(pieces)}) for i, piece in enumerate(pieces)]


def _to_bytes(frame: dict[str, Any]) -> bytes:
    try:
        return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8 arrives as lone surrogates
        return json.dumps(frame, separators=(",", ":")).encode()


def encode_data(
    subscription: int,
    offset: int,
    data: bytes,
    head: tuple[int, str] | None = None,
    tail: str = "",
    file: tuple[int, int] | None = None,
) -> bytes:
    """A ``data`` frame: text where the bytes are UTF-8 and fit, else base64. The rest is for the cursor after it."""
    frame: dict[str, Any] = {"type": "data", "id": subscription, "offset": offset}
    for key, fact in (("head", head), ("tail", tail), ("file", file)):
        if fact:
            frame[key] = fact
    try:
        return encode({**frame, "text": data.decode()})
    except (UnicodeDecodeError, ProtocolError):
        return encode({**frame, "base64": base64.b64encode(data).decode()})


def data_of(frame: dict[str, Any]) -> bytes:
    """The bytes that a ``data`` frame carries. Raises ProtocolError."""
    try:
        return frame["text"].encode() if "text" in frame else base64.b64decode(frame["base64"], validate=True)
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"malformed 'data' frame: {type(error).__name__}") from error


class Decoder:
    """Turns received bytes, split anywhere, into frames; joins parts.

    The other end is not trusted: time *must* be linear in the bytes received, and no more than one line and MAX_JOINED
    bytes of parts *must* be kept. A frame in parts *must* fit these bounds before it is parsed.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._parts = bytearray()
        self._parts_size = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Frames completed by ``data``. Raises ProtocolError for an overlong line or one that is not a frame."""
        return [frame for frame, _ in self.feed_sized(data)]

    def feed_sized(self, data: bytes) -> list[tuple[dict[str, Any], int]]:
        """As ``feed``, with the bytes that each frame took."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) >= MAX_FRAME or any(len(line) >= MAX_FRAME for line in lines):
            raise ProtocolError(f"a line is over the limit of {MAX_FRAME} bytes")
        frames = []
        for line in lines:
            frame = _parse(line)
            if frame["type"] != "part":
                frames.append((frame, len(line)))
                continue
            self._parts_size += len(line)
            if (whole := self._join(frame.get("text"), bool(frame.get("more")))) is not None:
                frames.append((_parse(whole), self._parts_size))
                self._parts_size = 0
        return frames

    def _join(self, text: Any, more: bool) -> bytearray | None:
        """The whole frame with its last part. An honest end fills every part but the last."""
        if not isinstance(text, str) or not text.isascii() or (more and len(text) != PART_LENGTH):
            raise ProtocolError("malformed 'part' frame")
        self._parts += text.encode()
        if len(self._parts) > MAX_JOINED:
            raise Flood(f"a frame in parts is over the limit of {MAX_JOINED} bytes")
        if more:
            return None
        whole, self._parts = self._parts, bytearray()
        if sum(map(whole.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise Flood(f"a frame in parts has more than {MAX_VALUES} values")
        return whole


def _parse(line: bytes | bytearray) -> dict[str, Any]:
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid JSON: {line[:80]!r}") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise ProtocolError(f"not a frame: {line[:80]!r}")
    return frame
