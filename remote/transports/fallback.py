"""paramiko in place of ssh, for a box with which ssh has no algorithm in common: when it may, and for which boxes.

paramiko reads neither the user's choice of algorithms nor their known_hosts. Whoever can damage the first packets can
make ssh fail, so paramiko takes over only where both have nothing to say.
"""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from remote.boxes import Box
from remote.transports import Refused, Unreachable
from remote.transports.openssh_setup import BoxSsh, Configuration, Program
from remote.transports.ssh_config import read_configuration

ALGORITHMS = {"kexalgorithms": "KexAlgorithms", "hostkeyalgorithms": "HostKeyAlgorithms", "ciphers": "Ciphers"}
ALGORITHMS |= {"macs": "MACs"}
KEPT_S = 30 * 86_400.0
"""Then ssh is tried again."""


def objection(ssh: BoxSsh) -> str:
    """Why paramiko may not take over, or ""."""
    try:
        return _objection(ssh, ssh.configuration)
    except (Refused, Unreachable, OSError) as error:
        return str(error)


def _objection(ssh: BoxSsh, configuration: Configuration) -> str:
    if configuration.one("proxyjump") or configuration.one("proxycommand"):
        return "a jump host is on the way"
    command = [ssh.program.path, "-G", "-F", "none", "--", ssh.box.host]
    usual = Configuration.parse(read_configuration(command, ssh.box.host, lambda: False))
    for name, option in ALGORITHMS.items():
        if configuration.one(name) != usual.one(name):
            return f"your SSH configuration sets {option}"
    if ssh.knows_box:
        return ""
    if configuration.is_strict:
        return "StrictHostKeyChecking is set, and the host key is not known"
    for file in configuration.files("userknownhostsfile") + configuration.files("globalknownhostsfile"):
        find = ["ssh-keygen", "-F", configuration.lookup, "-f", str(file)]
        if subprocess.run(find, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return f"it does not read {file}, which has the host key"
    return ""


def taken_over(box: Box, program: Program) -> bool:
    """Whether paramiko connected this box, with this ssh on this machine, in the last 30 days."""
    entry = _entries().get(box.name)
    if not isinstance(entry, dict) or (entry.get("address"), entry.get("ssh")) != (box.address(), program.name):
        return False
    try:
        return 0 <= time.time() - float(entry["time"]) < KEPT_S
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


def remember(box: Box, program: Program) -> None:
    """Store that paramiko connects this box. A disk that does not take it costs two attempts at the next start."""
    _store(_entries() | {box.name: {"address": box.address(), "ssh": program.name, "time": time.time()}})


def forget(box: Box) -> None:
    """Let ssh connect this box again."""
    entries = _entries()
    if entries.pop(box.name, None) is not None:
        _store(entries)


def _file() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("grpo-tui")) / "transports.json"


def _entries() -> dict[str, Any]:
    try:
        found = json.loads(_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _store(entries: dict[str, Any]) -> None:
    from grpo_train.run_dir.files import atomic_write

    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        atomic_write(_file(), json.dumps(entries, indent=1) + "\n", mode=0o600)
