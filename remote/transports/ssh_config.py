"""The user's SSH configuration for a host, from ``ssh -G``, which evaluates Include, Match and ProxyJump."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from remote.transports import Refused

RESOLVE_S = 10.0
_USUAL_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True)
class Target:
    """Where to connect, and as which user."""

    host: str
    port: int
    user: str
    identity_files: list[Path] = field(default_factory=list)
    jumps: list[str] = field(default_factory=list)
    """``[user@]host[:port]`` of each jump host, nearest first."""


def resolve(host: str, *, user: str = "", port: int = 0, key: str = "", config: str | None = None) -> Target:
    """The target of a host name or alias; arguments take precedence over the user's SSH configuration.

    Raises Refused when the configuration is invalid or needs something unsupported.
    """
    if host.startswith("-") or not host:
        raise Refused(f"{host!r} is not a host name")
    ssh = shutil.which("ssh")
    if ssh is None:
        return _plain(host, user, port, key)
    command = [ssh, "-G", *(["-F", config] if config else []), *(["-l", user] if user else [])]
    command += [*(["-p", str(port)] if port else []), *(["-i", key] if key else []), "--", host]
    try:
        done = subprocess.run(command, capture_output=True, timeout=RESOLVE_S, text=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return _plain(host, user, port, key)
    if done.returncode:
        raise Refused(f"ssh cannot read its configuration for '{host}': {done.stderr.strip()[:300]}")
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name, []).append(value)

    def one(name: str) -> str:
        value = values.get(name, [""])[0]
        return "" if value == "none" else value

    if one("proxycommand"):
        raise Refused(f"'{host}' uses ProxyCommand, which is not supported; use ProxyJump instead")
    files = [Path(key).expanduser()] if key else [Path(name).expanduser() for name in values.get("identityfile", [])]
    jumps = [jump for jump in one("proxyjump").split(",") if jump]
    return Target(one("hostname") or host, int(one("port") or 22), one("user") or user, files, jumps)


def _plain(host: str, user: str, port: int, key: str) -> Target:
    files = [Path(key).expanduser()] if key else [Path(name).expanduser() for name in _USUAL_KEYS]
    return Target(host, port or 22, user or getpass.getuser(), files)


def resolve_jump(jump: str, config: str | None) -> Target:
    """The target of a jump host, which is looked up in the user's SSH configuration, too."""
    user, host, port = parse_jump(jump)
    return resolve(host, user=user, port=port, config=config)


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
