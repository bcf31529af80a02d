"""Runs in W&B: the real ``wandb`` against a server that speaks what it needs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.runs import back_up_run
from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.files import utc_now
from grpo_train.run_dir.identity import run_identity
from grpo_train.tracking.wandb import process
from grpo_tui.box.events import tracking_of
from tests.run_dir.helpers import log
from tests.support.backups import folder_destination
from tests.support.clock import LeapingClock
from tests.support.engine import REPOSITORY, at_start, command_here, config_text, environment, grpo_train, wait_for
from tests.support.histories import make_run
from tests.support.network import needs_root, own_network
from tests.support.patience import PATIENCE
from tests.support.supervising import Supervised, supervised
from tests.support.wandb_server import KEY, WandbServer, wandb_server

SIDECAR = """
import os, sys
from grpo_train.run_dir import machine
from grpo_train.run_dir.clock import CLOCK
from grpo_train.tracking.wandb import sidecar
from tests.support.clock import LeapingClock
machine.LOWEST = 0
os._exit(sidecar.main(sys.argv[1:3], LeapingClock() if sys.argv[3:] else CLOCK))
"""
"""At the usual priority; with a third argument, it takes no time until what is left is given up."""


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


def with_completions(run: RunDir) -> list[list[str]]:
    """Three completions at steps 1 and 3, of which two are asked for; returns what each table has of them."""
    run.config_file.write_text(run.config_file.read_text() + "tracking:\n  wandb_completions: 2\n")
    rows = [{"step": step, "completion": f"{step} {slot}", "gold": 7} for step in (1, 3) for slot in range(3)]
    (run.logs / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [["1 0", "1 1"], ["3 0", "3 1"]]


def completions(tables: dict[str, bytes]) -> list[list[str]]:
    """The completions of each table, in the order of their steps."""
    found = [json.loads(content) for name, content in tables.items() if name.startswith("media/table/completions_")]
    columns = [table["columns"].index("completion") for table in found]
    return sorted([row[at] for row in table["data"]] for table, at in zip(found, columns, strict=True))


def test_a_run_is_sent_once(tmp_path: Path, server: WandbServer) -> None:
    run = make_run(tmp_path, "a", steps=5, accuracy=(0.4, 0.5))
    tables = with_completions(run)
    assert f"/me/grpo-tui/runs/{identity(run)}" in tracked(run).stdout
    (sent,) = server.runs.values()
    assert (sent.id, sent.name, sent.group, sent.state) == (identity(run), "a", "a", "finished")
    assert sent.column("train/step") == [1, 2, 3, 4, 5]
    assert sent.column("train/reward") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert list(zip(sent.column("train/global_step")[5:], sent.column("eval/gsm8k/accuracy"), strict=True)) == [
        (0, 0.4), (10, 0.5),
    ]  # fmt: skip
    assert completions(server.uploads) == tables
    assert [(row["train/step"], row["completions"]["nrows"]) for row in sent.rows if "completions" in row] == [
        (1, 2), (3, 2),
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
    tables = with_completions(run)
    (tmp_path / ".netrc").write_bytes(b"\xff\xfe\xe9")
    done = tracked(run, "--mode", "offline")
    assert done.stdout.startswith("~/.netrc cannot be read: it is not UTF-8; it is left out\n")
    assert "Traceback" not in done.stderr
    folder = done.stdout.strip().rpartition("wandb sync ")[2]
    assert server.requests == 0
    (tmp_path / ".netrc").unlink()
    synced(Path(folder), tmp_path)
    (sent,) = server.runs.values()
    assert (sent.id, sent.state) == (identity(run), "finished")
    assert completions(server.uploads) == tables
    assert sent.column("train/reward") == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_refused_key_is_named(tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "a")
    server.fails_with = 401
    assert "401" in tracked(run, code=1).stderr
    monkeypatch.delenv("WANDB_API_KEY")
    assert "no API key" in tracked(run, code=2).stderr


# --------------------------------------------------------------------------------------------------- the sidecar


def started(run: RunDir, mode: str = "online", *more: str) -> subprocess.Popen[bytes]:
    log = (run.path / "sidecar_output").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-c", SIDECAR, str(run.path), mode, *more], stdin=subprocess.PIPE,
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
    sidecar = started(run, "online", "gives up")
    wait_for(lambda: server.requests, "a request", 120)
    assert ended(sidecar) == 1
    (event,) = [event for _, event in run.events() if event["event"] == "tracking_failed"]
    assert "grpo-train track --training-run a" in event["hint"]
    server.is_silent, server.fails_with = False, 0
    server.closing.set()
    set_state(run, "finished")
    tracked(run)
    assert server.runs[identity(run)].column("train/step") == [1, 2]


@pytest.mark.parametrize(
    ("mode", "does", "error"),
    [
        ("offline", "signal.pause()", "had not ended 30 s after the run, and was killed"),
        ("online", "os.kill(os.getpid(), 9)", "was killed (signal 9)"),
        ("online", "sys.exit(3)", "failed (exit code 3): wandb/sidecar.log"),
        ("online", "process.report_failure(run, 'online', '401'); sys.exit(1)", "401"),
        ("online", "", ""),
    ],
)
def test_what_w_and_b_lacks_is_recorded_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, does: str, error: str
) -> None:
    """Also of a process that is slow to start, stopped or killed, and the command that is named works when pasted."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run = make_run(tmp_path / "my root", "a", steps=3)
    config = load_config(config_text(tracking__wandb=mode))
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom grpo_train.run_dir import RunDir\n"
        f"from grpo_train.tracking.wandb import process\nrun = RunDir(Path({str(run.path)!r}))\n{does}\n"
    )
    sidecar = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=REPOSITORY, start_new_session=True
    )
    monkeypatch.setattr(process, "_start", lambda *_: sidecar)
    said: list[str] = []
    clock = LeapingClock()
    with process.track_run(run, config, said.append, clock):
        if "pause" not in does:
            sidecar.wait(60 * PATIENCE)
    failures = [event for _, event in run.events() if event["event"] == "tracking_failed"]
    assert len(failures) == len(said) == bool(error)
    assert (clock.monotonic() - LeapingClock().monotonic() == process.WAIT_S) == ("pause" in does)
    if error:
        (failure,) = failures
        assert said == [f"W&B: {failure['error']}; {failure['hint']}"]
        assert error in failure["error"]
        assert said[0] in command_here("show", "a", root=run.root).stdout
        assert tracking_of("a", failures).command in said[0]
    if mode == "offline":
        done = grpo_train(*shlex.split(said[0].partition("later: grpo-train ")[2]), root=None)
        assert "wandb sync" in done.stdout, done.stderr


# ----------------------------------------------------------------------------------------------------- supervised


USUAL_PRIORITY = "from grpo_train.run_dir import machine\nmachine.LOWEST = 0"


@contextmanager
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    """A supervisor whose trainer has made two steps, and ends once the file ``go`` exists."""
    for variable, value in at_start(tmp_path / "start", USUAL_PRIORITY).items():
        monkeypatch.setenv(variable, value)
    run = create_run(tmp_path, {}, "tracked")
    run.config_file.write_text(config_text(run__total_steps=2, tracking__wandb="auto"))
    config = load_config(run.config_file.read_text())
    with supervised(run, config, {"train": [["train:2", "waits"]]}) as it:
        yield it


@pytest.fixture
def it(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Supervised]:
    """The same, with a server that answers with the status that is the parameter."""
    server.fails_with = getattr(request, "param", 0)
    with prepared(tmp_path, monkeypatch) as it:
        yield it


def end_of(it: Supervised, event: str) -> dict[str, Any]:
    """Let training end once an event of the tracking is there, which is returned."""
    it.waits_for(event)
    (it.run.path / "control" / "go").touch()
    assert (it.ended(), it.status["state"]) == (0, "finished")
    assert re.search(r"tracking.wandb: auto -> online \(http://\S+ can be reached\)", it.console)
    (found,) = [row for _, row in it.run.events() if row["event"] == event]
    return found


def test_training_is_tracked(it: Supervised, server: WandbServer) -> None:
    run = it.run
    assert end_of(it, "tracking")["url"].endswith(identity(run))
    tracked(run)  # what a slow machine did not send in time
    sent = server.runs[identity(run)]
    assert sent.state == "finished"
    assert sent.column("train/reward") == [row["reward"] for row in run.read_log("train_log.jsonl")] == [0.5, 0.5]
    written = [path for path in run.path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert written == []


@needs_root
def test_without_a_route_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    with own_network(), prepared(tmp_path, monkeypatch) as it:
        it.waits_for("tracking")
        (it.run.path / "control" / "go").touch()
        assert (it.ended(), it.status["state"]) == (0, "finished")
    assert "tracking.wandb: auto -> offline (https://api.wandb.ai cannot be reached)" in it.console
    assert list(it.run.path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize("it", [401], indirect=True)
def test_training_ignores_a_refused_key(it: Supervised, server: WandbServer) -> None:
    assert "401" in end_of(it, "tracking_failed")["error"]


def test_a_trained_run_is_sent(golden: Callable[[str], RunDir], server: WandbServer) -> None:
    run = golden("plain")
    tracked(run)
    (sent,) = server.runs.values()
    assert sent.column("train/reward") == [row["reward"] for row in run.read_log("train_log.jsonl")]


def test_a_run_is_sent_from_its_backup(tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "box", "a", steps=5, accuracy=(0.4,))
    with_completions(run)
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
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "disk").rglob("*")}
    done = tracked(gone, "--from", "disk", code=3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "disk").rglob("*")} == before, "it is only read"
    assert "snapshot 1" in done.stdout
    assert "warning: completions are not sent from a backup: restore the run" in done.stderr
    (sent,) = server.runs.values()
    assert (sent.id, sent.name, sent.state, sent.column("train/step")) == (expected, "a", "finished", [1, 2, 3, 4, 5])
    assert sent.column("eval/gsm8k/accuracy") == [0.4]
    assert not gone.path.exists(), "nothing is restored"
