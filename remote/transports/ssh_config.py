"""The user's SSH configuration for a host, from ``ssh -G``, which evaluates Include, Match and ProxyJump."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, Unreachable
from remote.transports.identities import lookup_name

RESOLVE_S = 30.0
"""Limit of ``ssh -G``, which runs the commands of ``Match exec``."""
POLL_S = 0.2
_USUAL_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True)
class SshTarget:
    """Where to connect, and as which user."""

    host: str
    port: int
    user: str
    identity_files: list[Path] = field(default_factory=list)
    jumps: list[str] = field(default_factory=list)
    """``[user@]host[:port]`` of each jump host, nearest first."""


@dataclass(frozen=True)
class Configuration:
    """The user's configuration for a host, from ``ssh -G``."""

    values: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, output: str) -> Configuration:
        """The configuration that ``ssh -G`` printed."""
        values: dict[str, list[str]] = {}
        for line in output.splitlines():
            name, _, value = line.partition(" ")
            values.setdefault(name, []).append(value)
        return cls(values)

    def one(self, name: str) -> str:
        """A value; "" if it is missing or ``none``."""
        value = self.values.get(name, [""])[0]
        return "" if value == "none" else value

    def files(self, name: str) -> list[Path]:
        """Files; ``ssh -G`` separates them by spaces and does not quote them."""
        value = self.one(name)
        names = [value] if Path(value).expanduser().is_file() else value.split()
        return [Path(file).expanduser() for file in names]

    @property
    def is_strict(self) -> bool:
        """``StrictHostKeyChecking yes``."""
        return self.one("stricthostkeychecking") in ("true", "yes")

    @property
    def checks_host_keys(self) -> bool:
        """Whether a master of the user's has compared the host key: not with ``StrictHostKeyChecking no``."""
        return self.one("stricthostkeychecking") not in ("false", "no", "off")

    @property
    def lookup(self) -> str:
        """The host's name in known_hosts files."""
        return lookup_name(self.one("hostname"), int(self.one("port") or 22), self.one("hostkeyalias"))


def resolve(
    host: str,
    *,
    user: str = "",
    port: int = 0,
    key: str = "",
    config: str | None = None,
    closing: Callable[[], bool] = lambda: False,
    clock: Clock = CLOCK,
) -> SshTarget:
    """The target of a host name or alias; arguments take precedence over the user's SSH configuration.

    Raises Refused when the configuration is invalid, needs something unsupported or cannot be read within RESOLVE_S:
    the bare name may be another machine. Raises Unreachable once ``closing`` returns true.
    """
    if host.startswith("-") or not host:
        raise Refused(f"{host!r} is not a host name")
    ssh = shutil.which("ssh")
    if ssh is None:
        return _plain(host, user, port, key)
    command = [ssh, "-G", *(["-F", config] if config else []), *(["-l", user] if user else [])]
    command += [*(["-p", str(port)] if port else []), *(["-i", key] if key else []), "--", host]
    found = Configuration.parse(read_configuration(command, host, closing, clock))
    if found.one("proxycommand"):
        raise Refused(f"'{host}' uses ProxyCommand, which is not supported; use ProxyJump instead")
    files = [key] if key else found.values.get("identityfile", [])
    jumps = [jump for jump in found.one("proxyjump").split(",") if jump]
    paths = [Path(name).expanduser() for name in files]
    return SshTarget(
        found.one("hostname") or host, int(found.one("port") or 22), found.one("user") or user, paths, jumps
    )


def read_configuration(command: list[str], host: str, closing: Callable[[], bool], clock: Clock = CLOCK) -> str:
    """The output of ``ssh -G``."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise Refused(f"cannot run {command[0]}: {error.strerror or error}") from error
    said: list[tuple[str, str]] = []
    ended = threading.Event()

    def listen() -> None:
        said.append(process.communicate())
        ended.set()

    threading.Thread(target=listen, name="ssh-G", daemon=True).start()
    waited = 0.0  # a sum of waits: this program may have been suspended meanwhile
    while not clock.wait(ended, POLL_S):
        if closing():
            _kill(process)
            raise Unreachable("the client is closed")
        waited += POLL_S
        if waited >= RESOLVE_S:
            _kill(process)
            raise Refused(
                f"ssh did not read its configuration for '{host}' within {RESOLVE_S:.0f} s; check the commands of "
                "'Match exec' in ~/.ssh/config"
            )
    ((output, errors),) = said
    if process.returncode < 0:
        raise Unreachable(f"ssh was killed while it read its configuration for '{host}'")
    if process.returncode:
        raise Refused(f"ssh cannot read its configuration for '{host}': {errors.strip()[:300]}")
    return output


def _kill(process: subprocess.Popen[str]) -> None:
    """End ``ssh -G`` and the commands it runs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, OSError):  # Windows has no process groups
        process.kill()
    process.wait()


def _plain(host: str, user: str, port: int, key: str) -> SshTarget:
    files = [Path(key).expanduser()] if key else [Path(name).expanduser() for name in _USUAL_KEYS]
    return SshTarget(host, port or 22, user or getpass.getuser(), files)


def resolve_jump(jump: str, config: str | None, closing: Callable[[], bool]) -> SshTarget:
    """The target of a jump host, which is looked up in the user's SSH configuration, too."""
    user, host, port = parse_jump(jump)
    return resolve(host, user=user, port=port, config=config, closing=closing)


def parse_jump(jump: str) -> tuple[str, str, int]:
    """(user, host, port) of ``[ssh://][user@]host[:port]``; "" and 0 for missing parts."""
    rest = jump.removeprefix("ssh://").rstrip("/")
    user, _, rest = rest.rpartition("@")
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
    else:
        host, _, port = rest.partition(":")
    return user, host, int(port) if port.isdigit() else 0
