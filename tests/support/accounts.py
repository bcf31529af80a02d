"""Other accounts of this machine: programs and agents that run as ``daemon``, ``nobody`` or a user made for a test.

The superuser becomes another account with ``setpriv``; anyone else does so in a user namespace.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from remote.transports.bootstrap import build
from remote.transports.local import LocalTransport
from tests.support.agent import RawAgent

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
"""One that every account may execute."""
HOMES = Path("/home")
"""Where useradd makes homes."""
_NAMESPACE = ["unshare", "--user", "--map-root-user", "--map-auto"]


class SharedBox:
    """A directory that every account may enter, with an agent, a fake engine and a root that all may write."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        self.agents: list[RawAgent] = []
        folder.chmod(0o755)
        self.root.mkdir()
        self.root.chmod(0o1777)
        self._bundle = folder / build().name
        self._bundle.write_bytes(build().data)
        self.engine = folder / "code" / "tests" / "support" / "fake_engine.py"
        self.engine.parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / "tests" / "support" / "fake_engine.py", self.engine)
        package = folder / "code" / "grpo_train"
        shutil.copytree(
            REPOSITORY / "grpo_train" / "run_dir", package / "run_dir", ignore=shutil.ignore_patterns("__p*")
        )
        (package / "__init__.py").touch()
        subprocess.run(["chmod", "-R", "go+rX", str(folder / "code"), str(self._bundle)], check=True)

    def account(self, name: str) -> Account:
        return Account(self, name)

    def home_root(self, account: Account) -> Path:
        """A root that belongs to one account."""
        root = account.home / "root"
        account.run("mkdir", "-m", "755", str(root))
        return root

    def command(self, account: str, *argv: str) -> list[str]:
        change = ["setpriv", f"--reuid={account}", "--regid=nogroup", "--clear-groups", "--inh-caps=-all"]
        return [*([] if os.geteuid() == 0 else _NAMESPACE), *change, *argv]

    def agent_command(self, account: str) -> list[str]:
        return self.command(account, PYTHON, "-I", str(self._bundle), "serve")


class Account:
    """One account on the box, with its own home and tmux."""

    def __init__(self, box: SharedBox, name: str) -> None:
        self._box, self.name = box, name
        self.home = box.folder / f"home-{name}"
        if not self.home.exists():
            self.home.mkdir()
            self.home.chmod(0o1777)
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "SHELL": "/bin/sh",
            "TMUX_TMPDIR": str(self.home),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a program as this account; returns what it printed."""
        done = subprocess.run(
            self._box.command(self.name, *argv), env=self.environment, capture_output=True, text=True, cwd="/",
            timeout=20, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def agent(self, root: Path | None = None, **settings: Any) -> RawAgent:
        """An agent that runs as this account."""
        transport = _AccountTransport(self._box.agent_command(self.name), self.environment)
        settings = {"engine": [PYTHON, str(self._box.engine)], **settings}
        agent = RawAgent(root or self._box.root, transport, **settings)
        self._box.agents.append(agent)
        return agent

    def end(self) -> None:
        self.run("tmux", "kill-server", check=False)


class _AccountTransport(LocalTransport):
    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        super().__init__(environment)
        self._command = command

    def command(self) -> list[str]:
        return self._command


@contextmanager
def shared_box() -> Iterator[SharedBox]:
    """pytest's own directories are closed to other accounts."""
    folder = Path(tempfile.mkdtemp(prefix="grpo-shared-"))
    box = SharedBox(folder)
    try:
        yield box
    finally:
        for agent in box.agents:
            agent.transport.close()
        for name in ("daemon", "nobody"):
            box.account(name).end()
            own = ["find", str(folder), "-mindepth", "1", "-user", name, "-delete"]
            subprocess.run(box.command(name, *own), capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


class NewUser:
    """A user that ``useradd`` has just made, whose home has nothing but the system's skeleton."""

    def __init__(self, name: str) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.home, self.uid = name, Path(entry.pw_dir), entry.pw_uid

    def give(self, folder: Path) -> None:
        """Hand over a folder with everything in it."""
        subprocess.run(["chown", "--recursive", f"{self.name}:", str(folder)], check=True)

    def share_cache(self, cache: Path) -> str:
        """Prepare a cache of uv whose wheels are those of ``cache``; returns the command that mounts it.

        Files of another account cannot be linked: installations take UV_LINK_MODE=symlink.
        """
        own, upper, work = (self.home / ".cache" / name for name in ("uv", "uv.upper", "uv.work"))
        for folder in (own, upper, work):
            folder.mkdir(parents=True)
        wheels = "archive-v0"  # the large part, which needs no other owner
        others = [path for path in cache.iterdir() if path.name != wheels]
        subprocess.run(["cp", "--archive", *map(str, others), str(upper)], check=True)
        (upper / wheels).mkdir()
        self.give(self.home / ".cache")
        return overlay(cache, upper, work, own)

    def end_processes(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if process.stat().st_uid == self.uid:
                    os.kill(int(process.name), signal.SIGKILL)


def overlay(lower: Path, upper: Path, work: Path, at: Path) -> str:
    return f"mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work} {at}"


def new_users_work(cache: Path) -> bool:
    """Whether this is a superuser that may lay a folder of a home over ``cache``, and a new user would have a Python
    that makes environments."""
    usable = "import ensurepip, sys; sys.exit(sys.version_info < (3, 10))"
    if os.geteuid() != 0 or not shutil.which("useradd") or not HOMES.is_dir() or not _succeeds(PYTHON, "-c", usable):
        return False
    with tempfile.TemporaryDirectory(dir=HOMES) as folder:
        upper, work, at = (Path(folder) / name for name in ("upper", "work", "at"))
        for part in (upper, work, at):
            part.mkdir()
        return _succeeds("unshare", "--mount", "sh", "-c", overlay(cache, upper, work, at))


def _succeeds(*argv: str) -> bool:
    try:
        return subprocess.run(argv, capture_output=True).returncode == 0
    except OSError:
        return False


@contextmanager
def new_user(grave: Path) -> Iterator[NewUser]:
    """A user with a random name, removed at the end; its home is moved to ``grave``. Needs the superuser."""
    name = f"grpo-{secrets.token_hex(4)}"
    # '*' is no password; the default, '!', locks the account for an sshd without PAM.
    subprocess.run(["useradd", "--create-home", "--password", "*", "--shell", "/bin/bash", name], check=True)
    user = NewUser(name)
    try:
        yield user
    finally:
        user.end_processes()
        subprocess.run(["userdel", "--force", name], capture_output=True, check=True)
        shutil.move(user.home, grave)
