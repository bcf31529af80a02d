"""A real OpenSSH server on a loopback port, with its own host key, user key and home directory.

    with Sshd(tmp_path) as sshd:
        box = Box("h200", host="127.0.0.1", port=sshd.port, user=sshd.user, key=str(sshd.user_key))

The machine's own SSH configuration is not used: logins get a temporary HOME (and so ``~/.grpo``), or are
those of another user with its own. Needs ``sshd`` and ``ssh-keygen``.
"""

from __future__ import annotations

import functools
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

from remote.boxes import Box
from remote.transports.bootstrap import build
from tests.support.agent import eventually
from tests.support.patience import PATIENCE
from tests.support.ports import free_port

if TYPE_CHECKING:
    from tests.support.accounts import NewUser


class Sshd:
    def __init__(
        self,
        folder: Path,
        *,
        environment: dict[str, str] | None = None,
        extra: str = "",
        files: str = "",
        user: NewUser | None = None,
        mounts: Sequence[str] = (),
        knows_agent: bool = False,
    ) -> None:
        """``environment`` is set for logins; ``extra`` is prepended to sshd_config, where the first value counts.

        ``knows_agent``: the agent is stored in the home, as the first connection leaves it.
        ``files``: a directory whose files the server sees below ``/etc``; ``mounts``: commands that mount what it alone
        sees. Both need the superuser (a mount namespace).
        ``user``: whose logins they are, with its own home; None: those of the user that runs the tests.
        """
        self.folder = folder / "sshd"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = user.home if user else self.folder / "home"
        self.home.mkdir(exist_ok=True)
        self.user = user.name if user else getpass.getuser()
        self.host_key = self.folder / "host_key"
        self.user_key = self.folder / "user_key"
        self.log = self.folder / "log"
        self._environment = {**({} if user else {"HOME": str(self.home)}), **(environment or {})}
        self._extra = extra
        self._files = files
        self._mounts = mounts
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        make_key(self.host_key)
        make_key(self.user_key)
        self.authorized_keys = (self.home / ".ssh" if user else self.folder) / "authorized_keys"
        self.authorized_keys.parent.mkdir(exist_ok=True)
        self.authorized_keys.write_text(Path(f"{self.user_key}.pub").read_text())
        if user:
            user.give(self.authorized_keys.parent)
        if knows_agent:
            self._store_agent()
        self.start()

    def __enter__(self) -> Sshd:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start or restart, on the same port."""
        program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        assert program, "sshd is not installed: sudo apt-get install -y openssh-server"
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # privilege separation directory of sshd
        config = self.folder / "sshd_config"
        variables = " ".join(f"{name}={value}" for name, value in self._environment.items())
        config.write_text(
            f"{self._extra}Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {self.authorized_keys}\nPidFile {self.folder}/pid\n"
            f"{'SetEnv ' * bool(variables)}{variables}\n"
            "KexAlgorithms -sntrup*\n"  # 66 ms of processor time for each connection
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100:30:200\nLogLevel VERBOSE\n"
        )
        log = self.log.open("ab")
        self._process = subprocess.Popen(
            [*self._namespace(), program, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        eventually(self._is_listening, what="sshd listens")

    def _is_listening(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def _store_agent(self) -> None:
        folder, python = self.home / ".grpo" / "agent", shutil.which("python3", path=os.defpath)
        assert python, "no python3 for logins"
        for each in (folder.parent, folder):
            each.mkdir(0o700, exist_ok=True)
        store_agent(folder, python)

    def _namespace(self) -> list[str]:
        """Mount files and folders for the server alone."""
        files = [file for file in Path(self._files).rglob("*") if file.is_file()] if self._files else []
        commands = [*(f"mount --bind {file} /etc/{file.relative_to(self._files)}" for file in files), *self._mounts]
        if not commands:
            return []
        return ["unshare", "--mount", "sh", "-c", " && ".join([*commands, 'exec "$@"']), "sh"]

    def stop(self) -> None:
        """Stop listening and end every connection."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    child.terminate()
        process.terminate()
        process.wait(60 * PATIENCE)

    def new_host_key(self, kind: str = "ed25519") -> None:
        """Replace the host key, as a reinstalled box does."""
        self.stop()
        for file in (self.host_key, Path(f"{self.host_key}.pub")):
            file.unlink()
        make_key(self.host_key, kind)
        self.start()

    def fingerprint(self) -> str:
        """The host key's ``SHA256:…``."""
        done = subprocess.run(["ssh-keygen", "-lf", str(self.host_key)], capture_output=True, text=True, check=True)
        return done.stdout.split()[1]


STORE = """
import pkgutil, sys
sys.argv = [bundle := sys.argv[1]]
sys.path.insert(0, bundle)
import libtmux.server, remote.agent
from remote.agent import compiled
for module in pkgutil.walk_packages(remote.agent.__path__, "remote.agent."):
    __import__(module.name)
compiled.store_compiled()
"""
"""Stores the compiled modules of all that an agent may load: compiling them is half of what a connection costs."""


def store_agent(folder: Path, python: str) -> None:
    """Store the bundle and its compiled modules: most of what a first connection costs."""
    for name, content in _agent_files(python).items():
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)


@functools.cache
def _agent_files(python: str) -> dict[str, bytes]:
    """What agents that ran leave in their folder."""
    bundle = build()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / bundle.name).write_bytes(bundle.data)
        subprocess.run([python, "-I", "-S", "-c", STORE, f"{folder}/{bundle.name}"], check=True)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Create a key pair with ssh-keygen."""
    if not path.exists():
        command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
        subprocess.run([*command, "-C", "test"], check=True, stdin=subprocess.DEVNULL)
    return path


def start_ssh_agent(path: Path) -> subprocess.Popen[bytes]:
    """An SSH agent without a key that answers at ``path``: the file exists a moment before it does."""
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        assert agent.poll() is None, "ssh-agent ended"
        with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError, ConnectionRefusedError):
            probe.connect(str(path))
            return True
        return False

    eventually(answers)
    return agent


def box_over(transport: Any, root: Path, sshd: Sshd, port: int) -> Box:
    """This machine (``local``), or a server of it at a port, over ``openssh`` or ``paramiko``."""
    if transport == "local":
        return Box("local", kind="local", root=str(root))
    return Box(
        f"h200-{port}", host="127.0.0.1", port=port, user=sshd.user, key=str(sshd.user_key), transport=transport,
        root=str(root),
    )  # fmt: skip
