"""Durable files: atomic replacement, strict JSON, append-only JSON lines. Standard library only.

Other programs read the run directory while it is written, over NFS, by processes that may be killed at any
instruction. So a file is either appended to in whole lines or replaced in one rename. New files get the mode that the
umask allows (see :mod:`grpo_train.run_dir.machine`).
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from grpo_train.run_dir.safe_json import (
    MAX_FILE_BYTES,
    MAX_LINE_BYTES,
    OverLimit,
    Unreadable,
    leave_out,
    open_regular,
    parse_object,
    read_lines,
    read_object,
)

ByteRange = tuple[int, int]

_LAST_SECOND = 253_402_300_799.0
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def utc_now() -> str:
    """Current time in the format of the logs: ISO 8601, UTC, milliseconds, e.g. ``2025-08-19T12:35:07.412Z``."""
    return utc_from(time.time())


def parse_time(text: str) -> float:
    """Seconds since the epoch for a time written by :func:`utc_now`."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def time_of(value: Any) -> float | None:
    """Seconds since the epoch of a logged time; None if it cannot be read."""
    try:
        return parse_time(str(value)) if value else None
    except (ValueError, OverflowError):
        return None


def utc_from(seconds: float) -> str:
    """Seconds since the epoch in the format of :func:`utc_now`; a time outside 1970–9999 becomes the nearest bound."""
    moment = datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_SECOND), timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_json(value: Any) -> str:
    """One line of strict JSON; NaN and infinities become the strings "NaN", "Infinity" and "-Infinity"."""
    return json.dumps(_encode_special_floats(value), allow_nan=False, ensure_ascii=False, separators=(", ", ": "))


def _encode_special_floats(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _encode_special_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode_special_floats(item) for item in value]
    return value


def to_float(value: Any) -> float | None:
    """Value of a log field as a float ("NaN" and the infinities included); None if it is not a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return number_in(value)
    return _SPECIAL_FLOATS.get(value) if isinstance(value, str) else None


def number_in(text: Any) -> float | None:
    """The number that a text is, or a value of another program has; None where there is none."""
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return None


def stat_of(path: Path | str, *, follow: bool = True) -> os.stat_result | None:
    """What the disk knows of a file, or of the link itself; None where it is missing or may not be seen."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError:
        return None


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def discarding(path: Path) -> Iterator[None]:
    """Remove a file or directory that was not finished, whatever ended the block."""
    try:
        yield
    except BaseException:
        remove_tree(path)
        with suppress(OSError):  # never made, or removed as a directory
            path.unlink()
        raise


def fsync_path(path: Path) -> None:
    """Flush a file, or a directory's entries, to disk (no-op where the platform cannot open directories)."""
    if os.name != "posix":
        return
    with closing_descriptor(os.open(path, os.O_RDONLY)) as descriptor:
        os.fsync(descriptor)


def atomic_write(path: Path, data: str | bytes, mode: int = 0o666) -> None:
    """Replace a file in one rename: a reader, or a crash, sees either the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    payload = data.encode(errors="backslashreplace") if isinstance(data, str) else data  # \udcff is JSON, too
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # Windows would change line ends
        descriptor = os.open(temporary, flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # A full disk reports no file name, other failures the temporary one.
            error.filename, error.filename2 = os.fspath(path), None
        raise
    fsync_path(path.parent)


def open_for_writing(path: Path, flags: int = os.O_RDWR | os.O_CREAT | os.O_APPEND, mode: int = 0o666) -> int:
    """Descriptor of a regular file that is written in place.

    On a shared root, another account may have put something else there. Raises OSError naming the file: a symbolic link
    could lead to any file of this account, and a pipe would have to be waited for. Directories on the way may be links.
    """
    for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, flag, 0)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link is not written through: remove it", str(path)) from error
        if error.errno == errno.ENXIO:  # a pipe without a reader
            raise OSError(errno.EINVAL, "not a regular file", str(path)) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def touch(path: Path) -> None:
    """Create an empty file, unless it exists. Raises OSError as :func:`open_for_writing`."""
    os.close(open_for_writing(path))


def open_lock(path: Path) -> int:
    """Descriptor of a lock file: a new one is open to every account that may write its directory. Raises OSError."""
    while True:
        try:
            return open_for_writing(path, os.O_RDWR)  # with O_CREAT, Linux denies another account's file, if sticky
        except FileNotFoundError:
            pass
        try:
            descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:  # another process made it in between
            continue
        os.fchmod(descriptor, path.parent.stat().st_mode & 0o666)
        return descriptor


def lock_if_free(descriptor: int) -> bool:
    """Take a lock until the descriptor is closed, unless another process holds it."""
    import fcntl  # POSIX only, and only where a run is written

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def atomic_symlink(alias: Path, target: str) -> None:
    """Point ``alias`` at ``target`` (relative) in one rename."""
    temporary = alias.with_name(f".{alias.name}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(target)
    os.replace(temporary, alias)
    fsync_path(alias.parent)


def sync_tree(folder: Path) -> None:
    """Flush files and directories of a tree to disk."""
    for parent, _, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in names):
            if path.is_file() and not path.is_symlink():
                fsync_path(path)
        fsync_path(Path(parent))


def remove_tree(path: Path) -> None:
    """Remove a directory, ignoring errors."""
    shutil.rmtree(path, ignore_errors=True)


def read_json(path: Path, limit: int = MAX_FILE_BYTES, *, finite: bool = False) -> dict[str, Any] | None:
    """Object in a JSON file; None if the file is missing or left out as damaged, which includes too large.

    ``finite`` refuses NaN and infinities. Configs of models and of training may hold them.
    """
    try:
        return read_object(path, limit, finite=finite)
    except Unreadable as error:
        leave_out(path, error)
        return None


def close_torn_line(path: Path) -> None:
    """Terminate a line that a crash left incomplete, so that the next append starts a new line."""
    with os.fdopen(open_for_writing(path), "ab+") as file:  # appends even if another process has appended since
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")


class JsonlWriter:
    """Appends objects to a JSON-lines file, each with ``time``, in one ``write`` call per batch.

    A line that an earlier writer left incomplete is terminated first.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        close_torn_line(path)
        self._descriptor = open_for_writing(path)

    def write(self, *rows: Mapping[str, Any]) -> None:
        """Append rows; a row without ``time`` gets the current time."""
        now = utc_now()
        text = "".join(to_json(row if "time" in row else _with_time(row, now)) + "\n" for row in rows)
        payload = memoryview(text.encode(errors="backslashreplace"))  # a file name that is not UTF-8: \udcff
        while payload:
            payload = payload[os.write(self._descriptor, payload) :]

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _with_time(row: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Insert ``time`` after ``step``, so that every line starts with both."""
    head = {"step": row["step"]} if "step" in row else {}
    return {**head, "time": now, **{key: value for key, value in row.items() if key != "step"}}


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row durably to a file that is written rarely (events)."""
    with closing(JsonlWriter(path)) as writer:
        writer.write(row)
        writer.sync()


def open_log(path: Path, *, strict: bool = False) -> BinaryIO | None:
    """A log to read; None if it is missing, or left out as not a file. With ``strict``, that raises Unreadable."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        return None
    except Unreadable as error:
        if strict:
            raise
        leave_out(path, error)
        return None


def read_jsonl(
    path: Path, superseded: list[ByteRange] | None = None, *, strict: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (byte offset, object) for each whole, valid line outside the superseded byte ranges.

    Incomplete lines, which a crash left, are skipped; others that are not JSON objects are left out. With ``strict``, a
    line over the limits of :mod:`grpo_train.run_dir.safe_json` raises Unreadable instead.
    """
    ranges = superseded or []
    file = open_log(path, strict=strict)
    if file is None:
        return
    with file:
        for start, line in read_lines(file):
            if any(low <= start < high for low, high in ranges):
                continue
            try:
                if not line.endswith(b"\n"):
                    raise OverLimit(f"longer than {MAX_LINE_BYTES} bytes")
                yield start, parse_object(line)
            except Unreadable as error:
                if strict and isinstance(error, OverLimit):
                    raise Unreadable(f"{path.name}, line at byte {start}: {error}") from None
                leave_out_line(path, start, line, error)


def parse_line(path: Path, start: int, line: bytes, *, finite: bool = True) -> dict[str, Any] | None:
    """The object in a line of a log; None of one that is left out."""
    try:
        return parse_object(line, finite=finite)
    except Unreadable as error:
        leave_out_line(path, start, line, error)
        return None


def leave_out_line(path: Path, start: int, line: bytes, error: Unreadable) -> None:
    """Leave out a line of a log, unless a crash cut it off: that was never a row."""
    if line.lstrip()[:1] != b"{" or line.rstrip()[-1:] == b"}":
        leave_out(path, f"the line at byte {start}: {error}")


def last_jsonl(path: Path, window: int = 65_536, *, strict: bool = False) -> dict[str, Any] | None:
    """Last whole JSON object of a file, looked for in its last ``window`` bytes.

    ``strict`` as in read_jsonl; a file in which all lines are damaged raises, too.
    """
    file = open_log(path, strict=strict)
    if file is None:
        return None
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - window))
        tail = file.read(window)
    lines = tail.split(b"\n")[:-1]
    for line in reversed(lines):
        try:
            return parse_object(line)
        except Unreadable as error:
            if strict and isinstance(error, OverLimit):
                raise Unreadable(f"{path.name}: {error}") from None
    if any(line.strip() for line in lines):
        reason = "none of its last lines is a JSON object"
        if strict:
            raise Unreadable(f"{path.name}: {reason}")
        leave_out(path, reason)
    return None
