"""The main job as a user does it: the app in a terminal, a box behind a real sshd, a run on two processes."""

from __future__ import annotations

import csv
import hashlib
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from grpo_train.run_dir import RunDir, list_runs
from grpo_train.run_dir.files import read_jsonl
from tests.support.agent import eventually
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd
from tests.support.terminal import Terminal, unlink_socket

BIN = Path(sys.executable).parent
CONFIG = {
    "run": {"total_steps": 2000, "save_every": 1000},
    "model": {"backbone": "tiny", "adapter": "none"},
    "rollout": {"buffer_size": 8, "num_generations": 4, "max_completion_length": 32},
    "optimizer": {"learning_rate": 1.0e-4},
    "task": {"name": "addition"},
    "eval": {"batch_size": 256, "subset_frac": 0.1},
}


@dataclass
class World:
    """A box behind sshd and a bad network, and a laptop's files."""

    root: Path
    proxy: ChaosProxy
    boxes: Path
    environment: dict[str, str]
    tmux_socket: str

    def app(self, columns: int = 120, rows: int = 40) -> Terminal:
        command = [str(BIN / "grpo-tui"), "--boxes", str(self.boxes), "--box", "h200"]
        return Terminal(command, self.environment, columns, rows)

    def run(self) -> RunDir:
        """The one run there is."""
        (run,) = list_runs(self.root)
        return run

    def tmux(self, *arguments: str) -> str:
        """The box's tmux."""
        command = ["tmux", "-L", self.tmux_socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout


@pytest.fixture
def world(tmp_path: Path, root: Path) -> Iterator[World]:
    laptop, repo = tmp_path / "laptop", tmp_path / "repo"
    laptop.mkdir()
    (repo / "config").mkdir(parents=True)
    (repo / "config" / "e2e.yaml").write_text(yaml.safe_dump(CONFIG))
    socket = f"grpo-e2e-{secrets.token_hex(4)}"
    with Sshd(tmp_path) as sshd, ChaosProxy(sshd.port) as proxy:
        box = {
            "name": "h200",
            "host": "127.0.0.1",
            "port": proxy.port,
            "user": sshd.user,
            "key": str(sshd.user_key),
            "repo": str(repo),
            "root": str(root),
            "engine": [str(BIN / "grpo-train")],
            "tmux_socket": socket,
            "price_per_hour": 2.49,
        }
        boxes = laptop / "boxes.yaml"
        boxes.write_text(yaml.safe_dump({"boxes": [box]}))
        environment = {
            "HOME": str(laptop),
            "XDG_CONFIG_HOME": str(laptop / "config"),
            "XDG_CACHE_HOME": str(laptop / "cache"),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
        }
        world = World(root, proxy, boxes, environment, socket)
        try:
            yield world
        finally:
            for run in list_runs(root):
                command = [str(BIN / "grpo-train"), "stop", "--now", "--training-run", run.name, "--root", str(root)]
                subprocess.run(command, capture_output=True, timeout=60)
            world.tmux("kill-server")
            unlink_socket(socket)


def launch(screen: Terminal, world: World, processes: int) -> RunDir:
    """Press n, fill the form, launch; returns once the screen shows a reward."""
    screen.press("n")
    screen.wait_for("launch a run on h200", "processes")
    screen.press("Enter")  # opens the list of configs
    screen.wait_for("e2e.yaml")
    screen.type("e2e")
    screen.press("Enter")
    screen.wait_gone("testconfig.yaml")  # the list is closed
    screen.wait_for("e2e.yaml  (on the box)", "subset_frac: 0.1")
    screen.settle()
    tab_to(screen, "processes")
    screen.type(str(processes))
    screen.wait_for("✔", "supervise", f"{processes} process")
    screen.settle()
    screen.press("Enter")  # on to the button
    screen.settle()
    go(screen)
    run = eventually(lambda: list_runs(world.root), 30)[0]
    screen.wait_for("running", timeout=90)
    eventually(lambda: sum(1 for _ in run.read_log("train_log.jsonl")) >= 3, 90)
    screen.wait_for("step 3", "reward", timeout=30)
    return run


def tab_to(screen: Terminal, label: str) -> None:
    """Tab through the form to the field called ``label``."""
    order = ["config", "text", "start from", "processes", "overrides", "run name"]
    for _ in range(order.index(label)):
        screen.press("Tab")
        screen.settle()  # Textual hands a key to the widget that has the focus when the key arrives


def test_launch_stop_eval_resume_from_the_keyboard_over_ssh(world: World) -> None:
    with world.app() as screen:
        screen.wait_for("unknown host key", "SHA256:", timeout=30)
        accept(screen)
        screen.wait_for("press n", timeout=30)
        run = launch(screen, world, processes=2)
        status = json.loads(run.status_file.read_text())
        assert (status["state"], status["nproc"]) == ("running", 2)
        assert run.name in world.tmux("list-sessions")

        screen.press("a")
        screen.wait_for("To come back here", "ssh -t", timeout=20)
        screen.press("Enter")
        screen.wait_gone("To come back here")
        screen.wait_for("step ", "reward", f"[{run.name}"[:10], timeout=20)  # tmux's own status line
        screen.press("C-b", "d")
        screen.wait_for("grpo-tui │ h200", timeout=20)
        assert run.observed_state().is_live

        screen.press("s")
        screen.wait_for("stopped", timeout=60)
        eventually(lambda: run.observed_state().state == "stopped", 30)
        stopped_at = max(int(row["step"]) for row in run.read_log("train_log.jsonl"))
        assert run.checkpoint("latest").step == stopped_at
        screen.wait_for(f"step_{stopped_at}", timeout=20)

        screen.press("e")
        screen.wait_for("exact command", "eval", "--steps", timeout=20)
        go(screen)
        table = world.root / "eval_runs" / f"{run.name}_addition" / "consolidated_metrics.csv"
        eventually(table.exists, 90)
        rows = eventually(lambda: list(csv.DictReader(table.open())), 30)
        assert [(row["step"], row["status"]) for row in rows] == [(str(stopped_at), "ok")]
        accuracy = f"{float(rows[0]['accuracy']):.3f}".lstrip("0")
        screen.wait_for(accuracy, timeout=30)

        screen.press("r")
        screen.wait_for("resume", "--from-step", timeout=20)
        screen.settle()
        screen.press("BTab", "BTab")  # back from the button over Cancel to the number of steps
        screen.settle()
        screen.type("3")
        screen.wait_for("--additional-steps 3", timeout=20)
        screen.press("Enter")
        screen.settle()
        go(screen)
        eventually(lambda: run.observed_state().state == "finished", 120)
        screen.wait_for("finished", timeout=30)
    steps = [int(row["step"]) for row in run.read_log("train_log.jsonl")]
    assert steps == list(range(1, stopped_at + 4))
    assert run.checkpoint("final").step == stopped_at + 3
    resumed = [row for _, row in read_jsonl(run.events_file) if row["event"] == "resumed"]
    assert [row["from_step"] for row in resumed] == [stopped_at]


def test_a_broken_link_is_said_the_run_never_notices_and_no_byte_is_lost(world: World, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    world.environment["GRPO_TUI_REPORT"] = str(report)
    with world.app() as screen:
        screen.wait_for("SHA256:", timeout=30)
        accept(screen)
        screen.wait_for("press n", timeout=30)
        run = launch(screen, world, processes=1)

        def steps() -> int:
            return sum(1 for _ in run.read_log("train_log.jsonl"))

        accepted = world.proxy.accepted
        world.proxy.reset()
        eventually(lambda: world.proxy.accepted > accepted, 30)  # it connects again by itself
        screen.wait_for("ms", timeout=30)
        before = steps()
        world.proxy.black_hole()
        screen.wait_for("silent for", timeout=15)
        screen.wait_for("lost", timeout=20)  # 15 s after the last word, and a reconnect's own first try
        eventually(lambda: steps() > before + 5, 60)
        assert run.observed_state().state == "running"
        world.proxy.pass_through()
        screen.wait_gone("lost", timeout=60)

        world.tmux("kill-session", "-t", f"={run.name}")  # like a first Ctrl-C
        eventually(lambda: run.observed_state().state == "stopped", 60)
        last = steps()
        assert run.checkpoint("latest").step == last
        screen.wait_for("stopped", f"step {last}", timeout=30)
        screen.press("l")
        screen.wait_for("console", f"{run.name}: stopped", timeout=20)  # the console's last line
        screen.press("q")
        logs = json.loads(eventually(lambda: report.exists() and report.read_text(), 20))
    train_log = logs[f"training_runs/{run.name}/logs/train_log.jsonl"]
    data = (run.logs / "train_log.jsonl").read_bytes()
    assert (train_log["start"], train_log["end"]) == (0, len(data))
    for path, came in logs.items():
        written = (world.root / path).read_bytes()
        assert came["end"] == len(written), path
        assert came["sha256"] == hashlib.sha256(written[came["start"] :]).hexdigest(), path


def accept(screen: Terminal) -> None:
    """Accept the host key; rejecting it has the focus."""
    screen.press("Right", "Enter")
    screen.wait_gone("SHA256:")


def go(screen: Terminal) -> None:
    """Press the order's button, which has the focus once its command is shown."""
    screen.press("Enter")
    screen.wait_gone("the exact command")
