"""Planted secrets, and a watch of what other accounts can see of them: command lines, and environments.

The values are random, so that a hit anywhere is a leak.
"""

from __future__ import annotations

import json
import os
import secrets
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tests.support.patience import PATIENCE, eventually
from tests.support.sshd import start_ssh_agent

REPOSITORY = Path(__file__).resolve().parents[2]
_LETTERS = string.ascii_letters + string.digits


def canary(prefix: str = "", length: int = 34) -> str:
    """A random value that looks like a token."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(length))


def write_private(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_text(text)
    return path


@contextmanager
def ssh_agent(folder: Path) -> Iterator[str]:
    """An SSH agent without a key; yields its socket."""
    socket = folder / "agent"
    agent = start_ssh_agent(socket)
    try:
        yield str(socket)
    finally:
        agent.terminate()
        agent.wait(60 * PATIENCE)


class EncryptedKey:
    """A new key. OpenSSH gets its passphrase through ``SSH_ASKPASS``, so that no command line shows it."""

    def __init__(self, folder: Path, passphrase: str) -> None:
        self.path = folder / "encrypted_key"
        answer = write_private(folder / "passphrase", passphrase)
        ask = folder / "askpass"
        ask.write_text(f"#!/bin/sh\ncat {answer}\n")
        ask.chmod(0o700)
        self._variables = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        self._run(["ssh-keygen", "-q", "-t", "ed25519", "-f", str(self.path)])

    def add_to(self, agent: str) -> None:
        """Add it to the agent with this socket."""
        self._run(["ssh-add", "-q", str(self.path)], SSH_AUTH_SOCK=agent)

    def _run(self, command: list[str], **variables: str) -> None:
        environment = {**self._variables, **variables}
        subprocess.run(command, env=environment, check=True, timeout=20, stdin=subprocess.DEVNULL)


EVERY_S = 0.03
NEW_S = 1.0
"""A process is looked at each time while it is new (it may become another program), then once in this time."""


class ProcessWatch:
    """Samples every process of this machine while it runs."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {name: value.encode() for name, value in values.items()}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.shown: set[tuple[str, str]] = set()
        """(canary, command line) of each command line that holds one."""
        self.environments: set[tuple[str, str]] = set()
        """(canary, command line) of each process whose environment holds one."""
        self.commands: set[str] = set()

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        seen: dict[str, float] = {}
        looked_at_all = 0.0

        def look() -> bool:
            nonlocal seen, looked_at_all
            now = time.monotonic()
            seen = {pid: seen.get(pid, now) for pid in os.listdir("/proc") if pid.isdecimal()}
            looks_at_all = now - looked_at_all >= NEW_S
            looked_at_all = now if looks_at_all else looked_at_all
            for pid, since in seen.items():
                if looks_at_all or now - since < NEW_S:
                    self._look(Path("/proc", pid))
            return self._end.is_set()

        eventually(look, 600, rest_s=EVERY_S)

    def _look(self, folder: Path) -> None:
        try:
            argv = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes()
        except OSError:
            return
        command = argv.replace(b"\0", b" ").decode(errors="replace").strip()
        if not command:
            return  # it ended between the two
        self.commands.add(command)
        for name, value in self._values.items():
            if value in argv:
                self.shown.add((name, command))
            if value in environment:
                self.environments.add((name, command))


# ------------------------------------------------------------------------------------------------------ the app


def app_command(folder: Path, environment: Mapping[str, str], protocol: Path) -> Path:
    """An executable that becomes the app with an environment that no command line shows; see :func:`run`."""
    variables = write_private(folder / "environment.json", json.dumps(dict(environment)))
    command = folder / "canary-app"
    program = f"from tests.support.canaries import run; run({str(protocol)!r})"
    command.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"variables = {{**os.environ, **json.load(open({str(variables)!r})), 'PYTHONPATH': {str(REPOSITORY)!r}}}\n"
        f"os.execve({sys.executable!r}, [{sys.executable!r}, '-c', {program!r}, *sys.argv[1:]], variables)\n"
    )
    command.chmod(0o755)
    return command


def run(protocol: str) -> None:
    """Run the app. Every byte inside the encryption is appended to ``protocol``; a typed ``CRASH`` meets a bug."""
    from textual.widgets import Input

    from grpo_tui.cli import main
    from grpo_tui.dialogs.form import RequestScreen
    from remote.transports.bootstrap import BoxShell
    from remote.transports.openssh import OpenSshTransport
    from remote.transports.paramiko import SshTransport

    def record(*data: object) -> None:
        with open(protocol, "ab") as file:
            file.write(b"\n".join(item if isinstance(item, bytes) else repr(item).encode() for item in data))

    def recorded(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def call(self: object, argument: object) -> object:
            result = method(self, argument)
            record(argument if name == "send" else result or b"")
            return result

        setattr(kind, name, call)

    for kind in (SshTransport, OpenSshTransport):
        recorded(kind, "send")
        recorded(kind, "receive")
    run, until = BoxShell.run, BoxShell.until

    def recorded_run(self: BoxShell, script: str, following: bytes, steps: int, what: str) -> None:
        record(script, following)
        run(self, script, following, steps, what)

    def recorded_until(self: BoxShell, what: str, *markers: str) -> tuple[str, str]:
        output = until(self, what, *markers)
        record(output)
        return output

    BoxShell.run, BoxShell.until = recorded_run, recorded_until  # type: ignore[method-assign]
    changed = RequestScreen.on_input_changed

    def with_a_bug(self: RequestScreen, event: Input.Changed) -> None:
        typed = event.value
        if typed.endswith("CRASH"):
            raise RuntimeError("a planted bug")
        changed(self, event)

    RequestScreen.on_input_changed = with_a_bug  # type: ignore[method-assign]
    sys.exit(main())
