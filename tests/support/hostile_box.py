"""A hostile box: a real process on a real transport that sends what a test scripts.

    def shouting(box: HostileBox) -> None:            # a function of an importable module, run in the child process
        box.greet()
        box.say({"type": "update", "id": box.topic("runs"), "value": {"runs": ["x"]}}, b"garbage")
        box.flood(lambda count: {"type": "pong", "n": count})

    with connected(BOX, transport_factory=hostile(shouting)) as (client, recorder):
        ...
    Terminal([str(app_command(tmp_path, shouting)), "--root", str(tmp_path)], environment)

``hostile_here`` runs the script in a thread of the test instead. ``argv(script, *arguments)`` is the bare command, for
example for ``ForceCommand`` of an sshd. Arguments are JSON values that are passed to the function. The box answers
pings unless ``box.answers_pings`` is False, and exits with its input.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.boxes import Box
from remote.protocol import MAX_DATA, Decoder, encode_data
from remote.transports.local import LocalTransport

REPO = Path(__file__).resolve().parents[2]
BOX = Box("hostile", kind="local")


class HostileBox:
    """The box's end of one connection."""

    def __init__(
        self, source: int = 0, sink: int = 1, errors: int = 2, on_end: Callable[[], None] = lambda: os._exit(0)
    ) -> None:
        """Reads and writes descriptors; ``on_end`` is called at the end of the input."""
        self._source, self._sinks, self._on_end = source, {1: sink, 2: errors}, on_end
        self._over = threading.Event()
        self.answers_pings = True
        self.pong: Callable[[], dict[str, Any]] = dict
        """Further fields of a pong."""
        self.heard: list[dict[str, Any]] = []
        self._credit: dict[int, int] = {}
        """Bytes of each log that the client still takes."""
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def greet(self, **fields: Any) -> None:
        """Wait for the client's hello and answer it; ``fields`` replace those of the honest answer."""
        self.hear(lambda frame: frame["type"] == "hello")
        host = {"name": "hostile", "time": time.time(), "root": "/root", "tmux": True}
        self.say({"type": "hello", "protocol": 1, "agent": "x", "host": host, "engine": {}, **fields})

    def hear(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first frame, including earlier ones, that meets a condition."""
        with self._changed:
            while True:
                for frame in self.heard:
                    if condition(frame):
                        return frame
                self._wait()

    def _wait(self) -> None:
        """Wait for a frame of the client. Raises OSError after its last one."""
        if self._over.is_set():
            raise OSError("the client has gone")
        self._changed.wait()

    def topic(self, name: str) -> int:
        """Wait until the client subscribes to a topic; returns the id."""
        return int(self.hear(lambda frame: frame.get("topic") == name)["id"])

    def log(self, path: str = "") -> int:
        """Wait until the client follows a log (whose path ends with ``path``); returns the id."""
        return int(
            self.hear(lambda frame: frame.get("topic") == "log" and frame["params"]["path"].endswith(path))["id"]
        )

    def request(self, op: str) -> int:
        """Wait for a request; returns its id."""
        return int(self.hear(lambda frame: frame.get("op") == op)["id"])

    def say(self, *frames: dict[str, Any] | bytes) -> None:
        """Send frames, one a line whatever their length, and bytes as they are."""
        self.write(b"".join(frame if isinstance(frame, bytes) else line(frame) for frame in frames))

    def write(self, data: bytes, descriptor: int = 1) -> None:
        with self._writing:
            view = memoryview(data)
            while view:
                view = view[os.write(self._sinks[descriptor], view) :]

    def flood(self, make: Callable[[int], dict[str, Any] | bytes], batch: int = 64) -> None:
        """Send ``make(0)``, ``make(1)``, … as fast as the client reads, for ever, ``batch`` at a time."""
        count = 0
        while True:
            self.say(*map(make, range(count, count + batch)))
            count += batch

    def fill(self, log: int, make: Callable[[int], bytes]) -> None:
        """Send ``make(0)``, ``make(1)``, … as the bytes of a log, for ever, as fast as the client grants credit."""
        offset = count = 0
        waiting = b""
        while True:
            while len(waiting) < MAX_DATA:
                waiting += make(count)
                count += 1
            piece, waiting = waiting[:MAX_DATA], waiting[MAX_DATA:]
            with self._changed:
                while self._credit.get(log, 0) < len(piece):
                    self._wait()
                self._credit[log] -= len(piece)
            self.say(encode_data(log, offset, piece))
            offset += len(piece)

    def stay(self) -> None:
        """Say nothing more; pings are still answered."""
        self._over.wait()

    def _answer(self, ping: int) -> None:
        with suppress(OSError):  # the client has gone
            self.say({"type": "pong", "n": ping, **self.pong()})

    def _listen(self) -> None:
        decoder = Decoder()
        while data := os.read(self._source, 1 << 16):
            for frame in decoder.feed(data):
                if frame["type"] == "ping":
                    if self.answers_pings:
                        threading.Thread(target=self._answer, args=(frame["n"],)).start()
                    continue
                with self._changed:
                    if frame["type"] in ("subscribe", "credit"):
                        granted = frame["credit" if frame["type"] == "subscribe" else "bytes"]
                        self._credit[frame["id"]] = self._credit.get(frame["id"], 0) + granted
                    if frame["type"] != "credit":
                        self.heard.append(frame)
                    self._changed.notify_all()
        with self._changed:
            self._over.set()
            self._changed.notify_all()
        self._on_end()


Script = Callable[..., None]


def line(frame: dict[str, Any]) -> bytes:
    return json.dumps(frame).encode() + b"\n"


def send(box: HostileBox, pieces: list[Any], greets: bool = True) -> None:
    """A script: send ``pieces`` (frames, or bytes as ``{"base64": ...}``), then only answer pings.

    The topics ``runs``, ``sessions`` and ``gpu`` have the ids 1, 2 and 3 on every connection.
    """
    if greets:
        box.greet()
        box.topic("gpu")
    for piece in pieces:
        box.say(base64.b64decode(piece["base64"]) if set(piece) == {"base64"} else piece)
    box.stay()


def argv(script: Script, *arguments: Any) -> list[str]:
    """The command of a hostile box."""
    name = f"{script.__module__}:{script.__qualname__}"
    code = f"import sys; sys.path.insert(0, {str(REPO)!r}); from tests.support.hostile_box import main; main()"
    return [sys.executable, "-c", code, name, json.dumps(arguments)]


class HostileTransport(LocalTransport):
    """A child process in place of the agent."""

    def __init__(self, command: list[str]) -> None:
        super().__init__()
        self._argv = command

    def command(self) -> list[str]:
        return self._argv


def hostile(script: Script, *arguments: Any) -> Callable[[Box, Any], HostileTransport]:
    """A transport factory whose agent is a hostile box."""
    command = argv(script, *arguments)
    return lambda box, ask: HostileTransport(command)


class _Thread:
    """A script in a thread, with what a transport uses of a child process."""

    def __init__(self, script: Script, arguments: tuple[Any, ...]) -> None:
        (near_in, far_in), (near_out, far_out), (near_err, far_err) = (socket.socketpair() for _ in range(3))
        self.stdin = near_in.makefile("wb", buffering=0)
        self.stdout, self.stderr = near_out.makefile("rb", buffering=0), near_err.makefile("rb", buffering=0)
        self._far = (far_in, far_out, far_err)
        self._thread = threading.Thread(target=self._run, args=(script, arguments), daemon=True)
        self._thread.start()

    def _run(self, script: Script, arguments: tuple[Any, ...]) -> None:
        with suppress(OSError):  # the client has gone
            script(HostileBox(*(end.fileno() for end in self._far), self.kill), *arguments)
        self.kill()

    def kill(self) -> None:
        """End both directions."""
        for end in self._far:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0


class _HostileHere(LocalTransport):
    def __init__(self, script: Script, arguments: tuple[Any, ...], clock: Clock) -> None:
        super().__init__(clock=clock)
        self._script, self._arguments = script, arguments

    def open(self, greeting: bytes = b"") -> None:
        self._owner = threading.get_ident()
        self._process = cast("subprocess.Popen[bytes]", _Thread(self._script, self._arguments))
        self.send(greeting)


def hostile_here(script: Script, *arguments: Any, clock: Clock = CLOCK) -> Callable[[Box, Any], LocalTransport]:
    """A transport factory whose agent is a hostile box in a thread of this process."""
    return lambda box, ask: _HostileHere(script, arguments, clock)


def app_command(folder: Path, script: Script, *arguments: Any, first: str = "") -> Path:
    """An executable that is ``grpo-tui`` with a hostile box in place of this machine's agent.

    It writes its process id to ``folder/pid``. ``first`` is code that it runs before the app starts.
    """
    path = folder / "hostile-grpo-tui"
    command, pid_file = argv(script, *arguments), str(folder / "pid")
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPO)!r})\n{first}\n"
        f"from tests.support.hostile_box import run_app\nrun_app({command!r}, {pid_file!r})\n"
    )
    path.chmod(0o755)
    return path


def run_app(command: list[str], pid_file: str) -> None:
    from grpo_tui.cli import program

    Path(pid_file).write_text(str(os.getpid()))
    LocalTransport.command = lambda self: command  # type: ignore[method-assign]
    program()


def main() -> None:
    """Run the script named on the command line; a client that hangs up ends it."""
    module, _, name = sys.argv[1].partition(":")
    try:
        getattr(importlib.import_module(module), name)(HostileBox(), *json.loads(sys.argv[2]))
    except OSError:
        os._exit(0)
