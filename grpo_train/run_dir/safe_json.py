"""JSON that any program may have written: bounded size and depth, finite numbers, regular files only.

Every JSON file and log line of a root *must* be read here. On a shared box anyone may have written it, and disks fail:
a damaged file must cost a reason, never a crash, a hanging process or the memory of the box. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from grpo_train.run_dir.errors import UserError, prefixed

MAX_FILE_BYTES = 64 << 20
"""Of a JSON file; the weight index of a large model has 9 MB."""
MAX_RUN_FILE_BYTES = 4 << 20
"""Of ``launch.json``, which holds a config's text, and ``status.json``."""
MAX_LINE_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_DIGITS = 300
"""Of a number: a float holds 308 digits before the decimal point."""


class Unreadable(UserError):
    """A file or log line that cannot be used; the message is the reason."""

    code = "unreadable"


left_out: dict[str, str] = {}
"""Files that this process could not read, or not whole, and went on without, with the first reason: a command names
them when it ends."""
_noted: ContextVar[dict[str, str]] = ContextVar("left_out", default=left_out)


def leave_out(path: Path | str, reason: str | Exception) -> None:
    """Record that this process continues without a file, or without a part of it: see :data:`left_out`."""
    name = os.fspath(path)
    text = (reason.strerror if isinstance(reason, OSError) else "") or str(reason)
    _noted.get().setdefault(name, text.removeprefix(f"{os.path.basename(name)}: ").removeprefix(f"{name}: "))


@contextmanager
def noting_left_out() -> Iterator[dict[str, str]]:
    """What this thread leaves out in the block, apart from :data:`left_out`."""
    token = _noted.set({})
    try:
        yield _noted.get()
    finally:
        _noted.reset(token)


class OverLimit(Unreadable):
    """Too large, nested too deeply, or a number that is not finite: no crash leaves such a line in a log."""


def parse_object(text: bytes, *, finite: bool = True) -> dict[str, Any]:
    """The JSON object in UTF-8 text. Raises Unreadable, OverLimit."""
    value = parse(text, finite=finite)
    if not isinstance(value, dict):
        raise Unreadable(f"{type_name(value)} instead of an object")
    return value


def parse(text: bytes, *, finite: bool = True) -> Any:
    """The JSON value in UTF-8 text. Raises Unreadable, OverLimit."""
    try:
        value = (_FINITE if finite else _ANY_NUMBER).decode(text.decode())
        if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
            _check_depth(value)
    except UnicodeDecodeError as error:
        raise Unreadable(f"invalid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise OverLimit(f"nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise Unreadable(f"invalid JSON: {error}") from None
    return value


def read_object(path: Path, limit: int = MAX_FILE_BYTES, *, finite: bool = True) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing. Raises Unreadable naming the file, and OSError."""
    data = read_bytes(path, limit)
    with prefixed(f"{path.name}: "):
        return None if data is None else parse_object(data, finite=finite)


def read_bytes(path: Path, limit: int) -> bytes | None:
    """The contents of a regular file; None if it is missing. Raises Unreadable naming the file, and OSError."""
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1) if os.fstat(file.fileno()).st_size <= limit else b""
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    if max(size, len(data)) > limit:
        raise OverLimit(f"{path.name}: {size} bytes (the limit is {limit})")
    return data


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading without waiting for a writer. Raises Unreadable for a directory, FIFO or device."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device may act on it
        raise Unreadable(f"{path.name}: not a regular file")
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115, the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise Unreadable(f"{path.name}: not a regular file")


def read_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Byte offset and content of each complete line; of one longer than MAX_LINE_BYTES, the first MAX_LINE_BYTES."""
    start = offset = 0
    kept = b""
    while piece := file.readline(MAX_LINE_BYTES):
        offset += len(piece)
        kept = kept or piece
        if piece.endswith(b"\n"):
            yield start, kept
            start, kept = offset, b""


def half_character(text: str) -> str:
    """What is wrong with a text that UTF-8 cannot hold, for a message; "" for any other."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has {ascii(text[error.start])[1:-1]}, half of a character: write it whole or remove it"
    return ""


def type_name(value: Any) -> str:
    """What a JSON value is, for a message."""
    names = {str: "a string", bool: "true or false", int: "a number", float: "a number", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, (dict, list))]
        if not containers:
            return
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    raise RecursionError


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise OverLimit(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise OverLimit(f"{text[:20]} is not a finite number")
    return value


def _constant(text: str) -> NoReturn:
    raise OverLimit(f"{text} is not a finite number")


_FINITE = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant)
_ANY_NUMBER = json.JSONDecoder(parse_int=_integer)
