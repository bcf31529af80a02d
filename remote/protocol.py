"""Contract 2: the words between laptop and box. Standard library only; the agent's bundle carries it.

One JSON object a line (a *frame*, at most 64 KiB), both ways over one channel:

    client -> agent                                       agent -> client
    {"type": "hello", "protocol": 1, "settings": {...}}   {"type": "hello", "protocol": 1, "agent": HASH, "host": {...}}
    {"type": "request", "id": 7, "op": OP, "params": {}}  {"type": "response", "id": 7, "ok": true, "result": {}}
                                                          {"type": "response", "id": 7, "ok": false, "error": {...}}
    {"type": "subscribe", "id": 8, "topic": TOPIC,        {"type": "data", "id": 8, "offset": 0, "text"|"base64": ...}
         "params": {}, "credit": 262144}                  {"type": "update", "id": 8, "value": {...}}
    {"type": "credit", "id": 8, "bytes": 65536}           {"type": "rotated", "id": 8, "cursor": {...}}
    {"type": "unsubscribe", "id": 8}                      {"type": "closed", "id": 8, "error": {...}}
    {"type": "ping", "n": 3}                              {"type": "pong", "n": 3}
    {"type": "part", "text": "…", "more": true}           the same: a frame over the limit, cut (see encode_parts)

Ids are chosen by the client and never used twice on a connection. A topic is ``log`` (bytes of one file from a
:class:`Cursor` on; ``data`` frames use up credit, the client grants more once it has consumed them), ``runs``,
``sessions`` or ``gpu`` (a whole new value whenever it changes). A ``data`` frame carries ``head`` (length and SHA-256
of the file's first bytes, for the cursor behind it) whenever that is new. Receivers pass over types and keys that they
do not know.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PROTOCOL_VERSION = 1
MAX_FRAME = 65_536
"""Bytes of one line, newline included."""
MAX_DATA = 32_768
"""Bytes of a file in one ``data`` frame: base64 and JSON escapes stay within MAX_FRAME."""
INITIAL_CREDIT = 262_144
"""Bytes of ``data`` the agent may send on a new subscription before it waits for more credit."""
HEAD_BYTES = 4_096
"""A log cursor knows its file by the hash of so many first bytes."""
MAX_JOINED = 16 * 1024 * 1024
"""Bytes of a frame that came in parts."""
PART_CHARACTERS = 15_000
"""Characters of a ``part``: JSON text escaped once more, at four bytes a character, stays within MAX_FRAME."""
PING_EVERY_S = 1.0
STALE_AFTER_S = 5.0
LOST_AFTER_S = 15.0
AGENT_SILENCE_S = 12.0
"""The agent ends by itself when it has heard nothing for so long."""

OPERATIONS = (
    "doctor",
    "list_runs",
    "show_run",
    "list_configs",
    "read_config",
    "list_tasks",
    "launch",
    "stop",
    "kill",
    "evaluate",
    "resume",
    "list_sessions",
    "capture_pane",
)
TOPICS = ("log", "runs", "sessions", "gpu")


class ProtocolError(Exception):
    """A line that is no frame of this protocol."""


class RemoteError(Exception):
    """A request that the box refused: ``code`` for programs, the message and ``hint`` for the user."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}

    @classmethod
    def from_json(cls, error: dict[str, Any]) -> RemoteError:
        return cls(str(error.get("code", "error")), str(error.get("message", "")), str(error.get("hint", "")))


@dataclass(frozen=True)
class Cursor:
    """A place in a log that survives NFS remounts and restores: a path (relative to the root), the length and SHA-256
    of the file's first bytes, and the next byte wanted."""

    path: str
    offset: int = 0
    head_length: int = 0
    head_sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Cursor:
        return cls(str(value["path"]), int(value["offset"]), int(value["head_length"]), str(value["head_sha256"]))

    def matches(self, file: Path) -> bool:
        """Whether the file still begins as it did and is at least ``offset`` long."""
        with file.open("rb") as stream:
            head = stream.read(self.head_length)
            return (
                len(head) == self.head_length
                and hashlib.sha256(head).hexdigest() == (self.head_sha256 or hashlib.sha256(b"").hexdigest())
                and stream.seek(0, 2) >= self.offset
            )

    def at(self, file: Path, offset: int) -> Cursor:
        """The cursor of the same path at another offset, knowing up to HEAD_BYTES of the file's head."""
        with file.open("rb") as stream:
            head = stream.read(min(HEAD_BYTES, offset))
        return Cursor(self.path, offset, len(head), hashlib.sha256(head).hexdigest())


@dataclass(frozen=True)
class Settings:
    """What the client tells the agent about a box (from boxes.yaml)."""

    root: str = ""
    """LOCALFS_ROOT on the box; "" = the agent's own default."""
    repo: str = ""
    """The checkout of grpo-tui on the box; its ``config/`` holds the configs. "" = none."""
    activate: str = ""
    """The user's shell snippet that activates the engine's environment."""
    engine: list[str] = field(default_factory=list)
    """Command of the engine, e.g. ["/x/.venv/bin/grpo-train"]; [] = found by the agent."""
    tmux_socket: str = ""
    """Name of the tmux socket; "" = the default one, so that plain ``tmux attach`` works."""


def encode(frame: dict[str, Any]) -> bytes:
    """One frame as a line. Raises ProtocolError when it is longer than MAX_FRAME."""
    line = _to_bytes(frame) + b"\n"
    if len(line) > MAX_FRAME:
        raise ProtocolError(f"a {frame.get('type')} frame of {len(line)} bytes is over the limit of {MAX_FRAME}")
    return line


def encode_parts(frame: dict[str, Any]) -> list[bytes]:
    """One frame as one line, or as consecutive ``part`` lines where it is too long (a list of a thousand runs)."""
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
    except UnicodeEncodeError:  # a file name that is no UTF-8 comes as lone surrogates
        return json.dumps(frame, separators=(",", ":")).encode()


def encode_data(subscription: int, offset: int, data: bytes, head: tuple[int, str] | None = None) -> bytes:
    """A ``data`` frame: as text where the bytes are UTF-8 and it fits, else base64."""
    frame: dict[str, Any] = {"type": "data", "id": subscription, "offset": offset}
    if head is not None:
        frame["head"] = list(head)
    try:
        return encode({**frame, "text": data.decode()})
    except (UnicodeDecodeError, ProtocolError):
        return encode({**frame, "base64": base64.b64encode(data).decode()})


def data_of(frame: dict[str, Any]) -> bytes:
    """The bytes a ``data`` frame carries."""
    return frame["text"].encode() if "text" in frame else base64.b64decode(frame["base64"])


class Decoder:
    """Bytes in, frames out, however the bytes were cut; parts are joined."""

    def __init__(self) -> None:
        self._rest = b""
        self._parts: list[str] = []

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The frames that are whole now. Raises ProtocolError for an over-long line or one that is no object."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= MAX_FRAME or any(len(line) >= MAX_FRAME for line in lines):
            raise ProtocolError(f"a line of over {MAX_FRAME} bytes")
        frames = []
        for line in lines:
            frame = _parse(line)
            if frame["type"] != "part":
                frames.append(frame)
                continue
            self._parts.append(str(frame.get("text", "")))
            if sum(map(len, self._parts)) > MAX_JOINED:
                raise ProtocolError(f"a frame in parts of over {MAX_JOINED} bytes")
            if not frame.get("more"):
                whole, self._parts = "".join(self._parts), []
                frames.append(_parse(whole.encode(errors="surrogatepass")))
        return frames


def _parse(line: bytes) -> dict[str, Any]:
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"no JSON: {line[:80]!r}") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise ProtocolError(f"no frame: {line[:80]!r}")
    return frame
