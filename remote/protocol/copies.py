"""Copying files between laptop and box, on a connection of its own: the lines, the bytes of files, and commits.

After the hellos (the client's carries ``"copies": true``) the client sends one request. The end that has the files
lists them, the other one answers what it already has, and the bytes that are missing follow::

    get      client -> agent   {"op": "get", "what": "RUN:40", "steps": "latest"}
             agent -> client   {"name": …}, files, end; client -> agent: what it has, end; agent -> client: bytes, end
    put      client -> agent   {"op": "put", "to": "checkpoints/start"}, files, end
             agent -> client   {"path": …}, what it has, end; client -> agent: bytes, end; agent -> client: {"path": …}

Of a file that was begun, the receiver names its length and SHA-256: where they are those of the sender's first bytes,
only the rest travels. The hash of the whole file follows its last byte, so a file is whole or refused.
``{"working": true}`` lines keep the connection from falling silent while an end hashes or waits for another copy.

Bringing code (``grpo-tui sync``)::

    client -> agent   {"op": "code"}
    agent -> client   {"known": [COMMIT, …]}
    client -> agent   {"commit": …, "patch": SHA-256 or ""}, files (BUNDLE and PATCH, as needed), end
    agent -> client   what it has, end; client -> agent: bytes, end; agent -> client: {"path", "needs_setup"}

With ``code: clone`` the agent pulls: its first line is ``{"path", "commit"}``, and the last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import fsync_path, remove_tree
from grpo_train.run_dir.manifest import MANIFEST
from remote.protocol.frames import ProtocolError, RemoteError
from remote.protocol.record import record

PIPE_BYTES = 1 << 20
"""Size of a pipe, where the system allows it (Linux; 64 KiB is its default, 1 MiB what any user may have)."""


def widen(descriptor: int) -> None:
    """Let a pipe hold more, so that its two ends wait for each other less. Other descriptors stay as they are."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):  # another system, no pipe, or a user with many pipes
        return


BLOCK = 1 << 20
MAX_LINE = 65_536
MAX_FILES = 200_000
SILENCE_S = 30.0
"""An end that hears nothing for this long gives up."""
WORKING_S = 2.0


class CopyInterrupted(Exception):
    """The connection ended early. Both ends keep what has arrived, and the next copy continues from there."""


@record(frozen=True)
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


@record(frozen=True)
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


LOCK = ".lock"
RESERVE_BYTES = 64 << 20
"""Left free on a disk."""
FLUSH_BYTES = 32 << 20
"""Bytes after which a file is flushed while more arrive, so that the end does not wait for all of it."""

Progress = Callable[[Item, int], None]
"""Called with a file and the bytes of it that travelled, or that were there."""


def put_begun(wire: CopyStream, folder: Path, items: Iterable[Item]) -> None:
    """Send what a folder has of each file: nothing of one that is longer than the file, or is not a regular one."""
    for item in items:
        file = folder / item.path
        if item.link or not file.is_file() or file.is_symlink():
            continue
        have = file.stat().st_size
        if have <= item.size:
            wire.put(path=item.path, have=have, sha256=_hash_of_start(file, have, wire.working).hexdigest())
    wire.put(end=True)


def _hash_of_start(file: Path, count: int, working: Callable[[], None]) -> Any:
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while count and (block := source.read(min(BLOCK, count))):
            digest.update(block)
            count -= len(block)
            working()
    return digest


# ------------------------------------------------------------------------------------------------- bytes of files


def send_files(
    wire: CopyStream,
    files: Iterable[tuple[Item, Path]],
    begun: Mapping[str, Begun],
    progress: Progress,
    hashes: Mapping[str, str] | None = None,
) -> None:
    """Send what is missing of each file, with the hash of all of it.

    ``hashes``: SHA-256 by path, of files for which it is known. Raises RemoteError for a file that became shorter
    (``changed``) or has another hash (``damaged``).
    """
    for item, path in files:
        if item.link:
            continue
        digest = _send_file(wire, item, path, begun.get(item.path), progress)
        if hashes and hashes.get(item.path, digest) != digest:
            raise RemoteError(
                "damaged", f"{path} is damaged: its hash is not the one in {MANIFEST}", "copy another step"
            )
        wire.put(sha256=digest)
    wire.put(end=True)
    wire.flush()


def _send_file(wire: CopyStream, item: Item, path: Path, begun: Begun | None, progress: Progress) -> str:
    """Send a file without its hash, which is returned."""
    with path.open("rb", buffering=0) as source:
        digest, at = hashlib.sha256(), 0
        if begun is not None and 0 < begun.have <= item.size:
            known = _hash_of_start(path, begun.have, wire.working)
            if known.hexdigest() == begun.sha256:
                digest, at = known, begun.have
                source.seek(at)
        wire.put(path=item.path, at=at)
        progress(item, at)
        while at < item.size:
            block = source.read(min(BLOCK, item.size - at))
            if not block:
                raise RemoteError("changed", f"{item.path} became shorter while it was copied", "copy again")
            digest.update(block)
            wire.put(bytes=len(block))
            wire.put_bytes(block)
            at += len(block)
            progress(item, len(block))
    return str(digest.hexdigest())


def receive_files(wire: CopyStream, folder: Path, items: list[Item], progress: Progress) -> None:
    """Receive the files of a list into a folder, beside what :func:`put_begun` found there.

    Raises CopyInterrupted; RemoteError for what the other end refuses, and (``damaged``) for a file whose hash is
    another one, which is removed; ProtocolError; OSError.
    """
    wanted = {item.path: item for item in items if not item.link}
    while "end" not in (line := wire.take()):
        item = wanted.pop(str(line.get("path")), None)
        at = line.get("at")
        if item is None or type(at) is not int or not 0 <= at <= item.size:
            raise ProtocolError(f"a file that was not asked for: {str(line.get('path'))[:200]!r}")
        _receive_file(wire, folder / item.path, item, at, progress)
    if wanted:
        raise ProtocolError(f"{next(iter(wanted))} did not arrive")
    for item in items:
        if item.link:
            _make_link(folder / item.path, item.link)


def _receive_file(wire: CopyStream, file: Path, item: Item, at: int, progress: Progress) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if at == 0 and os.path.lexists(file):
        file.unlink()
    digest = _hash_of_start(file, at, wire.working) if at else hashlib.sha256()
    progress(item, at)
    with file.open("r+b" if at else "xb", buffering=0) as sink, ThreadPoolExecutor(1) as flusher:
        sink.seek(at)
        flushed, flushes = at, list[Future[None]]()
        while "sha256" not in (line := wire.take()):
            count = line.get("bytes")
            if type(count) is not int or not 0 < count <= BLOCK or at + count > item.size:
                raise ProtocolError(f"more than the {item.size:,} bytes of {item.path}")
            for piece in wire.take_bytes(count):
                digest.update(piece)
                at += len(piece)
                progress(item, len(piece))
                while piece:
                    piece = piece[sink.write(piece) :]
            if at - flushed >= FLUSH_BYTES:
                flushes.append(flusher.submit(os.fsync, sink.fileno()))
                flushed = at
        whole = at == item.size and digest.hexdigest() == line["sha256"]
        if whole:
            for flush in flushes:  # an error is reported once only
                flush.result()
            os.fsync(sink.fileno())
    if not whole:
        file.unlink()
        raise RemoteError("damaged", f"{item.path} was damaged on the way", "copy again")
    if item.mtime:
        os.utime(file, (item.mtime, item.mtime))


def _make_link(path: Path, target: str) -> None:
    """A symbolic link; where the machine has none (Windows without the right), it is left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    try:
        path.symlink_to(target)
    except (OSError, NotImplementedError):
        if os.name == "posix":
            raise


# ----------------------------------------------------------------------------------------------------- local trees


def list_tree(folder: Path, *, hidden: bool = True) -> tuple[list[Item], list[str]]:
    """The files and links of a folder, and what is left out: links that leave their folder, sockets, other names.

    ``hidden=False`` leaves out names that begin with a dot. Raises OSError.
    """
    items, left_out = [], []
    for here, folders, names in os.walk(folder):
        if not hidden:
            folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        for name in sorted([*names, *links]):
            path = Path(here) / name
            relative = path.relative_to(folder).as_posix()
            if name.startswith(".") and not hidden:
                continue
            item = item_of(path, relative)
            if item is None:
                left_out.append(relative)
            else:
                items.append(item)
        folders.sort()
    return items, left_out


def item_of(path: Path, relative: str) -> Item | None:
    """A file or a link as an item; None for what cannot be copied. Raises OSError."""
    try:
        check_path(relative)
    except ProtocolError:
        return None
    if path.is_symlink():
        target = os.readlink(path)
        return Item(relative, link=target) if "/" not in target and target not in (".", "..") else None
    if not path.is_file():
        return None
    facts = path.stat()
    return Item(relative, facts.st_size, facts.st_mtime)


def staging_of(place: Path) -> Path:
    """The hidden folder beside a place where its copy is collected."""
    return place.with_name(f".{place.name}.part")


def remove_others(staging: Path, items: Iterable[Item]) -> None:
    """Remove what an earlier copy collected and this one does not have."""
    wanted = {item.path for item in items}
    for here, folders, names in os.walk(staging, topdown=False):
        for name in [*names, *folders]:
            path = Path(here, name)
            if path.relative_to(staging).as_posix() in wanted or path == staging / LOCK:
                continue
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()


def bytes_here(staging: Path, items: Iterable[Item]) -> int:
    """Bytes of a copy that an earlier one collected."""
    total = 0
    for item in items:
        try:
            total += min(item.size, (staging / item.path).lstat().st_size)
        except OSError:
            pass
    return total


def check_room(staging: Path, items: list[Item]) -> None:
    """Raise RemoteError (``disk_full``) where the disk has no room for what has not arrived."""
    needed = sum(item.size for item in items) - bytes_here(staging, items) + RESERVE_BYTES
    free = shutil.disk_usage(staging).free
    if free < needed:
        message = f"{staging.parent} has {free / 1e9:.1f} GB free; the copy needs {needed / 1e9:.1f} GB"
        raise RemoteError("disk_full", message, "free disk space and copy again: what has arrived is kept")


def put_in_place(staging: Path, parts: list[str], folder: Path) -> None:
    """Move what was collected to its places, in this order. Raises RemoteError (``exists``), OSError."""
    for here, _, _ in os.walk(staging):
        fsync_path(Path(here))
    for part in parts:
        place = folder / part
        if os.path.lexists(place):
            raise RemoteError("exists", f"{place} exists", "copy to another place")
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(staging / part, place)
        fsync_path(place.parent)
    remove_tree(staging)


CLONE = "clone"
THEN, NOW = "then", "now"
"""What a resume may take where the code differs: that of the run, or what was synced last."""
BUNDLE, PATCH = "commits.bundle", "changes.patch"
