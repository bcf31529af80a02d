"""One conversation of an agent with one client, in frames; first, what killed agents and launches left is removed.

A staging directory of a launch exists for milliseconds under the lock of ``training_runs``; an agent's bundle is marked
as used when an agent starts from it.

It is stateless: everything it reports comes from the run directories and tmux, so several agents can serve one box.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.errors import UserError, code_of
from grpo_train.run_dir.machine import account, not_readable, set_umask
from grpo_train.run_dir.questions import ANSWERS, asks_folder
from grpo_train.run_dir.safe_json import noting_left_out
from grpo_train.run_dir.version import FORMAT, VERSION
from remote.agent import code, compiled, from_memory
from remote.agent.box import BoxContext
from remote.agent.follow import Follower, Tail
from remote.agent.outbox import Outbox
from remote.agent.topics import Watcher
from remote.protocol import (
    INITIAL_CREDIT,
    OPERATIONS,
    PROTOCOL_VERSION,
    VALUE_TOPICS,
    Decoder,
    Operation,
    ProtocolError,
    RemoteError,
)
from remote.protocol.check import read_request
from remote.protocol.frames import UNKNOWN, EngineVersion
from remote.protocol.rows import HostFacts

STAGING_AGE_S = 3_600.0
ASK_AGE_S = 86_400.0
"""Answers are read by a client that returns within a day."""
BUNDLE_AGE_S = 30 * 86_400.0
EVERY_S = 86_400.0
_BUNDLE = re.compile(r"[0-9a-f]{64}\.(name|pyz(\.\d+\.tmp|\.[a-z]+-\d+)?)")
"""The last is its compiled modules (:mod:`remote.agent.compiled`)."""


def start_cleaning(root: Path, ended: threading.Event, clock: Clock) -> None:
    """Clean up on a thread, because the disk may hang, until ``ended`` is set."""

    def work() -> None:
        while True:
            remove_staging(root)
            remove_asks(root)
            remove_bundles(Path(sys.argv[0]))
            with suppress(OSError, UserError):
                code.prune(clock.time())
            compiled.store_compiled()
            if clock.wait(ended, EVERY_S):
                return

    threading.Thread(target=work, name="housekeeping", daemon=True).start()


def remove_staging(root: Path) -> None:
    """Remove this account's ``.new-*`` older than an hour from ``training_runs``, unless a run is being created."""
    import fcntl  # POSIX only

    runs = root / "training_runs"
    try:
        lock = os.open(runs / ".lock", os.O_RDWR | os.O_CLOEXEC)  # no lock: no run was ever created
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in runs.glob(".new-*"):
            if _is_old(path, STAGING_AGE_S, stat.S_ISDIR):
                shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # busy, or a mount without locks: the next agent tries again
    finally:
        os.close(lock)


def remove_asks(root: Path) -> None:
    """Remove questions and answers of processes that answered nothing for a day: they have ended long ago."""
    try:
        folders = list(asks_folder(root).iterdir())
    except OSError:
        return  # nothing was asked
    for folder in folders:
        if _is_old(folder / ANSWERS, ASK_AGE_S, stat.S_ISREG):
            shutil.rmtree(folder, ignore_errors=True)


def remove_bundles(own: Path) -> None:
    """Mark the running bundle as used, and remove the other ones beside it that no agent used for 30 days."""
    if not _BUNDLE.fullmatch(own.name):
        return
    try:
        os.utime(own)
        for path in own.parent.iterdir():
            if path != own and _BUNDLE.fullmatch(path.name) and _is_old(path, BUNDLE_AGE_S, stat.S_ISREG):
                path.unlink(missing_ok=True)
    except OSError:
        pass  # a read-only home


def _is_old(path: Path, age_s: float, is_kind: Callable[[int], bool]) -> bool:
    """Whether a path of this kind and of this account has not changed for ``age_s`` seconds."""
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    mine = facts.st_uid == os.geteuid()
    return mine and is_kind(facts.st_mode) and time.time() - facts.st_mtime > age_s


MAX_REQUESTS = 32
"""Pending requests; more are refused as ``busy``."""
MAX_LEFT_OUT = 100
"""Files that one response names as left out."""
POLL_S = 0.5
"""Between two looks whether the client still reads."""
FINISH_S = 45.0
"""Time for pending requests that change something (a kill) to end after the client is gone."""
ENGINE_WAIT_S = 0.3
"""Time for the engine's files to be read before hello: a hanging disk must not delay it."""
Handlers = Mapping[str, Callable[[BoxContext, Any], Any]]
"""By the name of their operation."""


class Agent:
    """One conversation with one client."""

    def __init__(
        self, source: int, outbox: Outbox, silence_s: float, clock: Clock, handlers: Callable[[], Handlers]
    ) -> None:
        """``handlers``: called for each request, so that they may be imported after the hello."""
        self._source, self._clock, self._handlers = source, clock, handlers
        self._outbox = outbox
        self._silence_s = silence_s
        self._pending: dict[threading.Thread, bool] = {}
        """Threads that answer a request, and whether it changes state."""
        self._lock = threading.Lock()
        self._box: BoxContext | None = None
        self.copies: BoxContext | None = None
        """The box, where the connection is one for copying files."""
        self._follower = Follower(outbox, clock)
        self._watcher: Watcher | None = None

    def serve(self) -> None:
        """Serve until the input ends or falls silent, or the client no longer reads. Raises ProtocolError."""
        decoder, heard = Decoder(), self._clock.monotonic()
        while not self._outbox.broken.is_set():
            if self._clock.select([self._source], POLL_S):
                data = os.read(self._source, 1 << 18)
                if not data:
                    return
                heard = self._clock.monotonic()
                for frame in decoder.feed(data):
                    self._handle(frame)
                if self.copies is not None:
                    return
            elif self._clock.monotonic() - heard > self._silence_s:
                print(f"agent: nothing received for {self._silence_s:.0f} s, exiting", file=sys.stderr)
                return

    def finish(self) -> None:
        """Wait for pending requests that change something: a kill must not end halfway."""
        deadline = self._clock.monotonic() + FINISH_S
        with self._lock:
            threads = [thread for thread, changes in self._pending.items() if changes]
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock.monotonic()))

    def _handle(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        try:
            if kind == "ping":
                self._outbox.put_first({"type": "pong", "n": frame.get("n"), "time": self._clock.time()})
            elif kind == "hello":
                self._greet(frame)
            elif self._box is None or self._watcher is None:
                raise ProtocolError(f"'{kind}' before hello")
            elif kind == "request":
                self._start(frame, self._box)
            elif kind == "subscribe":
                self._subscribe(frame, self._box, self._watcher)
            elif kind == "credit":
                self._follower.credit(int(frame["id"]), int(frame["bytes"]))
            elif kind == "unsubscribe":
                self._follower.remove(int(frame["id"]))
                self._watcher.remove(int(frame["id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"malformed '{kind}' frame: {error!r}") from error

    def _greet(self, frame: dict[str, Any]) -> None:
        if self._box is not None:
            raise ProtocolError("a second hello")  # it could lift --readonly
        try:
            box = self._box = BoxContext.from_settings(dict(frame.get("settings") or {}), self._clock)
            self._adopt(box)
        except (UserError, RuntimeError) as error:  # RuntimeError: ~USER of an unknown user
            raise ProtocolError(f"malformed settings: {error}") from error
        if frame.get("copies"):
            if box.grant is not None:
                raise ProtocolError("no grant of an assistant copies files")
            self.copies = box
        else:
            if not box.settings.readonly:
                start_cleaning(box.root, self._outbox.broken, self._clock)
            self._watcher = Watcher(box, self._outbox)
        self._outbox.put(
            {
                "type": "hello",
                "protocol": PROTOCOL_VERSION,
                "agent": own_hash(),
                "version": VERSION,
                "format": FORMAT,
                "engine": asdict(_engine_version(box)),
                "host": host_facts(box),
            }
        )

    def _adopt(self, box: BoxContext) -> None:
        """Give this process the umask of a box, and its variables, for what the agent starts: engine, tmux, git."""
        set_umask(box.settings.umask)
        os.environ.update(box.variables)

    def _subscribe(self, frame: dict[str, Any], box: BoxContext, watcher: Watcher) -> None:
        subscription, topic = int(frame["id"]), str(frame["topic"])
        params = dict(frame.get("params") or {})
        try:
            if topic == "log":
                self._follower.add(Tail(subscription, box, params, int(frame.get("credit", INITIAL_CREDIT))))
            elif topic in VALUE_TOPICS:
                watcher.add(topic, subscription)
            else:
                raise RemoteError("bad_request", f"unknown topic '{topic}'")
        except RemoteError as error:
            self._outbox.put({"type": "closed", "id": subscription, "error": error.to_json()})

    def _start(self, frame: dict[str, Any], box: BoxContext) -> None:
        """Answer a request on its own thread: a slow disk or tmux must not delay anything else."""
        request_id, name, params = int(frame["id"]), str(frame["op"]), frame.get("params") or {}
        operation = OPERATIONS.get(name)
        if operation is None:
            self._refuse(request_id, RemoteError("bad_request", f"unknown operation '{name}'"))
            return
        thread = threading.Thread(
            target=self._answer, args=(request_id, operation, params, box), name=f"request-{name}", daemon=True
        )
        with self._lock:
            if len(self._pending) >= MAX_REQUESTS:
                message = f"{MAX_REQUESTS} requests are pending on this box"
                self._refuse(request_id, RemoteError("busy", message, "retry"))
                return
            self._pending[thread] = operation.changes_state
        thread.start()

    def _answer(self, request_id: int, operation: Operation, params: Any, box: BoxContext) -> None:
        try:
            request = read_request(operation.request, params)
            if operation.changes(vars(request)):
                refuse_read_only(box, operation)
            if operation.changes_state:
                refuse_secrets(request)
            handler = self._handlers()[operation.name]
            with noting_left_out() as files:
                result = handler(box, request) if box.grant is None else _carry_out(box, operation, request, handler)
            left_out = {"left_out": dict(islice(files.items(), MAX_LEFT_OUT))} if files else {}
            self._outbox.put({"type": "response", "id": request_id, "ok": True, "result": result, **left_out})
        except Exception as error:
            self._refuse(request_id, as_remote_error(error, box))
        finally:
            with self._lock:
                self._pending.pop(threading.current_thread(), None)
            if operation.changes_state and self._watcher:
                self._watcher.refresh("runs", "sessions")

    def _refuse(self, request_id: int, error: RemoteError) -> None:
        self._outbox.put({"type": "response", "id": request_id, "ok": False, "error": error.to_json()})


def as_remote_error(error: Exception, box: BoxContext) -> RemoteError:
    """Any failure as a refusal; an unexpected one leaves its traceback on stderr."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, UserError):
        return RemoteError(error.code, str(error))
    if isinstance(error, PermissionError) and error.filename:
        return RemoteError("not_ours", not_readable(Path(os.fsdecode(error.filename))))
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return RemoteError(code_of(error), f"{file}{error.strerror or error}", f"check the disk under {box.root}")
    traceback.print_exc()
    return RemoteError(code_of(error), f"the agent failed: {type(error).__name__}: {error}", "please report this")


def _carry_out(box: BoxContext, operation: Operation, request: Any, handler: Callable[[BoxContext, Any], Any]) -> Any:
    from remote.agent.grants import carry_out  # with the first request of an assistant

    return carry_out(box, operation, request, handler)


def refuse_read_only(box: BoxContext, operation: Operation) -> None:
    """Raise RemoteError ``read_only`` where the client announced that it only reads."""
    if box.settings.readonly:
        message = f"'{operation.name}' is refused: this agent was started with --readonly"
        raise RemoteError("read_only", message, "start without --readonly")


def refuse_secrets(request: Any) -> None:
    """Refuse a request with a secret in a text that is not meant for one, before anything is stored or shown in a
    process list.

    Raises RemoteError ``secret``.
    """
    for item in fields(request):
        value = None if item.metadata.get("secret") else getattr(request, item.name)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (secret := find_secret(text)):
                raise RemoteError("secret", secret.explain(f"{item.name}, line {secret.line}"))


def _engine_version(box: BoxContext) -> EngineVersion:
    """The engine's version from its files; UNKNOWN when they are not read in time."""
    from remote.agent.engine import installed_version

    found: list[EngineVersion] = []
    thread = threading.Thread(target=lambda: found.append(installed_version(box)), name="engine-version", daemon=True)
    thread.start()
    thread.join(ENGINE_WAIT_S)
    return found[0] if found else UNKNOWN


def host_facts(box: BoxContext) -> HostFacts:
    """Facts about this box for the client."""
    return {
        "name": socket.gethostname(),
        "user": account(),
        "python": sys.version.split()[0],
        "system": os.uname().sysname,
        "cpu_count": os.cpu_count(),
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "tmux": bool(shutil.which("tmux")),
        "root": str(box.root),
        "repo": str(box.repo or ""),
        "pid": os.getpid(),
        "machine": _machine(),
        "time": box.clock.time(),
    }


def _machine() -> str:
    """Which machine this is: a hash of machine-id(5), which is not to be shown as it is."""
    try:
        return hashlib.sha256(b"grpo-tui " + Path("/etc/machine-id").read_bytes().strip()).hexdigest()[:16]
    except OSError:
        return ""


def own_hash() -> str:
    """SHA-256 of the running bundle; "" outside a bundle."""
    archive = Path(sys.argv[0])
    return from_memory.sha256 or (hashlib.sha256(archive.read_bytes()).hexdigest() if archive.is_file() else "")
