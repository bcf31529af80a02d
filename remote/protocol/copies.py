"""Copying files between laptop and box, on a connection of its own: JSON lines, and between them the bytes of files.

After the hellos (the client's carries ``"copies": true``) the client sends one request. The end that has the files
lists them, the other one answers what it already has, and the bytes that are missing follow::

    get      client -> agent   {"op": "get", "what": "RUN:40", "steps": "latest"}
             agent -> client   {"name": …}, files, end; client -> agent: what it has, end; agent -> client: bytes, end
    put      client -> agent   {"op": "put", "to": "checkpoints/start"}, files, end
             agent -> client   {"path": …}, what it has, end; client -> agent: bytes, end; agent -> client: {"path": …}

Of a file that was begun, the receiver names its length and SHA-256: where they are those of the sender's first bytes,
only the rest travels. The hash of the whole file follows its last byte, so a file is whole or refused.
``{"working": true}`` lines keep the connection from falling silent while an end hashes or waits for another copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.protocol.messages import ProtocolError, RemoteError

BLOCK = 1 << 20
MAX_LINE = 65_536
MAX_FILES = 200_000
SILENCE_S = 30.0
"""An end that hears nothing for this long gives up."""
WORKING_S = 2.0


class CopyInterrupted(Exception):
    """The connection ended early. Both ends keep what has arrived, and the next copy continues from there."""


@dataclass(frozen=True)
class Item:
    """A file, or a link to another entry of its own folder."""

    path: str
    """Relative, with ``/``; see :func:`check_path`."""
    size: int = 0
    mtime: float = 0.0
    """Seconds since the epoch, of the sender's clock."""
    link: str = ""
    """Name that a symbolic link points to."""

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Item:
        """An item as it was sent. Raises ProtocolError for anything that could leave the folder it is copied to."""
        path, size, link = line.get("path"), line.get("size", 0), line.get("link", "")
        mtime = line.get("mtime", 0.0)
        if not isinstance(path, str) or not isinstance(link, str) or type(size) is not int or size < 0:
            raise ProtocolError("a malformed item of a copy")
        if not isinstance(mtime, (int, float)) or not 0 <= mtime < 2**40:
            mtime = 0.0
        if link and ("/" in link or link in (".", "..")):
            raise ProtocolError(f"refused: the link {path!r} leaves its folder")
        check_path(path)
        if link:
            check_path(link)
        return cls(path, size, float(mtime), link)


def check_path(path: str) -> None:
    """Refuse a path that is absolute, leaves its folder, or is another one on Windows. Raises ProtocolError."""
    parts = path.split("/")
    bad = not path or len(path) > 1_024 or any(part in ("", ".", "..") for part in parts)
    if bad or any(character in path for character in "\\:\0") or not path.isprintable():
        raise ProtocolError(f"refused: {path[:200]!r} is not a path inside the folder that is copied")


class CopyStream:
    """Lines and bytes over a stream."""

    def __init__(
        self, receive: Callable[[float], bytes | None], send: Callable[[bytes], None], clock: Clock = CLOCK
    ) -> None:
        """``receive(seconds)`` returns some bytes, None after that time, or b"" at the end. ``send`` raises
        CopyInterrupted.
        """
        self._receive, self._send, self._clock = receive, send, clock
        self._unread = b""
        self._unsent = bytearray()
        self._sent_at = self._clock.monotonic()

    def put(self, **message: Any) -> None:
        """Queue a line; it is sent with the next bytes, or by :meth:`flush`."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._unsent) >= BLOCK:
            self.flush()

    def put_bytes(self, data: bytes) -> None:
        """Send bytes after the queued lines."""
        self.flush()
        self._send(data)

    def flush(self) -> None:
        """Send the queued lines."""
        if self._unsent:
            data, self._unsent = bytes(self._unsent), bytearray()
            self._send(data)
            self._sent_at = self._clock.monotonic()

    def working(self) -> None:
        """Say that this end is alive, from time to time."""
        if self._clock.monotonic() - self._sent_at >= WORKING_S:
            self.put(working=True)
            self.flush()

    def take(self) -> dict[str, Any]:
        """The next line. Raises CopyInterrupted, ProtocolError, and RemoteError where the other end refuses."""
        self.flush()
        while True:
            line, found, rest = self._unread.partition(b"\n")
            if not found:
                if len(line) > MAX_LINE:
                    raise ProtocolError("a line of a copy is too long")
                self._unread += self._more()
                continue
            self._unread = rest
            try:
                message = json.loads(line)
            except ValueError as error:
                raise ProtocolError(f"not a line of a copy: {line[:80]!r}") from error
            if not isinstance(message, dict):
                raise ProtocolError(f"not a line of a copy: {line[:80]!r}")
            if "error" in message:
                refusal = message["error"] if isinstance(message["error"], dict) else {}
                raise RemoteError(*(str(refusal.get(key, "")) for key in ("code", "message", "hint")))
            if not message.get("working"):
                return message

    def take_bytes(self, count: int) -> Iterator[memoryview]:
        """The next ``count`` bytes, in pieces. Raises CopyInterrupted."""
        while count:
            piece = memoryview(self._unread or self._more())
            self._unread = b""
            if len(piece) > count:
                self._unread = bytes(piece[count:])
                piece = piece[:count]
            count -= len(piece)
            yield piece

    def _more(self) -> bytes:
        data = self._receive(SILENCE_S)
        if data is None:
            raise CopyInterrupted(f"nothing was heard for {SILENCE_S:.0f} s")
        if not data:
            raise CopyInterrupted("the connection ended")
        return data


# --------------------------------------------------------------------------------------------------- lists of files


def put_items(wire: CopyStream, items: Iterable[Item]) -> None:
    """Send a list of files."""
    for item in items:
        wire.put(**{name: value for name, value in asdict(item).items() if value or name == "path"})
    wire.put(end=True)


def take_items(wire: CopyStream) -> list[Item]:
    """Receive a list of files. Raises ProtocolError for more than MAX_FILES, and for two of one name."""
    items: dict[str, Item] = {}
    while "end" not in (line := wire.take()):
        item = Item.from_json(line)
        if len(items) >= MAX_FILES:
            raise ProtocolError(f"more than {MAX_FILES:,} files in one copy")
        folded = item.path.casefold()  # macOS and Windows have one file for both
        if folded in items:
            raise ProtocolError(f"refused: {item.path!r} and {items[folded].path!r} are one file on some machines")
        items[folded] = item
    return list(items.values())


@dataclass(frozen=True)
class Begun:
    """What the receiver has of a file."""

    have: int
    sha256: str


def take_begun(wire: CopyStream) -> dict[str, Begun]:
    """Receive what the other end has. Raises ProtocolError."""
    begun: dict[str, Begun] = {}
    while "end" not in (line := wire.take()):
        path, have, digest = line.get("path"), line.get("have"), line.get("sha256")
        if not isinstance(path, str) or type(have) is not int or have < 0 or not isinstance(digest, str):
            raise ProtocolError("a malformed line of a copy")
        if len(begun) >= MAX_FILES:
            raise ProtocolError(f"more than {MAX_FILES:,} files in one copy")
        begun[path] = Begun(have, digest)
    return begun
