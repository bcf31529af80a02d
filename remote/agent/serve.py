"""The agent: reads frames on standard input, writes frames on standard output, ends when either is over.

    python -I HASH.pyz serve [--silence SECONDS]

It keeps nothing: all it knows it reads from the run directories and tmux, so any number of agents may serve one box.
It ends at the end of its input and after a silence, since a cut network gives no end.
"""

from __future__ import annotations

import hashlib
import os
import platform
import select
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.errors import UserError
from remote.agent.context import Place
from remote.agent.environment import clean
from remote.agent.follow import Follower, Tail, resolve_log
from remote.agent.outbox import Outbox
from remote.agent.watch import Watcher
from remote.protocol import (
    AGENT_SILENCE_S,
    INITIAL_CREDIT,
    PROTOCOL_VERSION,
    Decoder,
    ProtocolError,
    RemoteError,
)

MAX_REQUESTS = 32
"""Requests under way at once; more are refused as ``busy``."""
LAST_WORK_S = 45.0
"""What is under way when the client goes (a kill ladder) may take so long to end."""
CHANGES = frozenset({"launch", "stop", "kill", "evaluate", "resume"})


def main(arguments: list[str]) -> int:
    """Serve one client; returns the exit code."""
    if arguments[:1] != ["serve"]:
        print("usage: python -I AGENT.pyz serve [--silence SECONDS]", file=sys.stderr)
        return 2
    silence = float(arguments[2]) if arguments[1:2] == ["--silence"] else AGENT_SILENCE_S
    source, sink = _take_streams()
    kept = clean(os.environ)  # a UTF-8 locale above all: without one tmux's answers cannot be read
    os.environ.clear()
    os.environ.update(kept)
    agent = Agent(source, Outbox(sink), silence)
    try:
        agent.serve()
    except ProtocolError as error:
        print(f"agent: {error}", file=sys.stderr)
    agent.finish()
    sys.stderr.flush()
    os._exit(0)  # threads may hang in a dead pipe or a dead mount: they must not keep the process


def _take_streams() -> tuple[int, int]:
    """Move the frames' streams out of the way: prints go to stderr, children read /dev/null and never see either."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return source, sink


class Agent:
    """One conversation with one client."""

    def __init__(self, source: int, outbox: Outbox, silence: float) -> None:
        self._source = source
        self._outbox = outbox
        self._silence = silence
        self._under_way: dict[threading.Thread, str] = {}
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._follower = Follower(outbox)
        self._watcher: Watcher | None = None

    def serve(self) -> None:
        """Until end of input, silence, or a client that is gone. Raises ProtocolError for what is no frame."""
        decoder, heard = Decoder(), time.monotonic()
        while not self._outbox.broken.is_set():
            ready, _, _ = select.select([self._source], [], [], 0.5)
            if ready:
                data = os.read(self._source, 1 << 18)
                if not data:
                    return
                heard = time.monotonic()
                for frame in decoder.feed(data):
                    self._handle(frame)
            elif time.monotonic() - heard > self._silence:
                print(f"agent: no word for {self._silence:.0f} s, ending", file=sys.stderr)
                return

    def finish(self) -> None:
        """Let requests that change something come to their end (a half-done kill would be worse than a late one)."""
        deadline = time.monotonic() + LAST_WORK_S
        with self._lock:
            threads = [thread for thread, op in self._under_way.items() if op in CHANGES]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _handle(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        try:
            if kind == "ping":
                self._outbox.put_first({"type": "pong", "n": frame.get("n")})
            elif kind == "hello":
                self._greet(frame)
            elif self._place is None or self._watcher is None:
                raise ProtocolError(f"'{kind}' before hello")
            elif kind == "request":
                self._start(frame, self._place)
            elif kind == "subscribe":
                self._subscribe(frame, self._place, self._watcher)
            elif kind == "credit":
                self._follower.credit(int(frame["id"]), int(frame["bytes"]))
            elif kind == "unsubscribe":
                self._follower.remove(int(frame["id"]))
                self._watcher.remove(int(frame["id"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a malformed '{kind}' frame: {error!r}") from error

    def _greet(self, frame: dict[str, Any]) -> None:
        self._place = Place.of(dict(frame.get("settings") or {}))
        self._watcher = Watcher(self._place, self._outbox)
        host = host_facts(self._place)
        self._outbox.put({"type": "hello", "protocol": PROTOCOL_VERSION, "agent": own_hash(), "host": host})

    def _subscribe(self, frame: dict[str, Any], place: Place, watcher: Watcher) -> None:
        subscription, topic = int(frame["id"]), str(frame["topic"])
        params = dict(frame.get("params") or {})
        try:
            if topic == "log":
                file = resolve_log(place.root, str(params.get("path", "")))
                credit = int(frame.get("credit", INITIAL_CREDIT))
                self._follower.add(Tail(subscription, file, params, credit))
            elif topic in ("runs", "sessions", "gpu"):
                watcher.add(topic, subscription)
            else:
                raise RemoteError("bad_request", f"there is no topic '{topic}'")
        except RemoteError as error:
            self._outbox.put({"type": "closed", "id": subscription, "error": error.to_json()})

    def _start(self, frame: dict[str, Any], place: Place) -> None:
        """Answer a request on a thread of its own: a slow disk or tmux delays nothing else."""
        op = str(frame["op"])
        with self._lock:
            if len(self._under_way) >= MAX_REQUESTS:
                error = RemoteError("busy", f"{MAX_REQUESTS} requests are under way on this box", "try again")
                self._outbox.put(_refusal(int(frame["id"]), error))
                return
            thread = threading.Thread(target=self._answer, args=(frame, place), name=f"request-{op}", daemon=True)
            self._under_way[thread] = op
        thread.start()

    def _answer(self, frame: dict[str, Any], place: Place) -> None:
        number, op = int(frame["id"]), str(frame["op"])
        try:
            from remote.agent.operations import OPERATIONS

            if op not in OPERATIONS:
                raise RemoteError("bad_request", f"this agent knows no operation '{op}'")
            result = OPERATIONS[op](place, dict(frame.get("params") or {}))
            lines = {"type": "response", "id": number, "ok": True, "result": result}
            self._outbox.put(lines)
        except Exception as error:
            self._outbox.put(_refusal(number, as_remote_error(error, place)))
        finally:
            with self._lock:
                self._under_way.pop(threading.current_thread(), None)
            if op in CHANGES and self._watcher:
                self._watcher.nudge("runs", "sessions")


def _refusal(number: int, error: RemoteError) -> dict[str, Any]:
    return {"type": "response", "id": number, "ok": False, "error": error.to_json()}


def as_remote_error(error: Exception, place: Place) -> RemoteError:
    """Any failure in words for the user; what nobody expected leaves its traceback on stderr."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, RunDirError):
        code = "root" if str(error).startswith("cannot write to the root") else "run"
        return RemoteError(code, str(error))
    if isinstance(error, UserError):
        return RemoteError(error.code, str(error))
    if isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename else ""
        return RemoteError("io", f"{what}{error.strerror or error}", f"look at the disk below {place.root}")
    traceback.print_exc()
    return RemoteError("internal", f"the agent failed: {type(error).__name__}: {error}", "please report this")


def host_facts(place: Place) -> dict[str, Any]:
    """What the client shows of this box."""
    import shutil

    return {
        "name": socket.gethostname(),
        "user": os.environ.get("USER", ""),
        "python": platform.python_version(),
        "system": platform.system(),
        "cpu_count": os.cpu_count(),
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "tmux": bool(shutil.which("tmux")),
        "root": str(place.root),
        "repo": str(place.repo or ""),
        "pid": os.getpid(),
        "time": time.time(),
    }


def own_hash() -> str:
    """SHA-256 of the bundle this runs from; "" outside a bundle."""
    archive = Path(sys.argv[0])
    return hashlib.sha256(archive.read_bytes()).hexdigest() if archive.is_file() else ""
