"""Frames: one JSON object per line, split into parts where it is too long."""

from __future__ import annotations

import base64
import json
from typing import Any

from remote.protocol.messages import ProtocolError

MAX_FRAME = 65_536
"""Bytes of one line, newline included."""
MAX_DATA = 32_768
"""Bytes of a file in one ``data`` frame: base64 and JSON escapes stay within MAX_FRAME."""
MAX_JOINED = 16 * 1024 * 1024
"""Bytes of a frame that arrives in parts."""
PART_CHARACTERS = 15_000
"""Characters of a ``part``: escaped JSON, escaped once more at four bytes a character, stays within MAX_FRAME."""


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
    if len(whole) > MAX_JOINED:
        raise ProtocolError(f"a {frame.get('type')} frame of {len(whole)} bytes is over the limit of {MAX_JOINED}")
    text = whole.decode()
    cuts = range(0, len(text), PART_CHARACTERS)
    pieces = [text[cut : cut + PART_CHARACTERS] for cut in cuts]
    return [encode({"type": "part", "text": piece, "more": i + 1 < len(pieces)}) for i, piece in enumerate(pieces)]


def _to_bytes(frame: dict[str, Any]) -> bytes:
    try:
        return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8 arrives as lone surrogates
        return json.dumps(frame, separators=(",", ":")).encode()


def encode_data(subscription: int, offset: int, data: bytes, head: tuple[int, str] | None = None) -> bytes:
    """A ``data`` frame: text where the bytes are UTF-8 and fit, else base64."""
    frame: dict[str, Any] = {"type": "data", "id": subscription, "offset": offset}
    if head is not None:
        frame["head"] = list(head)
    try:
        return encode({**frame, "text": data.decode()})
    except (UnicodeDecodeError, ProtocolError):
        return encode({**frame, "base64": base64.b64encode(data).decode()})


def data_of(frame: dict[str, Any]) -> bytes:
    """The bytes that a ``data`` frame carries."""
    return frame["text"].encode() if "text" in frame else base64.b64decode(frame["base64"])


class Decoder:
    """Turns received bytes, split anywhere, into frames; joins parts."""

    def __init__(self) -> None:
        self._rest = b""
        self._parts: list[str] = []

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Frames completed by ``data``. Raises ProtocolError for an overlong line or one that is not a frame."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= MAX_FRAME or any(len(line) >= MAX_FRAME for line in lines):
            raise ProtocolError(f"a line is over the limit of {MAX_FRAME} bytes")
        frames = []
        for line in lines:
            frame = _parse(line)
            if frame["type"] != "part":
                frames.append(frame)
                continue
            self._parts.append(str(frame.get("text", "")))
            if sum(map(len, self._parts)) > MAX_JOINED:
                raise ProtocolError(f"a frame in parts is over the limit of {MAX_JOINED} bytes")
            if not frame.get("more"):
                whole, self._parts = "".join(self._parts), []
                frames.append(_parse(whole.encode(errors="surrogatepass")))
        return frames


def _parse(line: bytes) -> dict[str, Any]:
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid JSON: {line[:80]!r}") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise ProtocolError(f"not a frame: {line[:80]!r}")
    return frame
