"""A box behind sshd and a bad network, a laptop's files, and the keys a user presses."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo_train.run_dir import RunDir, list_runs
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd
from tests.support.terminal import Terminal, unlink_socket

BIN = Path(sys.executable).parent


@dataclass
class SshBox:
    """The box ``h200`` of a laptop's ``boxes.yaml``."""

    root: Path
    proxy: ChaosProxy
    boxes_file: Path
    environment: dict[str, str]
    """Of the laptop."""
    tmux_socket: str

    def app(self, command: Path = BIN / "grpo-tui", columns: int = 120, rows: int = 40) -> Terminal:
        """The app on the laptop."""
        words = [str(command), "--boxes", str(self.boxes_file), "--box", "h200"]
        return Terminal(words, self.environment, columns, rows)

    def move_to(self, port: int) -> None:
        """Let the laptop reach the box at another port."""
        boxes = yaml.safe_load(self.boxes_file.read_text())
        boxes["boxes"][0]["port"] = port
        self.boxes_file.write_text(yaml.safe_dump(boxes))

    def run(self) -> RunDir:
        """The only run."""
        (run,) = list_runs(self.root)
        return run

    def tmux(self, *arguments: str) -> str:
        """The box's tmux."""
        command = ["tmux", "-L", self.tmux_socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout


@contextmanager
def ssh_box(
    folder: Path,
    root: Path,
    settings: Mapping[str, Any] | None = None,
    login: dict[str, str] | None = None,
    **server: str,
) -> Iterator[SshBox]:
    """A box with the engine of these tests.

    ``settings`` are added to its entry in ``boxes.yaml``, ``login`` to the environment of its logins. ``server``: more
    arguments of :class:`tests.support.sshd.Sshd`.
    """
    laptop = folder / "laptop"
    laptop.mkdir()
    socket = f"grpo-e2e-{secrets.token_hex(4)}"
    with Sshd(folder, environment=login, **server) as sshd, ChaosProxy(sshd.port) as proxy:
        entry = {
            "name": "h200",
            "host": "127.0.0.1",
            "port": proxy.port,
            "user": sshd.user,
            "key": str(sshd.user_key),
            "root": str(root),
            "engine": [str(BIN / "grpo-train")],
            "tmux_socket": socket,
            "price_per_hour": 2.49,
            **(settings or {}),
        }
        boxes = laptop / "boxes.yaml"
        boxes.write_text(yaml.safe_dump({"boxes": [entry]}))
        environment = {
            "HOME": str(laptop),
            "XDG_CONFIG_HOME": str(laptop / "config"),
            "XDG_CACHE_HOME": str(laptop / "cache"),
            "XDG_STATE_HOME": str(laptop / "state"),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
        }
        box = SshBox(root, proxy, boxes, environment, socket)
        try:
            yield box
        finally:
            for run in list_runs(root):
                command = [str(BIN / "grpo-train"), "stop", "--now", "--training-run", run.name, "--root", str(root)]
                subprocess.run(command, capture_output=True, timeout=60)
            box.tmux("kill-server")
            unlink_socket(socket)


def accept_host_key(screen: Terminal) -> None:
    screen.wait_for("unknown host key", "SHA256:", timeout=30)
    screen.wait_for_focus("Reject")
    screen.press("Right")
    screen.wait_for_focus("Accept and remember")
    screen.press("Enter")
    screen.wait_gone("SHA256:")


def connect(screen: Terminal, *answers: tuple[str, str]) -> None:
    """Accept the host key, answer questions, and wait for the list of runs.

    ``answers``: a part of each question, and its answer.
    """
    accept_host_key(screen)
    for question, answer in answers:
        answer_question(screen, question, answer)
    screen.wait_for("press n", timeout=30)


def answer_question(screen: Terminal, question: str, answer: str) -> None:
    """Type the answer to a question of ssh, in its dialog."""
    screen.wait_for("log in to h200", question, timeout=30)
    screen.paste(answer)
    screen.wait_for("•" * 20)
    screen.press("Enter")
    screen.wait_gone(question)


def choose_config(screen: Terminal, name: str, label: str) -> None:
    """Open the launch form and choose a config by the beginning of its name."""
    screen.press("n")
    screen.wait_for("launch a run on h200", "processes")
    screen.press("Tab")  # from the button, or from nowhere while the form is checked, to the configs
    screen.wait_for_focus("config")
    screen.press("Enter")  # open the list
    screen.wait_for("code_game.yaml")
    screen.wait_for_focus("(this machine)")
    screen.type(name)
    screen.press("Enter")
    screen.wait_gone("code_game.yaml")  # the list is closed
    screen.wait_for(label)


def tab_to(screen: Terminal, field: str) -> None:
    """Tab from the configs of the launch form to another field."""
    screen.wait_for_focus("config")
    screen.press("Tab")  # to the text, where nothing shows the focus
    for label in ("start from", "processes", "overrides", "run name"):
        screen.press("Tab")
        screen.wait_for_focus(label)
        if label == field:
            return


def confirm(screen: Terminal) -> None:
    """Press the form's button, which has the focus once the command is shown."""
    screen.press("Enter")
    screen.wait_gone("exact command")
