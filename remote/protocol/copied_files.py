"""The files of a copy: sending and receiving their bytes, listing folders, and putting a copy in place.

See :mod:`remote.protocol.copies` for the lines.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import fsync_path, remove_tree
from grpo_train.run_dir.manifest import MANIFEST
from remote.protocol.copies import BLOCK, Begun, CopyStream, Item, check_path
from remote.protocol.messages import ProtocolError, RemoteError

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
