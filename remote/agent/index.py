"""Requests about logs are passed on to a child process, which makes the indexes: see :mod:`remote.index`.

The child starts with the first request and shares neither the agent's interpreter nor its memory. Its end fails the
requests that it had, and the next one starts another. It ends with the agent, at the end of its input.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from grpo_train.run_dir import open_run
from remote.agent import from_memory
from remote.agent.box import BoxContext
from remote.protocol import OPERATIONS, RemoteError

ANSWER_S = 25.0
"""A request that is not answered by then ends the child, which ends itself before unless a disk holds it."""


_FROM_MEMORY = """\
import io, sys, zipfile
data = io.BufferedReader(io.FileIO(0, closefd=False), 1).read(int(sys.argv[1]))
module = {"__name__": "start"}
exec(zipfile.ZipFile(io.BytesIO(data)).read("remote/agent/from_memory.py"), module)
sys.meta_path.insert(0, module["BundleImporter"](data))
from remote.index.process import main
sys.exit(main(["index"]))
"""


class IndexProcessEnded(Exception):
    """The child ended before it answered, with this exit status: 0 when it was idle for too long."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the process that reads logs ended (status {status})")
        self.status = status


class Child:
    """One process of indexes."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE  # standard error, too: the agent's own must end with the agent
        self._process = subprocess.Popen(command(), stdin=pipe, stdout=pipe, stderr=pipe)
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self.ended = False
        threading.Thread(target=self._read, name="index", daemon=True).start()
        threading.Thread(target=self._pass_errors_on, name="index-errors", daemon=True).start()

    def ask(self, request: dict[str, Any]) -> Future[dict[str, Any]] | None:
        """Send a request; None if the process has ended."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self.ended:
                return None
            number = next(self._ids)
            self._waiting[number] = future
            try:
                if number == 1:
                    self._write(from_memory.bundle)
                self._write(json.dumps({"id": number, **request}).encode() + b"\n")
            except OSError:  # it ends just now
                del self._waiting[number]
                return None
        return future

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._process.stdin.fileno(), view) :]

    def kill(self) -> None:
        self._process.kill()

    def _pass_errors_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            os.write(2, line)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            future.set_result(answer)
        status = self._process.wait()
        with self._lock:
            self.ended, waiting = True, list(self._waiting.values())
        for future in waiting:
            future.set_exception(IndexProcessEnded(status))


class Index:
    """The child of this agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None

    def request(self, box: BoxContext, op: str, run: str, params: dict[str, Any]) -> Any:
        """The reply of the child. Raises RemoteError, and RunDirError for an unknown run."""
        request = {
            "op": op,
            "root": str(box.root),
            "run": str(open_run(box.root, run).path),
            "follow_links": box.settings.follow_links,
            "params": params,
        }
        for _ in range(3):
            child, future = self._send(request)
            if future is None:
                continue
            try:
                answer = future.result(ANSWER_S)
            except FutureTimeout:
                child.kill()
                raise RemoteError("timeout", f"'{op}' took more than {ANSWER_S:.0f} s on the box", "retry") from None
            except IndexProcessEnded as error:
                if error.status == -signal.SIGALRM:
                    raise RemoteError("timeout", f"'{op}' took too long on the box", "narrow it down") from None
                if error.status:
                    raise RemoteError("index_failed", str(error), "retry") from None
                continue
            if refusal := answer.get("error"):
                raise RemoteError(refusal["code"], refusal["message"], refusal["hint"])
            return answer["result"]
        raise RemoteError("index_failed", "the process that reads logs ends at once", "retry")

    def _send(self, request: dict[str, Any]) -> tuple[Child, Future[dict[str, Any]] | None]:
        """Ask the child, a new one where the last has ended; no future if it ends just now."""
        with self._lock:
            if self._child is None or self._child.ended:
                self._child = Child()
            child = self._child
            future = child.ask(request)
            if future is None:
                self._child = None
        return child, future


def command() -> list[str]:
    """The command of the child: this program with another argument. An agent in memory sends its bundle first."""
    if from_memory.bundle:
        return [sys.executable, "-I", "-S", "-c", _FROM_MEMORY, str(len(from_memory.bundle))]
    return [sys.executable, "-I", "-S", sys.argv[0], "index"]


_INDEX = Index()


def request(box: BoxContext, op: str, run: str, params: dict[str, Any]) -> Any:
    """The reply of this agent's child. Raises RemoteError, and RunDirError for an unknown run."""
    return _INDEX.request(box, op, run, params)


def handler(op: str) -> Callable[[BoxContext, Any], Any]:
    """The handler that passes an operation's request on to the child, and its reply back. Typed by the table."""

    def ask(box: BoxContext, request: Any) -> Any:
        return _INDEX.request(box, op, request.run, vars(request))

    ask.__annotations__ |= {"request": OPERATIONS[op].request, "return": OPERATIONS[op].reply}
    return ask
