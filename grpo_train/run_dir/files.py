"""Durable files: atomic replacement, strict JSON, append-only JSON lines. Standard library only.

The run directory (contract 1) is read by other programs while it is written, over NFS, by processes that may be
killed at any instruction. So a file is either appended to in whole lines or replaced in one rename.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ByteRange = tuple[int, int]

_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def utc_now() -> str:
    """The time now as logs carry it: ISO 8601, UTC, milliseconds, e.g. ``2025-08-19T12:35:07.412Z``."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Seconds since the epoch of a time written by :func:`utc_now`."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def utc_from(seconds: float) -> str:
    """ISO 8601 UTC of seconds since the epoch."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def to_json(value: Any) -> str:
    """One line of strict JSON; NaN and infinities become the strings "NaN", "Infinity" and "-Infinity"."""
    return json.dumps(_spell_out(value), allow_nan=False, ensure_ascii=False, separators=(", ", ": "))


def _spell_out(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _spell_out(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spell_out(item) for item in value]
    return value


def number(value: Any) -> float | None:
    """The float a log field holds (the three spelled-out specials included), or None where it is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    return _SPECIAL_FLOATS.get(value) if isinstance(value, str) else None


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable (where the platform can open directories)."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, data: str | bytes, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data`` so that a reader, and a crash, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    payload = data.encode() if isinstance(data, str) else data
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = os.fspath(path), None  # a full disk names none, the others a draft
        raise
    fsync_directory(path.parent)


def atomic_symlink(alias: Path, target: str) -> None:
    """Make ``alias`` a (relative) symlink to ``target`` in one rename."""
    temporary = alias.with_name(f".{alias.name}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(target)
    os.replace(temporary, alias)
    fsync_directory(alias.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory that may be half there."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is no file or it holds no object (damaged)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def close_torn_line(path: Path) -> None:
    """End a line that a crash tore with a newline, so that what is appended next starts a line of its own."""
    with path.open("rb+") as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")


class JsonlWriter:
    """Appends objects to a JSON-lines file, each with ``time``; one ``write`` call per batch, so lines are whole.

    A line torn by a crash of an earlier writer is closed with a newline before the first append.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._descriptor).st_size
        if size:
            os.lseek(self._descriptor, size - 1, os.SEEK_SET)
            if os.read(self._descriptor, 1) != b"\n":
                os.write(self._descriptor, b"\n")

    def write(self, *rows: Mapping[str, Any]) -> None:
        """Append rows. ``time`` is added where a row has none."""
        now = utc_now()
        text = "".join(to_json(row if "time" in row else _with_time(row, now)) + "\n" for row in rows)
        payload = memoryview(text.encode())
        while payload:
            payload = payload[os.write(self._descriptor, payload) :]

    def size(self) -> int:
        """Length of the file in bytes."""
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _with_time(row: Mapping[str, Any], now: str) -> dict[str, Any]:
    """``time`` after ``step`` (or first), where a reader looks for it."""
    head = {"step": row["step"]} if "step" in row else {}
    return {**head, "time": now, **{key: value for key, value in row.items() if key != "step"}}


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to a file that is written rarely (events)."""
    writer = JsonlWriter(path)
    try:
        writer.write(row)
        writer.sync()
    finally:
        writer.close()


def read_jsonl(path: Path, superseded: list[ByteRange] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (byte offset, object) for each whole, valid line outside the superseded byte ranges.

    A torn last line and lines that are no JSON objects are passed over: they are a crash's remains.
    """
    ranges = superseded or []
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        offset = 0
        for line in file:
            start, offset = offset, offset + len(line)
            if not line.endswith(b"\n") or any(low <= start < high for low, high in ranges):
                continue
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield start, row


def last_jsonl(path: Path, window: int = 65_536) -> dict[str, Any] | None:
    """The last whole JSON object of a file, read from its end (``window`` bytes at most)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window))
            tail = file.read()
    except FileNotFoundError:
        return None
    for line in reversed(tail.split(b"\n")[:-1]):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            return row
    return None
