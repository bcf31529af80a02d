"""Servers, keys and configurations of one row of docs/ssh.md, and what ssh and both transports make of them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from remote.boxes import Box
from remote.client import BoxClient
from remote.events import ClientEvent, HostKeyAsked, Link, LinkChanged, QuestionAsked
from tests.support.agent import Recorder
from tests.support.network import add_link_local, own_network
from tests.support.patience import PATIENCE
from tests.support.sshd import Sshd, make_key, start_ssh_agent

LOST_TIMES = 3
"""A link that cannot be opened so often is not connected: some refusals need two connections."""
SECRET = "correct horse"
TWO_FACTORS = (
    "UsePAM yes\nKbdInteractiveAuthentication yes\nPermitRootLogin yes\n"
    "AuthenticationMethods publickey,keyboard-interactive\n"
)
"""Of sshd: a key, then what :func:`pam_secret` asks for."""
NAME = "gpu"
"""The host's name in the configuration."""
CONNECT = """
import os, socket, sys, threading
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def pull():
    while data := sock.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=pull).start()
while data := os.read(0, 65536):
    sock.sendall(data)
sock.shutdown(socket.SHUT_WR)
"""
"""A program for ProxyCommand that connects to a host and port, as netcat does."""


@dataclass
class Row:
    """What one configuration needs: an ``ssh_config``, a box, a laptop's environment, and answers to questions."""

    config: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Of the box."""
    environment: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """By kind of question."""
    host_key: bool = True
    """The answer to a question for a host key."""


@dataclass(frozen=True)
class Outcome:
    """Whether commands run on the box, or the message; what was asked on the way."""

    connected: bool
    message: str = ""
    asked: tuple[str, ...] = ()


class Lab:
    """A laptop with nothing but a directory, and servers."""

    def __init__(self, folder: Path, knows_agent: bool) -> None:
        self.folder = folder
        self._knows_agent = knows_agent
        """The home directories of the servers."""
        self.known = folder / "known_hosts"
        """The user's."""
        self._servers: list[Sshd] = []
        self._agents: list[subprocess.Popen[bytes]] = []
        self.environment: dict[str, str] = {}
        self._network = ExitStack()

    def link_local(self) -> str:
        """A link-local address with its zone, in a network of this lab."""
        self._network.enter_context(own_network())
        return add_link_local("lab0")

    def server(self, extra: str = "", *, known: bool = True, **options: Any) -> Sshd:
        """A server; ``known``: the user's known_hosts has its key."""
        folder = self.folder / f"server{len(self._servers)}"
        server = Sshd(folder, extra=extra, knows_agent=self._knows_agent, **options)
        self._servers.append(server)
        if known:
            self.know(self.address(server), server)
        return server

    @staticmethod
    def address(server: Sshd) -> str:
        return f"[127.0.0.1]:{server.port}"

    @staticmethod
    def public(key: Path) -> str:
        return " ".join(Path(f"{key}.pub").read_text().split()[:2])

    def know(self, names: str, server: Sshd, marker: str = "") -> None:
        """Add the key of a server to the user's known_hosts."""
        with self.known.open("a") as file:
            file.write(f"{marker} {names} {self.public(server.host_key)}\n".lstrip())

    def key(self, name: str, *servers: Sshd, kind: str = "ed25519", passphrase: str = "") -> Path:
        """A key pair that servers accept."""
        key = make_key(self.folder / name, kind, passphrase)
        for server in servers:
            with server.authorized_keys.open("a") as file:
                file.write(Path(f"{key}.pub").read_text())
        return key

    def agent(self, *keys: Path) -> str:
        """The socket of an ssh-agent that holds keys."""
        socket = self.folder / f"agent{len(self._agents)}"
        self._agents.append(start_ssh_agent(socket))
        for key in keys:
            environment = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
            subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, stdin=subprocess.DEVNULL)
        return str(socket)

    def sign(self, key: Path, *options: str, host: bool = False) -> Path:
        """Certify a key by the lab's CA; returns the certificate."""
        ca = make_key(self.folder / "ca")
        kind = ["-h"] if host else []
        public = f"{key}.pub"
        subprocess.run(["ssh-keygen", "-q", "-s", str(ca), "-I", "lab", *kind, *options, public], check=True)
        return key.with_name(f"{key.name}-cert.pub")

    def config(self, server: Sshd, *lines: str, key: bool = True, known: bool = True, name: str = NAME) -> str:
        """A configuration for a server."""
        defaults = [f"HostName 127.0.0.1\nPort {server.port}\nUser {server.user}"]
        defaults += [f"IdentityFile {server.user_key}"] if key else []
        defaults += [f"UserKnownHostsFile {self.known}"] if known else []
        return "\n".join([f"Host {name}", *lines, *defaults, ""])

    def start_master(self, config: Path) -> None:
        """A control master of the user."""
        command = ["ssh", "-F", str(config), "-N", "-M", "-o", "StrictHostKeyChecking=yes", NAME]
        self._agents.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        while subprocess.run(["ssh", "-F", str(config), "-O", "check", NAME], capture_output=True).returncode:
            assert self._agents[-1].poll() is None

    # ---------------------------------------------------------------------------------------------- the outcomes

    @contextmanager
    def laptop(self, row: Row) -> Iterator[str]:
        """The laptop's environment and configuration; yields the configuration's path."""
        path = self.folder / "ssh_config"
        path.write_text(row.config)
        before = dict(os.environ)
        os.environ.pop("SSH_AUTH_SOCK", None)
        os.environ.update(row.environment)
        try:
            yield str(path)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def ssh(self, row: Row) -> Outcome:
        """``ssh NAME`` with a command that must run."""
        script = self.folder / "answers"
        cases = "".join(f"*'{_WORDS[kind]}'*) echo '{answer}';;\n" for kind, answer in row.answers.items())
        yes = "yes" if row.host_key else "no"
        script.write_text(f'#!/bin/sh\ncase "$1" in\n*continue?connecting*) echo {yes};;\n{cases}*) exit 1;;\nesac\n')
        script.chmod(0o700)
        known = self.known.read_bytes() if self.known.exists() else None
        with self.laptop(row) as config:
            environment = {**os.environ, "SSH_ASKPASS": str(script), "SSH_ASKPASS_REQUIRE": "force"}
            box = self.box(row, "openssh")
            key = ["-i", box.key, "-o", "IdentitiesOnly=yes"] if box.key else []
            done = subprocess.run(
                ["ssh", "-T", "-F", config, "-o", "RemoteCommand=none", *key, box.host, "echo it runs"],
                env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                start_new_session=True, errors="replace",
            )  # fmt: skip
        if known is not None:  # ssh may have added a key
            self.known.write_bytes(known)
        else:
            self.known.unlink(missing_ok=True)
        return Outcome("it runs" in done.stdout, (done.stderr.strip().splitlines() or [""])[-1])

    def box(self, row: Row, transport: str) -> Box:
        values = {"host": NAME, "root": str(self.folder / "root"), **row.fields}
        return replace(Box("gpu-box", **values), transport=transport)  # type: ignore[arg-type]

    def link(self, row: Row, transport: str) -> Outcome:
        """The link over a transport, until it is connected or a failure is final."""
        hosts = self.folder / f"hosts-{transport}"
        asked: list[str] = []
        recorder = Recorder(reconnects=True)

        def on_event(event: ClientEvent) -> None:
            if isinstance(event, HostKeyAsked):
                asked.append("host key")
                client.answer_host_key(row.host_key)
            if isinstance(event, QuestionAsked):
                asked.append(event.kind)
                client.answer_question(row.answers.get(event.kind))
            recorder(event)

        def is_lost(event: ClientEvent) -> bool:
            return isinstance(event, LinkChanged) and event.state is Link.LOST and bool(event.retry_in_s)

        def over(event: ClientEvent) -> bool:
            if is_lost(event):
                return sum(map(is_lost, recorder.events)) >= LOST_TIMES
            return isinstance(event, LinkChanged) and event.state in (Link.CONNECTED, Link.REFUSED)

        with self.laptop(row) as config:
            client = BoxClient(self.box(row, transport), on_event, host_keys_file=hosts, ssh_config=config)
            recorder.client = client
            client.start()
            try:
                end = recorder.wait(over, 60)
                assert isinstance(end, LinkChanged)
                if end.state is Link.CONNECTED:
                    client.request("list_runs").result(30)
            finally:
                client.close()
        connected = end.state is Link.CONNECTED
        return Outcome(connected, "" if connected else end.detail, tuple(asked))

    def close(self) -> None:
        for agent in self._agents:
            agent.kill()  # a master of OpenSSH may sleep through a SIGTERM that comes just before its poll()
            agent.wait(60 * PATIENCE)
        for server in self._servers:
            server.stop()
        # The agent of a connection that ended early may still write below its home directory.
        homes = [f"HOME={server.home}\0".encode() for server in self._servers]
        left = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError, psutil.NoSuchProcess):  # it has ended
                variables = environment.read_bytes()
                if any(home in variables for home in homes):
                    left.append(psutil.Process(int(environment.parent.name)))
                    left[-1].kill()
        psutil.wait_procs(left, PATIENCE * 10)
        self._network.close()


_WORDS = {"password": "password", "passphrase": "passphrase", "prompt": "Password"}
"""A part of each prompt."""


@contextmanager
def lab(*, knows_agent: bool = True) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp") as folder:  # short, for sockets
        place = Lab(Path(folder), knows_agent)
        try:
            yield place
        finally:
            place.close()


def box_of(lab: Lab, **fields: Any) -> Box:
    return Box("gpu-box", host=NAME, root=str(lab.folder / "root"), transport="openssh", **fields)


def options(lab: Lab, config: str) -> dict[str, Any]:
    path = lab.folder / "config"
    path.write_text(config)
    return {"ssh_config": str(path), "host_keys_file": lab.folder / "hosts"}


def folders(lab: Lab) -> list[Path]:
    return list(lab.folder.glob("grpo-ssh-*"))


def processes(lab: Lab) -> list[int]:
    """ssh processes that use the lab."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if argv[0].endswith("ssh") and any(str(lab.folder) in argument for argument in argv):
            found.append(int(entry.name))
    return found


def pam_secret(folder: Path, secret: str = SECRET) -> str:
    """Files below ``/etc`` with which PAM asks for a secret."""
    check = folder / "check"
    check.write_text(f"#!/bin/sh\n[ \"$(cat)\" = '{secret}' ]\n")
    check.chmod(0o755)
    files = folder / "etc"
    (files / "pam.d").mkdir(parents=True)
    permit = [f"{kind} required pam_permit.so" for kind in ("auth", "account", "session")]
    lines = [f"auth required pam_exec.so quiet expose_authtok {check}", *permit]
    (files / "pam.d" / "sshd").write_text("\n".join([*lines, ""]))
    return str(files)
