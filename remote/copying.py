"""Copying files to and from a box, on a connection of its own: resumable, hashed, put in place by a rename.

    with Copier(box) as copier:
        copier.get("run_gsm8k:40", Path("."))
        copier.put(Path("weights"), "checkpoints/start")

A connection that breaks is made again, as long as bytes arrive; a copy that was given up continues when it is
requested again. See :mod:`remote.protocol.copies` for the lines.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from grpo_train.run_dir import sha256
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError, code_of
from remote.base import Refused, TryAgain, Unreachable
from remote.boxes import Box
from remote.events import HostKeyAsked, QuestionAsked
from remote.gate import message
from remote.protocol import ProtocolError, RemoteError
from remote.protocol.copies import (
    LOCK,
    Begun,
    CopyInterrupted,
    CopyStream,
    Item,
    check_path,
    check_room,
    item_of,
    list_tree,
    put_begun,
    put_in_place,
    put_items,
    receive_files,
    remove_others,
    send_files,
    staging_of,
    take_begun,
    take_items,
)  # fmt: skip
from remote.transports.choice import TransportChoice
from remote.transports.transport import Timing, Transport, await_hello, greeting

MAX_TRIES = 6
"""Connections in a row in which nothing arrives; then a copy is given up."""

T = TypeVar("T")


@dataclass
class Copied:
    """What a copy did."""

    paths: list[str]
    """Where it is, the main one last."""
    files: int
    size: int
    """Bytes."""
    travelled: int
    """Bytes that went over the connection; the others were there."""
    left_out: list[str]
    """What cannot be copied: links that leave their folder, pipes, sockets."""


def not_copied(path: str) -> str:
    """A path of :attr:`Copied.left_out`, with the reason."""
    return f"{path} (not a file, or a link that leaves its folder)"


Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes of all."""


class Copier:
    """Copies to and from one box, one at a time. Use it on one thread."""

    def __init__(
        self,
        box: Box,
        *,
        ask_host_key: Callable[[HostKeyAsked], bool] = lambda question: False,
        ask: Callable[[QuestionAsked], str | None] = lambda question: None,
        progress: Progress = lambda done, total: None,
        say: Callable[[str], None] = lambda text: None,
        readonly: bool = False,
        timing: Timing | None = None,
        choice: TransportChoice | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """``say``: called with what does not travel, and with the reason when a connection is made again."""
        self.box = box
        self._ask_host_key, self._progress, self._say, self._readonly = ask_host_key, progress, say, readonly
        self._timing, self._clock = timing or Timing(), clock
        self._choice = choice or TransportChoice(box, ask, lambda event: None, step_s=self._timing.step, clock=clock)
        self._transport: Transport | None = None
        self._stopped = threading.Event()
        self.tally = _Tally(progress)

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._hang_up()
        self._choice.close()

    def stop(self) -> None:
        """End the copy with UserError (``stopped``); what has arrived is kept. Any thread."""
        self._stopped.set()
        if (transport := self._transport) is not None:
            transport.close()

    # ------------------------------------------------------------------------------------------------------- copies

    def get(self, what: str, folder: Path, steps: str = "latest") -> Copied:
        """Copy a run (``RUN``), the weights of a checkpoint (``RUN:40``) or a path below the root into a folder.

        A run comes as ``training_runs/RUN`` with its evaluations beside it, so that the folder is a root.
        ``steps`` (``all``, ``latest``, ``final``, ``none`` or ``10,20``): which checkpoints of it. Raises UserError.
        """
        return self.over_connections(lambda wire: self._get(wire, what, folder, steps))

    def put(self, source: Path, to: str = "") -> Copied:
        """Copy a file or a folder to a path below the box's root (default: ``checkpoints/NAME``). Raises UserError."""
        source = Path(os.path.abspath(source.expanduser()))
        items, left_out = _listed(source)
        place = to or f"checkpoints/{source.name}"
        name = place.rstrip("/").rpartition("/")[2]
        if not name or name.startswith("."):
            raise UserError(f"'{place}' is not a place below the root of {self.box.name}", code="bad_request")
        items = [replace(item, path=name + item.path.removeprefix(source.name)) for item in items]
        self.say_left_out([not_copied(path) for path in left_out])
        return self.over_connections(lambda wire: self._put(wire, source, place, name, items, left_out))

    def say_left_out(self, names: list[str]) -> None:
        """Name what does not travel, before anything does."""
        for name in names:
            self._say(f"left out: {name}")

    def _get(self, wire: CopyStream, what: str, folder: Path, steps: str) -> Copied:
        wire.put(op="get", what=what, steps=steps)
        reply = wire.take()
        name, parts, left_out = reply.get("name"), reply.get("parts"), reply.get("left_out")
        if not isinstance(name, str) or not isinstance(parts, list) or not parts or "/" in name:
            raise ProtocolError("a malformed answer to a copy")
        for path in [name, *parts]:
            check_path(str(path))
        items = take_items(wire)
        if stray := [item.path for item in items if not any(f"{item.path}/".startswith(f"{part}/") for part in parts)]:
            raise ProtocolError(f"a file that belongs to no part of the copy: {stray[0]}")
        _refuse_existing(folder, parts)
        skipped = [message(str(path)) for path in left_out] if isinstance(left_out, list) else []
        self.say_left_out([not_copied(path) for path in skipped])
        staging = staging_of(folder / name)
        staging.mkdir(parents=True, exist_ok=True)
        with _Alone(staging, folder / name):
            check_room(staging, items)
            remove_others(staging, items)
            self.tally.begin(items)
            put_begun(wire, staging, items)
            receive_files(wire, staging, items, self.tally)
            for part in parts:
                if not os.path.lexists(staging / part):
                    (staging / part).mkdir(parents=True)  # a folder without files
            put_in_place(staging, parts, folder)
        return self._copied([str(folder / part) for part in parts], items, skipped)

    def _put(
        self, wire: CopyStream, source: Path, place: str, name: str, items: list[Item], left_out: list[str]
    ) -> Copied:
        files = [(item, source / item.path[len(name) + 1 :] if item.path != name else source) for item in items]
        wire.put(op="put", to=place)
        put_items(wire, items)
        reply = wire.take()
        self.tally.begin(items)
        begun = take_begun(wire)
        path = message(str(reply.get("path", place)))
        if reply.get("exists"):
            if not _is_copied(wire, files, begun):
                raise UserError(
                    f"{path} exists on {self.box.name} with other content; name another path", code="exists"
                )
            return self._copied([path], items, left_out)
        try:
            send_files(wire, files, begun, self.tally)
        except CopyInterrupted as error:
            raise self._last_words(wire) or error from error
        return self._copied([message(str(wire.take().get("path", path)))], items, left_out)

    def _last_words(self, wire: CopyStream) -> RemoteError | None:
        """Why the box no longer takes bytes, if it said so."""
        try:
            while True:
                wire.take()
        except RemoteError as error:
            return error
        except (CopyInterrupted, ProtocolError):
            return None

    def _copied(self, paths: list[str], items: list[Item], left_out: list[str]) -> Copied:
        return Copied(paths, len(items), sum(item.size for item in items), self.tally.travelled, left_out)

    # -------------------------------------------------------------------------------------------------- connections

    def over_connections(self, copy: Callable[[CopyStream], T]) -> T:
        """Copy, over as many connections as it takes. Raises UserError."""
        self.tally = _Tally(self._progress)
        failures, suspected = 0, ""
        while True:
            before = self.tally.travelled
            try:
                return copy(self._connect())
            except RemoteError as error:
                hint = f"; {message(error.hint)}" if error.hint else ""
                raise UserError(f"{self.box.name}: {message(error.message)}{hint}", code=error.code) from error
            except Refused as error:
                self._refused(error)
            except ProtocolError as error:
                raise UserError(f"{self.box.name}: {message(str(error))}", code="protocol") from error
            except OSError as error:
                file = f"{error.filename}: " if error.filename else ""
                raise UserError(f"{file}{error.strerror or error}", code=code_of(error)) from error
            except TryAgain:
                continue
            except (Unreachable, CopyInterrupted) as error:
                refusal = error.refusal if isinstance(error, Unreachable) else None
                if refusal is not None and str(refusal) == suspected:  # once, it may have been a damaged byte
                    self._refused(refusal)
                    continue
                suspected = str(refusal or "")
                if self._stopped.is_set():
                    again = "what has arrived is kept: copy again to continue"
                    raise UserError(f"{self.box.name}: the copy was stopped; {again}", code="stopped") from error
                failures = 1 if self.tally.travelled > before else failures + 1
                reason = message(str(error))
                if failures >= MAX_TRIES:
                    again = "what has arrived is kept: run the command again to continue"
                    raise UserError(f"{self.box.name}: {reason}; {again}", code="unreachable") from error
                wait = min(self._timing.backoff_most, self._timing.backoff_first * 2 ** (failures - 1))
                self._say(f"{reason}; connecting again in {wait:.0f} s")
                self._clock.wait(self._stopped, wait)
            finally:
                self._hang_up()

    def _refused(self, refusal: Refused) -> None:
        """Raise UserError, unless the other transport is to be tried."""
        meaning = self._choice.after(refusal)
        if isinstance(meaning, Refused):
            raise UserError(f"{self.box.name}: {message(str(meaning))}", code="unreachable") from refusal

    def _connect(self) -> CopyStream:
        transport = self._transport = self._choice.transport(self.box, self._ask_host_key)
        if self._stopped.is_set():
            raise CopyInterrupted("stopped")
        transport.open(greeting(self.box, readonly=self._readonly, copies=True))
        await_hello(transport, self.box, self._timing.lost_after, threading.Event(), self._clock)

        def send(data: bytes) -> None:
            try:
                transport.send(data)
            except Unreachable as error:
                raise CopyInterrupted(str(error)) from error

        def receive(seconds: float) -> bytes | None:
            data = transport.receive(seconds)
            if data == b"" and (reason := transport.error_tail()):
                raise CopyInterrupted(reason)
            return data

        return CopyStream(receive, send, self._clock)

    def _hang_up(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()


class _Tally:
    """Counts bytes."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._total, self._done = progress, 0, 0
        self._begun: set[str] = set()
        self.travelled = 0

    def begin(self, items: list[Item]) -> None:
        """A connection begins: what is there is counted again."""
        self._total, self._done = sum(item.size for item in items), 0
        self._begun = set()
        self._progress(0, self._total)

    def __call__(self, item: Item, count: int) -> None:
        if item.path in self._begun:
            self.travelled += count
        self._begun.add(item.path)  # the first call of a file counts what was there
        self._done += count
        self._progress(self._done, self._total)


class _Alone:
    """No other process copies to the same place. Raises UserError."""

    def __init__(self, staging: Path, place: Path) -> None:
        self._file = staging / LOCK
        self._place = place
        self._lock = -1

    def __enter__(self) -> None:
        self._lock = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._lock)
        except OSError as error:
            os.close(self._lock)
            raise UserError(
                f"another copy to {self._place} is at work; wait until it has ended", code="busy"
            ) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._lock)


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed. Raises OSError where another process has it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _listed(source: Path) -> tuple[list[Item], list[str]]:
    """What a put copies. Raises UserError."""
    try:
        if source.is_dir():
            items, left_out = list_tree(source)
            items = [replace(item, path=f"{source.name}/{item.path}") for item in items]
        else:
            item = item_of(source, source.name) if source.exists() else None
            items, left_out = ([item] if item else []), []
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", code=code_of(error)) from error
    if not items:
        what = "has no files that can be copied" if source.exists() else "does not exist"
        raise UserError(f"{source} {what}", code="no_file")
    return items, left_out


def _refuse_existing(folder: Path, parts: list[str]) -> None:
    for part in parts:
        if os.path.lexists(folder / part):
            raise UserError(f"{folder / part} exists; remove it, or name another folder", code="exists")


def _is_copied(wire: CopyStream, files: list[tuple[Item, Path]], begun: dict[str, Begun]) -> bool:
    """Whether the box has each file as it is here."""
    for item, path in files:
        known = begun.get(item.path)
        if item.link:
            continue
        if known is None or known.have != item.size:
            return False
        if sha256(path) != known.sha256:
            return False
    return True
