"""Other accounts of this machine: programs and agents that run as ``daemon`` or ``nobody``.

The superuser becomes another account with ``setpriv``; anyone else does so in a user namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remote.bundle import build
from remote.transports.local import LocalTransport
from tests.support.agent import RawAgent

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
"""One that every account may execute."""
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
