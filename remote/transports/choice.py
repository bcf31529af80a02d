"""Which transport a box gets, and why.

``auto`` is the system's ``ssh`` wherever there is a usable one: any list of what paramiko cannot do would be
incomplete, and then ``ssh NAME`` would work where this program does not. paramiko is for machines without it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Literal

from remote.boxes import Box
from remote.timing import Timing
from remote.transports import AskHostKey, Refused, Transport
from remote.transports.openssh import OpenSshTransport
from remote.transports.openssh_questions import Announce, AskQuestion
from remote.transports.openssh_setup import OLDEST, BoxSsh, find_program, live

Kind = Literal["local", "openssh", "paramiko"]


def choose(box: Box) -> tuple[Kind, str]:
    """The transport of a box and the reason. Raises Refused for ``transport: openssh`` without a usable ssh."""
    if box.is_local:
        return "local", "this machine"
    program = find_program()
    if box.transport == "paramiko":
        return "paramiko", "'transport: paramiko' in boxes.yaml"
    if program is None:
        problem = "this machine has no OpenSSH client"
    elif sys.platform == "win32":
        problem = "OpenSSH for Windows has no control sockets"
    elif program.version < OLDEST:
        problem = f"{program.name} is older than {OLDEST[0]}.{OLDEST[1]}"
    elif box.transport == "openssh":
        return "openssh", f"'transport: openssh' in boxes.yaml; {program.name}"
    else:
        return "openssh", f"{program.name} is on this machine"
    if box.transport == "openssh":
        raise Refused(f"'{box.name}' has 'transport: openssh', but {problem}")
    return "paramiko", problem


def explain(box: Box) -> str:
    """How a box is connected, and why."""
    try:
        kind, reason = choose(box)
    except Refused as error:
        return str(error)
    return f"{box.name} connects over {kind}: {reason}" if kind != "local" else f"{box.name} is this machine"


def attach_argv(box: Box, session: str) -> list[str]:
    """The command that attaches this terminal to a session: as the link connects, over its master."""
    from remote.transports import ssh

    argv = ssh.attach_argv(box, session)
    connected = live(box)
    return list(argv) if connected is None else connected.attach(argv[-1])


class TransportChoice:
    """Makes the transports of one client."""

    def __init__(
        self,
        box: Box,
        ask: AskQuestion,
        announce: Announce,
        *,
        host_keys_file: str | Path | None = None,
        ssh_config: str | None = None,
        step_s: float = Timing.step,
    ) -> None:
        self._box, self._ask, self._announce = box, ask, announce
        self._host_keys_file, self._ssh_config, self._step_s = host_keys_file, ssh_config, step_s
        self._ssh: BoxSsh | None = None
        self._closed = False
        self._lock = threading.Lock()

    def transport(self, box: Box, ask_host_key: AskHostKey) -> Transport:
        """A transport for the next connection. Raises Refused."""
        kind, _ = choose(box)
        if kind == "local":
            from remote.transports.local import LocalTransport

            return LocalTransport()
        if kind == "paramiko":
            from remote.transports.ssh import SshTransport

            return SshTransport(
                box, ask_host_key, host_keys_file=self._host_keys_file, ssh_config=self._ssh_config, step_s=self._step_s
            )
        with self._lock:
            if self._closed:
                raise Refused("the client is closed")
            if self._ssh is None:
                program = find_program()
                assert program is not None
                self._ssh = BoxSsh(box, program, host_keys_file=self._host_keys_file, config=self._ssh_config)
        return OpenSshTransport(self._ssh, ask_host_key, self._ask, self._announce, step_s=self._step_s)

    def close(self) -> None:
        """Remove what the connections have left on this machine."""
        with self._lock:
            self._closed = True
            if self._ssh is not None:
                self._ssh.close()
