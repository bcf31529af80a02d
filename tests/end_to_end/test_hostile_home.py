"""The main journey, where the owner of laptop and box has configured every program that we use."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_train.run_dir import open_run
from tests.end_to_end.test_over_ssh import CONFIG
from tests.support import micro
from tests.support.agent import eventually
from tests.support.backups import contents
from tests.support.engine import REPOSITORY
from tests.support.hostile_home import hostile_home
from tests.support.pty_program import PtyProgram
from tests.support.s3_servers import server
from tests.support.ssh_box import BIN
from tests.support.sshd import Sshd
from tests.support.stores import describe_bucket
from tests.support.terminal import unlink_socket

make_root, tiny_model = micro.make_root, micro.tiny_model
AS_OWNER = 'mount --bind "$HOME/passwd" /etc/passwd && exec "$@"'
"""ssh takes the home from the user database."""


class Laptop:
    """Commands of a user with a hostile home."""

    def __init__(self, home: Path, clone: Path) -> None:
        home.mkdir()
        self.home, self.clone = home, clone
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        self.environment = {**kept, **hostile_home(home), "TERM": "nobody-knows", "OMP_NUM_THREADS": "1"}

    def command(self, *words: str) -> list[str]:
        return ["/usr/bin/unshare", "--mount", "sh", "-c", AS_OWNER, "sh", str(BIN / "grpo-tui"), *words]

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            self.command(*words),
            env=self.environment, cwd=self.clone, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def terminal(self, *words: str) -> PtyProgram:
        os.chdir(self.clone)
        return PtyProgram(self.command(*words), self.environment)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout on the laptop."""
    folder = tmp_path / "grpo-tui"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)
    (folder / "config" / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def box(folder: Path, root: Path, laptop: Laptop) -> Iterator[tuple[Sshd, str]]:
    """An sshd that the laptop knows as ``gpu``, and the socket of its tmux."""
    home = folder / "sshd" / "home"
    home.mkdir(parents=True)
    variables = hostile_home(home)
    files = folder / "files"
    files.mkdir()
    (files / "passwd").write_bytes((home / "passwd").read_bytes())
    socket = f"grpo-e2e-{secrets.token_hex(4)}"
    with Sshd(folder, environment=variables, files=str(files)) as sshd:
        config = laptop.home / ".ssh" / "config"
        host = f"Host gpu\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.user_key}\n"
        config.write_text(host + config.read_text())
        entry = {
            "name": "gpu", "host": "gpu", "root": str(root), "tmux_socket": socket,
            "engine": [str(BIN / "grpo-train")],
        }  # fmt: skip
        boxes = laptop.home / ".config" / "grpo-tui" / "boxes.yaml"
        boxes.parent.mkdir(parents=True)
        boxes.write_text(yaml.safe_dump({"boxes": [entry]}))
        try:
            yield sshd, socket
        finally:
            subprocess.run(["tmux", "-L", socket, "kill-server"], capture_output=True)
            unlink_socket(socket)


def on_box(sshd: Sshd, *words: str) -> None:
    """Run a command as the box's owner. (In a login of its own, a backup would wait for all that runs beside it.)"""
    command = ["unshare", "--mount", "sh", "-c", AS_OWNER, "sh", *words]
    environment = {"PATH": os.environ["PATH"], **hostile_home(sshd.home)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_main_journey(tmp_path: Path, root: Path, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop = Laptop(tmp_path / "laptop", clone)
    with box(tmp_path, root, laptop) as (sshd, socket):
        store = server("moto")
        with monkeypatch.context() as on_the_box:
            on_the_box.setenv("HOME", str(sshd.home))
            on_the_box.delenv("XDG_CONFIG_HOME", raising=False)
            describe_bucket(store.new_bucket(), store)

        first = laptop.terminal("doctor")
        first.until(sshd.fingerprint())
        first.type("yes\r")
        first.end()
        assert "✔ root" in first.text, first.text
        commit = laptop.json("sync", "--with-changes")["commit"]
        laptop("launch", "config/mine.yaml", "--run-name", "one")
        run = open_run(root, "one")
        eventually(lambda: run.observed_state().state == "running", 90)
        code = json.loads((run.path / "launch.json").read_text())["code"]
        assert (code["commit"], bool(code["patch"])) == (commit, True)
        eventually(lambda: any(run.read_log("train_log.jsonl")), 90)

        app = laptop.terminal()
        app.until("one  running")
        app.type("q")
        assert app.end() == 0, app.text
        assert laptop.json("show", "one")["summary"]["state"] == "running"
        assert json.loads(laptop("tail", "one", "train_log", "-n", "1"))["step"] >= 1
        assert "reward" in laptop("capture", "one")
        screen = laptop.terminal("attach", "one")
        screen.until("reward")
        screen.type("\x01")  # the prefix of its owner
        prefixed = ["tmux", "-L", socket, "list-clients", "-F", "#{client_prefix}"]
        eventually(lambda: b"1" in subprocess.check_output(prefixed))  # tmux takes faster keys for a paste
        screen.type("d")
        assert screen.end() == 0, screen.text

        laptop("stop", "one")
        eventually(lambda: run.observed_state().state == "stopped", 90)
        laptop("eval", "one", "--steps", "latest")
        table = root / "eval_runs" / "one_addition" / "consolidated_metrics.csv"
        eventually(lambda: table.exists() and ",ok," in table.read_text(), 90)
        stopped_at = run.checkpoint("latest").step
        laptop("resume", "one", "--additional-steps", "2")
        eventually(lambda: run.observed_state().state == "finished", 90)
        assert run.checkpoint("final").step == stopped_at + 2
        ended = {row["name"] for row in laptop.json("sessions") if row["run"] == "one" and row["dead"]}
        assert ended == {"one", "eval_one"}
        laptop("get", "one", "here", "--steps", "none")
        assert (clone / "here" / "eval_runs" / "one_addition" / table.name).read_bytes() == table.read_bytes()

        engine = str(BIN / "grpo-train")
        on_box(sshd, engine, "backup", "--training-run", "one", "--root", str(root))
        other = str(tmp_path / "other")
        on_box(sshd, engine, "restore", "--training-run", "one", "--root", other)
        restored = open_run(Path(other), "one")
        assert contents(restored.path / "training_state") == contents(run.path / "training_state")
        assert (Path(other) / table.relative_to(root)).read_bytes() == table.read_bytes()
