"""Append-only files as immutable segments: only new bytes travel."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from grpo_train.backup.snapshot import Part, StoredFile
from grpo_train.backup.store import FilePiece
from grpo_train.run_dir.safe_json import open_regular

SEGMENT = 64 << 20
"""Bytes of a segment at most."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class LogPlan:
    """An append-only file now, against what the store has of it."""

    kept: tuple[Part, ...]
    """Parts that still are the start of the file."""
    dropped: tuple[Part, ...]
    """Parts after them that are not."""
    added: tuple[tuple[Part, FilePiece], ...]
    last_line: bytes
    """The last whole line, for its step."""
    mode: int


def plan_log(
    path: Path, known: StoredFile | None, key_of: Callable[[int, int, str], str], *, whole_lines: bool
) -> LogPlan:
    """Compare a file with its stored parts and split what is new; ``whole_lines`` leaves out an unfinished last line.

    Raises OSError, Unreadable.
    """
    with open_regular(path) as file:
        facts = os.fstat(file.fileno())
        end = _end_of_lines(file, facts.st_size) if whole_lines else facts.st_size
        parts = known.parts if known else ()
        kept = parts if extends(file, end, parts) else matching(file, end, parts)
        start = sum(part.size for part in kept)
        added = []
        for low in range(start, end, SEGMENT):
            size = min(SEGMENT, end - low)
            digest = _hash(file, low, size)
            part = Part(key_of(low, low + size, digest), size, digest)
            added.append((part, FilePiece(path, low, size, digest)))
        last = _last_line(file, end)
    return LogPlan(kept, parts[len(kept) :], tuple(added), last, facts.st_mode & 0o777)


def extends(file: BinaryIO, end: int, parts: tuple[Part, ...]) -> bool:
    """Whether a file of ``end`` bytes continues stored parts, judged by the bytes of the last part."""
    stored = sum(part.size for part in parts)
    if not parts:
        return True
    return end >= stored and _hash(file, stored - parts[-1].size, parts[-1].size) == parts[-1].sha256


def matching(file: BinaryIO, end: int, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The first parts whose bytes are the start of the file, every byte compared."""
    start = 0
    for index, part in enumerate(parts):
        if start + part.size > end or _hash(file, start, part.size) != part.sha256:
            return parts[:index]
        start += part.size
    return parts


def _hash(file: BinaryIO, start: int, size: int) -> str:
    digest = hashlib.sha256()
    file.seek(start)
    while size and (chunk := file.read(min(_CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest() if not size else ""


def _end_of_lines(file: BinaryIO, size: int) -> int:
    """Offset after the last newline before ``size``."""
    end = size
    while end > 0:
        low = max(0, end - _CHUNK)
        file.seek(low)
        found = file.read(end - low).rfind(b"\n")
        if found >= 0:
            return low + found + 1
        end = low
    return 0


def _last_line(file: BinaryIO, end: int) -> bytes:
    low = max(0, end - _CHUNK)
    file.seek(low)
    lines = file.read(end - low).split(b"\n")
    return next((line for line in reversed(lines) if line.strip()), b"")
