"""Which transport a box gets, and why.

``auto`` is the system's ``ssh`` wherever there is a usable one: any list of what paramiko cannot do would be
incomplete, and then ``ssh NAME`` would work where this program does not. paramiko is for machines without it, and for
boxes with which ssh has no algorithm in common.
"""

from __future__ import annotations

import shlex
import sys
import threading
from pathlib import Path
from typing import Any, Literal

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, TryAgain
from remote.boxes import Box
from remote.events import MachineChanged
from remote.providers import known, last_seen, located
from remote.transports import fallback, identities
from remote.transports.identities import machine_of
from remote.transports.openssh import OpenSshTransport
from remote.transports.openssh_questions import Announce, AskQuestion
from remote.transports.openssh_setup import OLDEST, BoxSsh, find_program, live
from remote.transports.transport import AskHostKey, Timing, Transport

Kind = Literal["local", "openssh", "paramiko"]
WSL = "Windows has no tmux: use grpo-tui inside WSL"


def choose(box: Box) -> tuple[Kind, str]:
    """The transport of a box and the reason.

    Raises Refused for ``transport: openssh`` without a usable ssh, and for this machine if it runs Windows.
    """
    if box.is_local:
        if sys.platform == "win32":
            raise Refused(f"{WSL}, or another box")
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
    elif fallback.taken_over(box, program):
        return "paramiko", f"the box and {program.name} have no SSH algorithm in common"
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
    from remote.transports import paramiko

    box = known(box)
    argv = paramiko.paramiko_attach_argv(box, session)
    connected = live(box)
    return list(argv) if connected is None else connected.attach(argv[-1])


def terminal_argv(box: Box, words: list[str]) -> list[str]:
    """The command that runs another one in this terminal on a box, as :func:`attach_argv` does.

    On this machine it gets the box's variables; elsewhere the login shell sets them.
    """
    if box.is_local:
        return ["env", *(f"{name}={value}" for name, value in box.env.items()), *words]
    argv, connected = attach_argv(box, "job"), live(known(box))
    return [*argv[:-1], shlex.join(words)] if connected is None else connected.attach(shlex.join(words))


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
        clock: Clock = CLOCK,
    ) -> None:
        self._box, self._ask, self._announce, self._clock = box, ask, announce, clock
        self._host_keys_file, self._ssh_config, self._step_s = host_keys_file, ssh_config, step_s
        self._ssh: BoxSsh | None = None
        self._ssh_refused: Refused | None = None
        """Why paramiko is used in this session, where ssh is usable."""
        self._closed = False
        self._lock = threading.Lock()

    def transport(self, box: Box, ask_host_key: AskHostKey) -> Transport:
        """A transport for the next connection. Raises Refused."""
        box = located(box, lambda: self._closed, self._clock)
        kind, _ = choose(box)
        if self._ssh_refused is not None:
            kind = "paramiko"
        if kind == "local":
            from remote.transports.local import LocalTransport

            return LocalTransport(clock=self._clock)
        if kind == "paramiko":
            from remote.transports.paramiko import SshTransport

            return SshTransport(
                box, ask_host_key, host_keys_file=self._host_keys_file, ssh_config=self._ssh_config,
                step_s=self._step_s, clock=self._clock,
            )  # fmt: skip
        with self._lock:
            if self._closed:
                raise Refused("the client is closed")
            passphrases: dict[str, str] = {}
            if self._ssh is not None and self._ssh.box != box:  # its instance has another address now
                passphrases = dict(self._ssh.passphrases)
                self._ssh.close()
                self._ssh = None
            if self._ssh is None:
                program = find_program()
                assert program is not None
                self._ssh = BoxSsh(box, program, host_keys_file=self._host_keys_file, config=self._ssh_config)
                self._ssh.passphrases |= passphrases
        return OpenSshTransport(
            self._ssh, ask_host_key, self._ask, self._announce, step_s=self._step_s, clock=self._clock
        )

    def after(self, refused: Refused) -> Refused | TryAgain:
        """What a refusal means: without a common algorithm, ``auto`` tries the other transport once."""
        if refused.code == "host_key" and (seen := last_seen(self._box)):
            words = identities.about_instance(self._box.name, seen.name, seen.id, seen.address)
            return Refused(f"{refused}. {words}", "host_key")
        if self._ssh_refused is not None and refused.code != "host_key":
            both, self._ssh_refused = f"{self._ssh_refused}. Over paramiko: {refused}", None
            fallback.forget(self._box)
            return Refused(both, refused.code)
        if refused.code != "algorithms" or self._box.transport != "auto":
            return refused
        if choose(self._box)[0] == "openssh" and self._ssh is not None:
            if reason := fallback.objection(self._ssh):
                return Refused(f"{refused}. paramiko is not tried: {reason}", refused.code)
            self._ssh_refused = refused
            return TryAgain("connecting over paramiko")
        fallback.forget(self._box)
        return TryAgain("connecting over ssh") if choose(self._box)[0] == "openssh" else refused

    def connected(self, address: str, hello: dict[str, Any]) -> None:
        """The link is connected: note the transport and the machine for the next program."""
        seen = last_seen(self._box)
        instance = seen.id if seen is not None else ""
        if not self._box.is_local and identities.remember_identity(
            self._box.name, address, machine_of(hello), instance
        ):
            self._announce(MachineChanged(address))
        if self._ssh_refused is not None and self._ssh is not None:
            fallback.remember_fallback(self._box, self._ssh.program)

    def close(self) -> None:
        """Remove what the connections have left on this machine."""
        with self._lock:
            self._closed = True
            if self._ssh is not None:
                self._ssh.close()
