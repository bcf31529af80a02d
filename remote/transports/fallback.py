"""paramiko in place of ssh, for a box with which ssh has no algorithm in common: when it may, and for which boxes.

paramiko reads neither the user's choice of algorithms nor their known_hosts. Whoever can damage the first packets can
make ssh fail, so paramiko takes over only where both have nothing to say.
"""

from __future__ import annotations

import subprocess
import time

from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.transports.identities import Notes
from remote.transports.openssh_setup import BoxSsh, OpenSshClient
from remote.transports.ssh_config import Configuration, read_configuration

ALGORITHMS = {"kexalgorithms": "KexAlgorithms", "hostkeyalgorithms": "HostKeyAlgorithms", "ciphers": "Ciphers"}
ALGORITHMS |= {"macs": "MACs"}
_notes = Notes("transports.json")
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


def taken_over(box: Box, program: OpenSshClient) -> bool:
    """Whether paramiko connected this box, with this ssh on this machine, in the last 30 days."""
    entry = _notes.read().get(box.name)
    if not isinstance(entry, dict) or (entry.get("address"), entry.get("ssh")) != (box.address(), program.name):
        return False
    try:
        return 0 <= time.time() - float(entry["time"]) < KEPT_S
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


def remember_fallback(box: Box, program: OpenSshClient) -> None:
    """Store that paramiko connects this box. A disk that does not take it costs two attempts at the next start."""
    _notes.write(_notes.read() | {box.name: {"address": box.address(), "ssh": program.name, "time": time.time()}})


def forget(box: Box) -> None:
    """Let ssh connect this box again."""
    entries = _notes.read()
    if entries.pop(box.name, None) is not None:
        _notes.write(entries)
