"""Runs in W&B: the real ``wandb`` against a server that speaks what it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_train.backup.runs import back_up_run
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import utc_now
from grpo_train.run_dir.identity import run_identity
from grpo_train.tracking.wandb import process
from grpo_tui import cli
from tests.run_dir.helpers import log
from tests.support.backups import folder_destination
from tests.support.clock import TestClock
from tests.support.engine import REPOSITORY, at_start, environment, grpo_train, wait_for, write_config
from tests.support.histories import make_run
from tests.support.patience import PATIENCE
from tests.support.wandb_server import KEY, WandbServer, wandb_server

SIDECAR = (
    "import sys, os\nfrom grpo_train.tracking.wandb import process, sidecar\nsidecar.EVERY_S = 0.2\n"
    "process.FINISH_S = float(sys.argv.pop())\nos._exit(sidecar.main(sys.argv[1:]))"
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WandbServer]:
    with wandb_server() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("ENTITY", "PROJECT", "RUN_GROUP", "TAGS", "MODE"):
            monkeypatch.delenv(f"WANDB_{name}", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield running


def tracked(run: RunDir, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = grpo_train("track", "--training-run", run.name, *words, root=run.root)
    assert done.returncode == code, done.stderr
    return done


def synced(folder: Path, where: Path) -> None:
    """Sync offline files with the server."""
    done = subprocess.run(
        [Path(sys.executable).with_name("wandb"), "sync", folder],
        env=environment(), capture_output=True, text=True, timeout=120 * PATIENCE, cwd=where,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def identity(run: RunDir) -> str:
    return run_identity(run.path).identity


def test_a_run_is_sent_once(tmp_path: Path, server: WandbServer) -> None:
    run = make_run(tmp_path, "a", steps=5, accuracy=(0.4, 0.5))
    assert f"/me/grpo-tui/runs/{identity(run)}" in tracked(run).stdout
    (sent,) = server.runs.values()
    assert (sent.id, sent.name, sent.group, sent.state) == (identity(run), "a", "a", "finished")
    assert sent.column("train/step") == [1, 2, 3, 4, 5]
    assert sent.column("train/reward") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert list(zip(sent.column("train/global_step")[5:], sent.column("eval/gsm8k/accuracy"), strict=True)) == [
        (0, 0.4), (10, 0.5),
    ]  # fmt: skip
    assert sent.config["optimizer"]["value"]["learning_rate"] == 1e-5
    assert sent.summary["state"] == "finished"
    log(run, 6)
    assert tracked(run).stdout.startswith("1 entries sent")
    assert sent.column("train/step") == [1, 2, 3, 4, 5, 6]


def test_a_rewind_is_another_run_of_the_group(tmp_path: Path, server: WandbServer) -> None:
    run = make_run(tmp_path, "a", steps=4, state="crashed")
    run.log_event("resumed", step=2, from_step=2, superseded=run.supersede_after(2))
    log(run, 3)
    tracked(run)
    first, second = (server.runs[f"{identity(run)}{suffix}"] for suffix in ("", "-r1"))
    assert first.column("train/step") == [1, 2, 3, 4]
    assert second.column("train/step") == [1, 2, 3]
    assert (first.group, second.group) == ("a", "a")
    assert (first.state, second.state) == ("finished", "failed")


def test_offline_files_can_be_synced(tmp_path: Path, server: WandbServer) -> None:
    run = make_run(tmp_path, "a", steps=5)
    folder = tracked(run, "--mode", "offline").stdout.strip().rpartition("wandb sync ")[2]
    assert server.requests == 0
    synced(Path(folder), tmp_path)
    (sent,) = server.runs.values()
    assert (sent.id, sent.state) == (identity(run), "finished")
    assert sent.column("train/reward") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_refused_key_is_named(tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "a")
    server.fails_with = 401
    assert "401" in tracked(run, code=1).stderr
    monkeypatch.delenv("WANDB_API_KEY")
    assert "no API key" in tracked(run, code=2).stderr


# --------------------------------------------------------------------------------------------------- the sidecar


def started(run: RunDir, mode: str = "online", finish_s: float = 300.0) -> subprocess.Popen[bytes]:
    log = (run.path / "sidecar_output").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-c", SIDECAR, str(run.path), mode, str(finish_s)], stdin=subprocess.PIPE,
            env=environment(), stdout=log, stderr=log, cwd=REPOSITORY, start_new_session=True,
        )  # fmt: skip


def ended(sidecar: subprocess.Popen[bytes]) -> int:
    assert sidecar.stdin is not None
    sidecar.stdin.close()
    return sidecar.wait(120 * PATIENCE)


def live_run(root: Path, steps: int) -> RunDir:
    """A run that is live on another host, as fresh as it can be."""
    return make_run(root, "a", state="running", steps=steps, began=time.time(), host="elsewhere")


def set_state(run: RunDir, state: str) -> None:
    status = json.loads(run.status_file.read_text())
    run.status_file.write_text(json.dumps({**status, "state": state, "updated_at": utc_now()}))


def test_rows_arrive_while_it_runs(tmp_path: Path, server: WandbServer) -> None:
    run = live_run(tmp_path, 2)
    sidecar = started(run)
    wait_for(lambda: identity(run) in server.runs and len(server.runs[identity(run)].rows) == 2, "two rows", 120)
    sent = server.runs[identity(run)]
    assert sent.state == "running"
    log(run, 3)
    wait_for(lambda: len(sent.rows) == 3, "the third row", 120)
    run.log_event("resumed", step=1, from_step=1, superseded=run.supersede_after(1))
    log(run, 2)
    set_state(run, "crashed")
    assert ended(sidecar) == 0
    again = server.runs[f"{identity(run)}-r1"]
    assert (sent.column("train/step"), again.column("train/step")) == ([1, 2, 3], [1, 2])
    assert (sent.state, again.state) == ("finished", "failed")


def test_a_restart_continues_where_w_and_b_is(tmp_path: Path, server: WandbServer) -> None:
    run = live_run(tmp_path, 3)
    first = started(run)
    wait_for(lambda: identity(run) in server.runs and len(server.runs[identity(run)].rows) == 3, "the rows", 120)
    os.killpg(first.pid, 9)
    first.wait()
    log(run, 4)
    set_state(run, "finished")
    assert ended(started(run)) == 0
    assert server.runs[identity(run)].column("train/step") == [1, 2, 3, 4]


def next_second() -> None:
    """W&B names the folders of its files by the second."""
    now = time.strftime("%S")
    wait_for(lambda: time.strftime("%S") != now, "the next second")


def test_a_killed_offline_one_is_written_again(tmp_path: Path, server: WandbServer) -> None:
    run = live_run(tmp_path, 3)
    first = started(run, "offline")
    wait_for(lambda: list(run.path.glob("wandb/offline-run-*/*.wandb")), "the first file", 120)
    os.killpg(first.pid, 9)
    first.wait()
    set_state(run, "stopped")
    next_second()
    assert ended(started(run, "offline")) == 0
    log(run, 4)  # resumed
    next_second()
    assert ended(started(run, "offline")) == 0
    (folder,) = run.path.glob("wandb/offline-run-*")
    synced(folder, tmp_path)
    assert server.runs[identity(run)].column("train/step") == [1, 2, 3, 4]


@pytest.mark.parametrize("fault", ["429", "500", "silence"])
def test_a_server_in_trouble_ends_nothing(tmp_path: Path, server: WandbServer, fault: str) -> None:
    run = live_run(tmp_path, 2)
    server.is_silent, server.fails_with = fault == "silence", 0 if fault == "silence" else int(fault)
    sidecar = started(run, finish_s=0.5)
    wait_for(lambda: server.requests, "a request", 120)
    assert ended(sidecar) == 1
    (event,) = [event for _, event in run.events() if event["event"] == "tracking_failed"]
    assert "grpo-train track --training-run a" in event["hint"]
    server.is_silent, server.fails_with = False, 0
    server.closing.set()
    set_state(run, "finished")
    tracked(run)
    assert server.runs[identity(run)].column("train/step") == [1, 2]


def test_the_supervisor_does_not_wait_for_ever() -> None:
    hanging = subprocess.Popen(["tail", "-f", "/dev/null"], stdin=subprocess.PIPE, start_new_session=True)
    clock = TestClock(skips=True)
    began = clock.monotonic()
    process._end(hanging, clock)
    assert clock.monotonic() - began == process.WAIT_S
    assert hanging.returncode == -9


# ------------------------------------------------------------------------------------------------------- training


LONGER = f"""
from grpo_train.run_dir import give_way
from grpo_train.tracking.wandb import process
give_way.LOWEST = 0
process.WAIT_S *= {PATIENCE}
process.FINISH_S *= {PATIENCE}
"""


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More time for what is left to be sent, at the usual priority: two steps take less time than wandb to start."""
    for variable, value in at_start(tmp_path / "start", LONGER).items():
        monkeypatch.setenv(variable, value)


def trained(root: Path, name: str) -> RunDir:
    cfg = write_config(root, f"{name}.yaml", run__total_steps=2, tracking__wandb="auto", tracking__tensorboard=False)
    done = grpo_train("train", "--cfg", cfg, "--run-name", name, root=root)
    assert done.returncode == 0, done.stderr
    assert re.search(r"tracking.wandb: auto -> online \(http://\S+ can be reached\)", done.stdout)
    assert KEY not in done.stdout + done.stderr
    return RunDir(root / "training_runs" / name)


@pytest.mark.usefixtures("patient")
def test_training_is_tracked(make_root: Callable[[], Path], server: WandbServer) -> None:
    run = trained(make_root(), "tracked")
    (event,) = [event for _, event in run.events() if event["event"] == "tracking"]
    assert event["url"].endswith(identity(run))
    tracked(run)  # what a slow machine did not send in time
    sent = server.runs[identity(run)]
    assert sent.state == "finished"
    assert sent.column("train/reward") == [row["reward"] for row in run.read_log("train_log.jsonl")]
    written = [path for path in run.path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert written == []


@pytest.mark.usefixtures("patient")
def test_training_ignores_a_refused_key(make_root: Callable[[], Path], server: WandbServer) -> None:
    server.fails_with = 401
    run = trained(make_root(), "refused")
    assert run.observed_state().state == "finished"
    events = [event for _, event in run.events() if event["event"] == "tracking_failed"]
    assert len(events) == 1
    assert "401" in events[0]["error"]


# ------------------------------------------------------------------------------------------------------ read back


def test_runs_are_read_back(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    run = make_run(tmp_path, "night", steps=3)
    tracked(run)
    assert cli.main(["history", "rebuild", "--root", str(tmp_path), "--box", "h200-a"]) == 0
    capsys.readouterr()
    assert cli.main(["wandb", "runs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["state"], row["rows"]) == (identity(run), "finished", 3)
    assert row["history"] == {"name": "night", "box": "h200-a", "state": "finished"}
    assert cli.main(["wandb", "show", "night"]) == 0
    shown = capsys.readouterr().out
    assert "train/reward = 0.5" in shown
    assert "train/global_step" in shown
    assert cli.main(["wandb", "runs"]) == 0
    assert "night on h200-a" in capsys.readouterr().out
    assert cli.main(["wandb", "show", "nigth"]) == 2
    assert "did you mean night?" in capsys.readouterr().err
    server.fails_with = 401
    assert cli.main(["wandb", "runs"]) == 1
    assert "answered 401: check WANDB_API_KEY" in capsys.readouterr().err


def test_a_run_is_sent_from_its_backup(tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "box", "a", steps=5, accuracy=(0.4,))
    to = folder_destination(tmp_path / "disk")
    back_up_run(run.root, "training_runs", "a", to)
    expected = identity(run)
    shutil.rmtree(tmp_path / "box")
    (tmp_path / "empty" / "training_runs").mkdir(parents=True)
    settings = tmp_path / "config" / "grpo-tui"
    settings.mkdir(parents=True)
    (settings / "backup.yaml").write_text(f"destinations: [{{name: disk, folder: {tmp_path / 'disk'}}}]\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    gone = RunDir(tmp_path / "empty" / "training_runs" / "a")
    assert "add --from DESTINATION" in tracked(gone, code=2).stderr
    assert "snapshot 1" in tracked(gone, "--from", "disk").stdout
    (sent,) = server.runs.values()
    assert (sent.id, sent.name, sent.state, sent.column("train/step")) == (expected, "a", "finished", [1, 2, 3, 4, 5])
    assert sent.column("eval/gsm8k/accuracy") == [0.4]
    assert not gone.path.exists(), "nothing is restored"
