"""Frames: one JSON object per line, split into parts where it is too long; the values, columns and versions in them."""

from __future__ import annotations

import base64
import binascii
import json
import math
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.version import FORMAT, VERSION
from remote.protocol.record import record

PROTOCOL_VERSION = 1
VALUE_TOPICS = ("runs", "sessions", "gpu")
"""Topics whose updates carry the whole value."""
INITIAL_CREDIT = 262_144
"""Bytes of ``data`` the agent may send on a new subscription before it waits for more credit."""
HEAD_BYTES = 4_096
"""A log cursor identifies its file by the hashes of up to this many first bytes and of as many before its offset."""
PING_EVERY_S = 1.0
STALE_AFTER_S = 5.0
LOST_AFTER_S = 15.0
AGENT_SILENCE_S = 12.0
"""The agent exits after hearing nothing for this long."""


class ProtocolError(Exception):
    """A line that is not a frame of this protocol."""


class Flood(ProtocolError):
    """More than the other end was allowed to send. The client waits its longest back-off before it connects again."""

    code = "flood"


class RemoteError(UserError):
    """A request that the box refused: ``code`` for programs, ``message`` and ``hint`` for the user."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, code=code)
        self.message, self.hint = message, hint

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a log that survives NFS remounts and restores: a path (relative to the root) and an offset.

    The other fields describe the file. An empty one is unknown: version 0.1.0 has only the head.
    """

    path: str
    offset: int = 0
    """Offset of the next byte."""
    head_length: int = 0
    head_sha256: str = ""
    """Hash of the file's first ``head_length`` bytes."""
    tail_sha256: str = ""
    """Hash of the last HEAD_BYTES before the offset, or of all bytes before it where there are fewer."""
    device: int = 0
    inode: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Cursor:
        return cls(
            str(value["path"]),
            int(value["offset"]),
            int(value["head_length"]),
            str(value["head_sha256"]),
            str(value.get("tail_sha256", "")),
            int(value.get("device", 0)),
            int(value.get("inode", 0)),
        )


@record(frozen=True)
class Settings:
    """A box's settings (from boxes.yaml), sent to its agent with hello."""

    root: str = ""
    """LOCALFS_ROOT on the box; "" = the agent's default."""
    repo: str = ""
    """The checkout of grpo-tui on the box; its ``config/`` holds the configs. "" = none."""
    code: str = ""
    """``sync``: ``grpo-tui sync`` brings the code; ``clone``: it pulls in ``repo``; "" = ``repo``, else as ``sync``."""
    activate: str = ""
    """The user's shell snippet that activates the engine's environment."""
    engine: list[str] = field(default_factory=list)
    """Command of the engine, e.g. ["/x/.venv/bin/grpo-train"]; [] = found by the agent."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every command that the agent starts; ``$NAME`` and ``~`` are expanded there. No secrets."""
    tmux_socket: str = ""
    """Name of the tmux socket; "" = the default one, so that plain ``tmux attach`` works."""
    umask: str = ""
    """Octal umask of the agent and of what it starts; "" = 077."""
    follow_links: bool = False
    """Whether a log may be a symbolic link out of the root."""
    persistent: bool = False
    """Whether the user says that the disk of the root outlives the box."""
    scheduler: str = ""
    """``slurm``: the box is a login node, and a run is a job; "" = a run is a tmux session."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """What jobs ask for, see :class:`remote.protocol.jobs.JobOptions`."""
    readonly: bool = False
    """Whether the agent refuses every request that changes state. Set by the client, not by boxes.yaml."""
    grant: dict[str, Any] = field(default_factory=dict)
    """Of an assistant's session: see :class:`remote.protocol.grants.Grant`; {} = a person's."""


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


READABLE_FORMATS = (FORMAT - 1, FORMAT)
"""See :mod:`grpo_train.run_dir.formats`."""


@record(frozen=True)
class EngineVersion:
    """Version of a box's engine and the format of what it writes; ``("", 0)`` = unknown."""

    version: str
    format: int

    def mismatch(self) -> str:
        """Why this program cannot read what the engine writes, e.g. ``box engine 0.1.0, app 0.3.0``; "" if it can."""
        if self == UNKNOWN or self.format in READABLE_FORMATS:
            return ""
        return f"box engine {self.version}, app {VERSION}"

    @property
    def is_older(self) -> bool:
        """Whether the engine is older than this program."""
        return self.format < FORMAT

    def upgrade_hint(self, repo: str) -> str:
        """The command that ends a mismatch: on the box where its engine is older, else on the laptop."""
        if self.format > FORMAT:
            return "upgrade this program: uv tool upgrade grpo-tui (in a checkout: git pull && make setup)"
        return f"on the box: cd {repo or 'CHECKOUT'} && git pull && make setup-box"


OLDEST = EngineVersion("0.1.0", 1)
"""The only version of format 1, which carries neither."""
UNKNOWN = EngineVersion("", 0)
