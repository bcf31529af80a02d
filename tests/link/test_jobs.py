"""Launch, stop, kill and resume under faults: killed agents and laptops, broken engines, full disks, shells."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from grpo_train.run_dir import create_run, open_run
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.version import FORMAT, VERSION
from remote.agent import doctor
from remote.agent.box import BoxContext
from remote.agent.operations import HANDLERS
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import Link, RunsReported
from remote.protocol import RemoteError
from remote.protocol.jobs import LaunchRequest
from tests.remote.test_jobs import state
from tests.support.agent import Recorder, ask, connected, eventually, refusal
from tests.support.clock import TestClock
from tests.support.job_faults import MOMENTS, agent_killed, engines, laptop_killed
from tests.support.mounts import small_disk

SEED = int(os.environ.get("GRPO_LINK_SEED", "12"))
VERSION_LINE = f'[ "$1" = --version ] && {{ echo "grpo-train {VERSION} (format {FORMAT})"; exit 0; }}'


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def engine(folder: Path, script: str, head: str = "#!/bin/sh") -> Path:
    """An engine that answers ``--version``, then does what the script says."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "grpo-train"
    path.write_text(f"{head}\n{VERSION_LINE}\n{script}\n")
    path.chmod(0o755)
    return path


@contextmanager
def linked(box: Box) -> Iterator[tuple[BoxClient, Recorder]]:
    """A client that is connected."""
    with connected(box) as (client, recorder):
        recorder.wait_link(Link.CONNECTED)
        yield client, recorder


def row_of(client: BoxClient, run: str) -> dict[str, Any]:
    return next(row for row in ask(client, "list_runs")["runs"] if row["run"] == run)


# ------------------------------------------------------------------------------------------------- killed in the middle


@pytest.mark.parametrize("op", MOMENTS)
@pytest.mark.parametrize("victim", [agent_killed, laptop_killed])
def test_a_request_happens_once(box: Box, op: str, victim: Callable[..., str]) -> None:
    seed = f"{SEED}-{victim.__name__}-{op}"
    print(f"seed {seed}:", victim(box, op, random.Random(seed), "run_one"))


def test_a_repeated_key_gets_the_first_answer(box: Box, root: Path) -> None:
    with linked(box) as (client, _):
        launch = {"config_text": "obedient", "run_name": "r", "idempotency_key": "a"}
        first = ask(client, "launch", **launch)
        eventually(lambda: state(root, "r") == "running")
        assert ask(client, "stop", run="r", idempotency_key="b")["state"] == "running"
        eventually(lambda: state(root, "r") == "stopped")
        assert ask(client, "stop", run="r", idempotency_key="b") == {"run": "r", "state": "running"}
        assert refusal(client, "stop", run="r", idempotency_key="c").code == "not_running"
        assert ask(client, "launch", **launch) == {**first, "started": False}
        evaluation = {"ckpt_path": "models/x", "idempotency_key": "d"}
        started = ask(client, "evaluate", **evaluation)
        assert ask(client, "evaluate", **evaluation) == {**started, "started": False}
        killed = ask(client, "kill", session=started["session"], idempotency_key="e")
        assert ask(client, "kill", session=started["session"], idempotency_key="e") == killed
        assert "idempotency" not in " ".join(started["argv"])
    records = list((root / "training_runs").glob(".requests*/*"))
    assert records
    assert all(file.stat().st_mode & 0o077 == 0 for file in records)


def test_a_recall_starts_nothing(box: Box, root: Path) -> None:
    with linked(box) as (client, _):
        unknown = {"recall": True, "idempotency_key": "never sent"}
        assert refusal(client, "launch", config_text="obedient", **unknown).code == "not_received"
        run = ask(client, "launch", config_text="obedient", idempotency_key="sent")["run"]
        eventually(lambda: state(root, run) == "running")
        assert ask(client, "launch", config_text="obedient", recall=True, idempotency_key="sent")["run"] == run
        for op in ("stop", "kill"):
            assert refusal(client, op, run=run, **unknown).code == "not_received"
        assert state(root, run) == "running"
        ask(client, "kill", run=run)


def test_a_refused_request_can_be_repeated(box: Box, root: Path) -> None:
    with linked(box) as (client, _):
        assert refusal(client, "stop", run="r", idempotency_key="k").code == "no_run"
        ask(client, "launch", config_text="obedient", run_name="r")
        eventually(lambda: state(root, "r") == "running")
        assert ask(client, "stop", run="r", idempotency_key="k")["state"] == "running"
        eventually(lambda: state(root, "r") == "stopped")


def test_a_stop_is_not_repeated_on_a_resumed_run(box: Box, root: Path) -> None:
    """An agent was killed after it recorded that the stop began; the run ended and was started again."""
    with linked(box) as (client, _):
        ask(client, "launch", config_text="obedient", run_name="r")
        eventually(lambda: state(root, "r") == "running")
        ask(client, "stop", run="r", idempotency_key="k")
        (record,) = (root / "training_runs").glob(".requests*/stop-*")
        record.write_text("".join(line for line in record.open() if "reply" not in line))
        eventually(lambda: state(root, "r") == "stopped")
        assert ask(client, "stop", run="r", idempotency_key="k") == {"run": "r", "state": "stopped"}
        record.write_text("".join(line for line in record.open() if "reply" not in line))
        status = read_json(root / "training_runs/r/status.json") or {}
        run = open_run(root, "r")
        run.status_file.unlink()
        eventually(lambda: all(row["dead"] for row in ask(client, "list_sessions")["sessions"]))
        ask(client, "launch", config_text="obedient", run_name="other")
        eventually(lambda: state(root, "other") == "running")
        shutil.copy(root / "training_runs/other/status.json", run.status_file)  # live, and started later
        assert status["started_at"] != (run.read_status() or {})["started_at"]
        assert ask(client, "stop", run="r", idempotency_key="k")["state"] == "running"
        assert not run.stop_requested()
        assert ask(client, "kill", run="other")["state"] == "killed"


# ------------------------------------------------------------------------------------------------------- dead panes


def test_a_supervisor_that_never_started_is_crashed(box: Box, tmp_path: Path, root: Path) -> None:
    """Two agents see it; one records it."""
    # tmux drops what it has not read when the command ends.
    script = "for i in $(seq 30); do echo line $i; done; echo 'cannot start' >&2; sleep 1; exit 9"
    own = dataclasses.replace(box, engine=[str(engine(tmp_path / "env", script))])
    with linked(own) as (client, recorder), linked(own) as (_, other):
        run = ask(client, "launch", config_text="x")["run"]
        for each in (recorder, other):
            each.wait(lambda e: isinstance(e, RunsReported) and [r["state"] for r in e.runs] == ["crashed"])
        error = row_of(client, run)["error"]
        assert error["summary"] == "the supervisor did not start (exit status 9): cannot start"
        assert error["exit_code"] == 9
        assert error["console_tail"] == [*(f"line {i}" for i in range(12, 31)), "cannot start"]
    events = [row["event"] for row in open_run(root, run).read_log("events.jsonl")]
    assert events == ["launched", "crashed"]


SLEEPS = "test $1 != check-launch || exit 1\nexec sleep 600"
"""An engine that starts, and checks no launch."""


@pytest.mark.parametrize("snippet", ["test -z $TMUX_PANE", "[ -z $TMUX_PANE ] || exec /no/such/python"])
def test_a_failed_activation_is_a_crash(box: Box, tmp_path: Path, snippet: str) -> None:
    """It works when the engine is examined, and fails in the session."""
    folder = engine(tmp_path / "env", SLEEPS).parent
    own = dataclasses.replace(box, engine=[], activate=f"export PATH={folder}:$PATH; {snippet}")
    with linked(own) as (client, recorder):
        run = ask(client, "launch", config_text="x")["run"]
        recorder.wait(lambda e: isinstance(e, RunsReported) and [r["state"] for r in e.runs] == ["crashed"])
        error = row_of(client, run)["error"]
        assert (error["exit_code"], error["code"]) in ((1, "internal"), (127, "no_engine"))


def test_a_run_that_was_killed_while_it_started(box: Box, tmp_path: Path, root: Path) -> None:
    own = dataclasses.replace(box, engine=[str(engine(tmp_path / "env", SLEEPS))])
    with linked(own) as (client, _):
        run = ask(client, "launch", config_text="x")["run"]
        assert ask(client, "kill", run=run)["state"] == "killed"
        client.clock.advance(60)
        events = [row["event"] for row in open_run(root, run).read_log("events.jsonl")]
        assert events == ["launched", "kill_asked", "killed"]


# ----------------------------------------------------------------------------------------------------------- engine


def test_an_engine_that_may_not_be_executed(box: Box, tmp_path: Path, root: Path) -> None:
    """The script is executable; its interpreter is not."""
    python = tmp_path / "env/python"
    path = engine(python.parent, "exit 0", head=f"#!{python}")
    shutil.copy("/bin/sh", python)
    own = dataclasses.replace(box, engine=[str(path)])
    with linked(own) as (client, _):
        assert ask(client, "launch", config_text="x", dry_run=True)["argv"]
        python.chmod(0)  # the engine's own file is unchanged
        for op, params in (
            ("launch", {"config_text": "x", "dry_run": True}),
            ("launch", {"config_text": "x"}),
            ("evaluate", {"ckpt_path": "models/x", "dry_run": True}),
        ):
            error = refusal(client, op, **params)
            assert error.code == "no_engine"
            assert "exit status 126" in error.message
            assert "ermission denied" in error.message
        check = next(check for check in ask(client, "doctor")["checks"] if check["name"] == "engine")
        assert (check["ok"], "exit status 126" in check["detail"]) == (False, True)
        python.chmod(0o755)
        assert ask(client, "launch", config_text="x", dry_run=True)["argv"]
    assert not list((root / "training_runs").glob("[!.]*")) if (root / "training_runs").exists() else True


@pytest.mark.parametrize("by", ["engine", "activate"])
def test_an_unchanged_engine_is_run_once(box: Box, tmp_path: Path, by: str) -> None:
    path = engine(tmp_path / "env", "exit 0")
    counted = path.read_text().replace("#!/bin/sh", f'#!/bin/sh\necho "$1" >> {tmp_path}/runs')
    path.write_text(counted)
    settings = {"engine": [str(path)]} if by == "engine" else {"engine": [], "activate": f"PATH={path.parent}:$PATH"}
    with linked(dataclasses.replace(box, **settings)) as (client, _):
        for _ in range(3):
            ask(client, "launch", config_text="x", dry_run=True)
            ask(client, "doctor")
        assert (tmp_path / "runs").read_text().splitlines().count("--version") == 1
        path.write_text(f"{counted}# changed\n")
        ask(client, "launch", config_text="x", dry_run=True)
        assert (tmp_path / "runs").read_text().splitlines().count("--version") == 2


def test_a_slow_engine_may_still_be_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once a minute, so that a form does not wait each time."""
    asked: list[list[str]] = []

    def too_slow(box: BoxContext, argv: list[str], timeout_s: float) -> NoReturn:
        asked.append(argv)
        raise subprocess.TimeoutExpired(argv, timeout_s)

    monkeypatch.setattr("remote.agent.engine.run_engine", too_slow)
    path = engine(tmp_path, "exec sleep 60")
    clock = TestClock()
    box = BoxContext.from_settings({"root": str(tmp_path), "engine": [str(path)]}, clock)
    for times in (1, 2):
        for _ in range(3):
            assert HANDLERS["launch"](box, LaunchRequest("x", dry_run=True))["argv"]
        with pytest.raises(RemoteError, match="did not answer --version within 25 s"):
            doctor.CHECKS["engine"](box)
        assert len(asked) == times
        clock.advance(60)


def test_an_unreadable_script_is_not_the_oldest_engine(box: Box, tmp_path: Path) -> None:
    """Python exits with 2 for it, like the usage error of version 0.1.0."""
    with linked(dataclasses.replace(box, engine=["python3", str(tmp_path / "gone")])) as (client, _):
        error = refusal(client, "launch", config_text="x", dry_run=True)
        assert (error.code, "exit status 2" in error.message) == ("no_engine", True)


# ----------------------------------------------------------------------------------------------------------- shells


@pytest.mark.parametrize("shell", ["bash", "fish", "tcsh", "zsh", "nologin"])
def test_no_shell_parses_a_command(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, tmux_socket: str
) -> None:
    program = shutil.which(shell, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if not program:
        pytest.skip(f"{shell} is not installed")
    monkeypatch.setenv("SHELL", program)
    root = tmp_path / "a b;$(touch pwned)`x`'\\#{pid}\"!1 \n*é\\';"
    root.mkdir()
    with linked(dataclasses.replace(box, root=str(root))) as (client, _):
        run = ask(client, "launch", config_text="obedient", run_name="r.1")["run"]
        eventually(lambda: state(root, run) == "running")
        option = subprocess.run(
            ["tmux", "-L", tmux_socket, "show-options", "-gv", "default-shell"], capture_output=True, text=True
        )
        assert option.stdout.strip() == program
        assert ask(client, "kill", run=run)["state"] == "killed"
    assert not list(tmp_path.rglob("pwned"))


# -------------------------------------------------------------------------------------------------------- full disk


def fill(folder: Path, *, files: bool = False) -> None:
    """Write until the disk takes no byte; with ``files``, no file either."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    with suppress(OSError):
        for number in range(100_000 if files else 0):
            (folder / f"filler{number}").touch()


def free(folder: Path) -> None:
    for file in folder.glob("filler*"):
        file.unlink()


def test_a_stop_on_a_full_disk(box: Box, tmp_path: Path) -> None:
    """An empty file still fits, and what was kept in reserve is enough for the end."""
    with small_disk(tmp_path / "disk") as root, linked(dataclasses.replace(box, root=str(root))) as (client, _):
        ask(client, "launch", config_text="frugal", run_name="r")
        eventually(lambda: state(root, "r") == "running")
        fill(root)
        reply = ask(client, "stop", run="r", idempotency_key="k")
        assert reply == {"run": "r", "state": "running", "note": "the disk is full: it may not be able to save"}
        eventually(lambda: not engines(root, "r"))
        eventually(lambda: state(root, "r") == "stopped")


def test_a_stop_that_no_file_can_carry(box: Box, tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", files=64) as root,
        linked(dataclasses.replace(box, root=str(root))) as (client, _),
    ):
        ask(client, "launch", config_text="frugal", run_name="r")
        eventually(lambda: state(root, "r") == "running")
        fill(root, files=True)
        note = ask(client, "stop", run="r", idempotency_key="k")["note"]
        assert "No space left on device: it was sent SIGTERM instead and ends without saving" in note
        eventually(lambda: not engines(root, "r"))


def test_a_kill_on_a_full_disk_is_recorded(box: Box, tmp_path: Path) -> None:
    """From what the run kept in reserve."""
    with small_disk(tmp_path / "disk") as root, linked(dataclasses.replace(box, root=str(root))) as (client, _):
        ask(client, "launch", config_text="frugal", run_name="r")
        eventually(lambda: state(root, "r") == "running")
        fill(root)
        reply = ask(client, "kill", run="r", idempotency_key="k")
        assert (reply["state"], reply["left"], "note" in reply) == ("killed", [], False)
        assert (engines(root, "r"), state(root, "r")) == ([], "killed")


@pytest.mark.parametrize("observer", ["same agent", "next agent"])
def test_a_kill_that_no_file_can_carry_is_recorded_later(box: Box, tmp_path: Path, observer: str) -> None:
    with small_disk(tmp_path / "disk", files=64) as root:
        own = dataclasses.replace(box, root=str(root))
        run = root / "training_runs/r"
        with linked(own) as (client, recorder):
            ask(client, "launch", config_text="frugal", run_name="r")
            eventually(lambda: state(root, "r") == "running")
            fill(root, files=True)
            reply = ask(client, "kill", run="r", idempotency_key="k")
            assert (reply["state"], reply["left"]) == ("killed", [])
            assert "the end is recorded when there is room" in reply["note"]
            assert engines(root, "r") == []
            assert state(root, "r") == "lost"
            if observer == "same agent":
                free(root)
                recorder.wait(lambda e: isinstance(e, RunsReported) and [r["state"] for r in e.runs] == ["killed"])
        free(root)
        with linked(own) as (one, _), linked(own) as (other, _):
            for each in (one.clock, other.clock):
                eventually(lambda: state(root, "r") == "killed", clock=each)
        events = [row["event"] for row in open_run(root, "r").read_log("events.jsonl")]
        assert events.count("killed") == 1
        assert not (run / "control/killed").exists()


def test_a_launch_on_a_full_disk_is_refused(box: Box, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as root, linked(dataclasses.replace(box, root=str(root))) as (client, _):
        create_run(root, {"config_text": "x"}, "first")
        fill(root)
        error = refusal(client, "launch", config_text="obedient", run_name="r", idempotency_key="k")
        assert (error.code, "No space left on device" in error.message) == ("disk_full", True)
        assert [row["run"] for row in ask(client, "list_runs")["runs"]] == ["first"]
        free(root)
        assert ask(client, "launch", config_text="obedient", run_name="r", idempotency_key="k")["started"]
        eventually(lambda: state(root, "r") == "running")
        ask(client, "kill", run="r")
