"""The main journey, where the laptop or the engine on the box is of commit 8952e10 (version 0.2.0).

A laptop brings its own agent. Needs the history of this repository (a shallow clone does not have it).
"""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_train.run_dir import RunDir, open_run
from tests.end_to_end.test_over_ssh import CONFIG
from tests.support import micro
from tests.support.agent import eventually
from tests.support.engine import REPOSITORY
from tests.support.pty_program import PtyProgram
from tests.support.terminal import unlink_socket

make_root, tiny_model = micro.make_root, micro.tiny_model
BASE = "8952e10"
ENGINE = """\
#!/bin/sh
PYTHONPATH={sources} exec {python} -m grpo_train.cli "$@"
"""
BACK_UP = """
import sys
from remote.boxes import load_boxes
from remote.client import BoxClient
client = BoxClient(load_boxes(sys.argv[1])[0], lambda event: None)
client.start()
print(client.request("back_up", 60, key=sys.argv[2], run="one", to="disk").result(60))
client.close()
"""


class Laptop:
    """``grpo-tui`` of some sources, and a box with the engine of others."""

    def __init__(self, folder: Path, root: Path, sources: Path, engine_sources: Path) -> None:
        self.folder, self.root, self.socket = folder, root, f"grpo-mix-{secrets.token_hex(4)}"
        home = folder / "home"
        home.mkdir()
        engine = folder / "engine"
        engine.write_text(ENGINE.format(sources=engine_sources, python=sys.executable))
        engine.chmod(0o755)
        store = folder / "store"
        store.mkdir()
        files = home / ".config" / "grpo-tui"
        files.mkdir(parents=True)
        destination = {"name": "disk", "folder": str(store)}
        (files / "backup.yaml").write_text(yaml.safe_dump({"destinations": [destination]}))
        entry = {"name": "gpu", "kind": "local", "root": str(root), "tmux_socket": self.socket, "engine": [str(engine)]}
        self.boxes = files / "boxes.yaml"
        self.boxes.write_text(yaml.safe_dump({"boxes": [entry]}))
        self.config = folder / "mine.yaml"
        self.config.write_text(yaml.safe_dump(CONFIG))
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LANG") if name in os.environ}
        self.environment = {
            **kept, "HOME": str(home), "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1", "TERM": "xterm-256color",
        }  # fmt: skip

    def python(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def __call__(self, *words: str) -> str:
        return self.python("-m", "grpo_tui.cli", *words)

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def terminal(self, *words: str) -> PtyProgram:
        return PtyProgram([sys.executable, "-m", "grpo_tui.cli", *words], self.environment)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the base commit."""
    archive = subprocess.run(["git", "archive", BASE], cwd=REPOSITORY, capture_output=True)
    assert archive.returncode == 0, f"needs the history of this repository: {archive.stderr.decode()}"
    folder = tmp_path_factory.mktemp("base")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder)
    return folder


def is_in(run: RunDir, *states: str) -> bool:
    return run.observed_state().state in states


@pytest.mark.parametrize("is_laptop_older", [True, False], ids=["older laptop and agent", "older engine"])
def test_the_main_journey(base: Path, root: Path, tmp_path: Path, is_laptop_older: bool) -> None:
    laptop = Laptop(tmp_path, root, *((base, REPOSITORY) if is_laptop_older else (REPOSITORY, base)))
    try:
        laptop("launch", str(laptop.config), "--run-name", "one")
        run = open_run(root, "one")
        eventually(lambda: any(run.read_log("train_log.jsonl")), 90)
        eventually(lambda: laptop.json("show", "one")["summary"]["state"] == "running", 90)
        assert json.loads(laptop("tail", "one", "train_log", "-n", "1"))["step"] >= 1
        app = laptop.terminal()
        app.until("one  running")
        app.type("q")
        assert app.end() == 0, app.text
        screen = laptop.terminal("attach", "one")
        screen.until("reward")
        subprocess.run(["tmux", "-L", laptop.socket, "detach-client", "-s", "one"], check=True)
        assert screen.end() == 0, screen.text

        laptop("stop", "one")
        eventually(lambda: is_in(run, "stopped"), 90)
        laptop("eval", "one", "--steps", "latest")
        table = root / "eval_runs" / "one_addition" / "consolidated_metrics.csv"
        eventually(lambda: table.exists() and ",ok," in table.read_text(), 90)
        stopped_at = run.checkpoint("latest").step
        laptop("resume", "one", "--additional-steps", "2")
        eventually(lambda: is_in(run, "finished"), 90)
        assert run.checkpoint("final").step == stopped_at + 2

        laptop.python("-c", BACK_UP, str(laptop.boxes), secrets.token_hex(8))
        eventually(lambda: list((tmp_path / "store").rglob("COMPLETE")), 90)
        laptop("get", "one", str(tmp_path / "here"), "--steps", "none")
        copied = tmp_path / "here" / "eval_runs" / "one_addition" / table.name
        assert copied.read_bytes() == table.read_bytes()
    finally:
        subprocess.run(["tmux", "-L", laptop.socket, "kill-server"], capture_output=True)
        unlink_socket(laptop.socket)
