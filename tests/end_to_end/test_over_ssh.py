"""The main job as a user does it: the app in a terminal, a box behind a real sshd, a run on two processes."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from grpo_train.run_dir import RunDir, list_runs
from grpo_train.run_dir.files import read_jsonl
from tests.remote.conftest import FAKE_ENGINE
from tests.support.agent import eventually
from tests.support.modes import modes_below
from tests.support.recording_app import make_command
from tests.support.ssh_box import SshBox, choose_config, confirm, connect, ssh_box, tab_to
from tests.support.terminal import Terminal

CONFIG = {
    "run": {"total_steps": 2000, "save_every": 1000},
    "model": {"backbone": "tiny", "adapter": "none"},
    "task": {"name": "addition"},
    "rollout": {"buffer_size": 8, "num_generations": 4, "max_completion_length": 32},
    "optimizer": {"learning_rate": 1.0e-4},
    "eval": {"batch_size": 256, "subset_frac": 0.1},
}


@contextmanager
def box_with(folder: Path, root: Path, **settings: Any) -> Iterator[SshBox]:
    """A box with ``e2e.yaml`` in its clone."""
    repo = folder / "repo"
    (repo / "config").mkdir(parents=True)
    (repo / "config" / "e2e.yaml").write_text(yaml.safe_dump(CONFIG))
    with ssh_box(folder, root, {"repo": str(repo), **settings}) as box:
        yield box


def launch(screen: Terminal, box: SshBox, processes: int) -> RunDir:
    """Launch e2e.yaml; returns once the screen shows a reward."""
    choose_config(screen, "e2e", "e2e.yaml  (on the box)")
    screen.wait_for("subset_frac: 0.1")
    tab_to(screen, "processes")
    screen.type(str(processes))
    screen.wait_for("✔", "supervise", f"{processes} process")
    screen.press("Enter")
    screen.wait_for_focus("Launch")
    confirm(screen)
    run = eventually(lambda: list_runs(box.root), 30)[0]
    screen.wait_for("running", timeout=90)
    eventually(lambda: sum(1 for _ in run.read_log("train_log.jsonl")) >= 3, 90)
    screen.wait_for("step 3", "reward", timeout=30)
    return run


def test_launch_stop_evaluate_resume_by_key(tmp_path: Path, root: Path) -> None:
    with box_with(tmp_path, root) as box, box.app() as screen:
        connect(screen)
        run = launch(screen, box, processes=2)
        status = json.loads(run.status_file.read_text())
        assert (status["state"], status["nproc"]) == ("running", 2)
        assert run.name in box.tmux("list-sessions")

        screen.press("a")
        screen.wait_for("To return", "ssh -t", timeout=20)
        screen.press("Enter")
        screen.wait_gone("To return")
        screen.wait_for("step ", "reward", f"[{run.name}"[:10], timeout=20)  # the status line of tmux
        screen.detach(run.name)
        screen.wait_for("grpo-tui │ h200", timeout=20)
        assert run.observed_state().is_live

        screen.press("s")
        screen.wait_for("resumes it later")
        screen.press("Enter")
        screen.wait_for("stopped", timeout=60)
        eventually(lambda: run.observed_state().state == "stopped", 30)
        stopped_at = max(int(row["step"]) for row in run.read_log("train_log.jsonl"))
        assert run.checkpoint("latest").step == stopped_at
        screen.wait_for(f"step_{stopped_at}", timeout=20)

        screen.press("e")
        screen.wait_for("exact command", "eval", "--steps", timeout=20)
        confirm(screen)
        table = box.root / "eval_runs" / f"{run.name}_addition" / "consolidated_metrics.csv"
        eventually(table.exists, 90)
        rows = eventually(lambda: list(csv.DictReader(table.open())), 30)
        assert [(row["step"], row["status"]) for row in rows] == [(str(stopped_at), "ok")]
        accuracy = f"{float(rows[0]['accuracy']):.3f}".lstrip("0")
        screen.wait_for(accuracy, timeout=30)

        screen.press("r")
        screen.wait_for("resume", "--from-step", timeout=20)
        for label in ("Resume", "Cancel", "overrides", "processes", "more steps"):
            screen.wait_for_focus(label)
            if label != "more steps":
                screen.press("BTab")
        screen.type("3")
        screen.wait_for("--additional-steps 3", timeout=20)
        screen.press("Enter")
        screen.wait_for_focus("Resume")
        confirm(screen)
        eventually(lambda: run.observed_state().state == "finished", 120)
        screen.wait_for("finished", timeout=30)
    steps = [int(row["step"]) for row in run.read_log("train_log.jsonl")]
    assert steps == list(range(1, stopped_at + 4))
    assert run.checkpoint("final").step == stopped_at + 3
    assert (
        set(modes_below(run.path).values()) == set(modes_below(table.parent).values()) == {"drwx------", "-rw-------"}
    )
    resumed = [row for _, row in read_jsonl(run.events_file) if row["event"] == "resumed"]
    assert [row["from_step"] for row in resumed] == [stopped_at]


def test_a_broken_link_loses_no_byte(tmp_path: Path, root: Path) -> None:
    """The engine is a stand-in, which logs a step every 0.1 s."""
    report = tmp_path / "report.json"
    with (
        box_with(tmp_path, root, engine=[str(FAKE_ENGINE)]) as box,
        box.app(make_command(tmp_path, report)) as screen,
    ):
        connect(screen)
        run = launch(screen, box, processes=1)

        def steps() -> int:
            return sum(1 for _ in run.read_log("train_log.jsonl"))

        def shown() -> int:
            """The newest step on the screen."""
            return max(map(int, re.findall(r"step (\d+)", screen.screen())), default=0)

        accepted = box.proxy.accepted
        box.proxy.reset()
        eventually(lambda: box.proxy.accepted > accepted, 30)  # it reconnects
        before = steps()
        eventually(lambda: shown() > before, 30)
        screen.wait_for("● ", " ms", timeout=30)
        before = steps()
        box.proxy.black_hole()
        screen.wait_for("silent for", timeout=15)
        screen.wait_for("lost", timeout=20)  # 15 s after the last message, plus one attempt to reconnect
        eventually(lambda: steps() > before + 5, 60)
        assert run.observed_state().state == "running"
        box.proxy.pass_through()
        screen.wait_gone("lost", timeout=60)

        screen.press("s")
        screen.wait_for("resumes it later")
        screen.press("Enter")
        eventually(lambda: run.observed_state().state == "stopped", 60)
        screen.wait_for("stopped", f"{steps()}/100", timeout=30)
        screen.press("q")
        logs = json.loads(eventually(lambda: report.exists() and report.read_text(), 20))
    train_log = logs[f"training_runs/{run.name}/logs/train_log.jsonl"]
    data = (run.logs / "train_log.jsonl").read_bytes()
    assert (train_log["start"], train_log["end"]) == (0, len(data))
    for path, came in logs.items():
        written = (box.root / path).read_bytes()
        assert came["end"] == len(written), path
        assert came["sha256"] == hashlib.sha256(written[came["start"] :]).hexdigest(), path
