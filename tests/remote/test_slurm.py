"""A box with ``scheduler: slurm``: a real cluster on this machine, jobs in place of tmux sessions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_train.run_dir import open_run
from grpo_train.run_dir.clock import CLOCK
from grpo_tui.kit.attach import plan_job
from remote.agent.once import RequestRecord
from remote.agent.slurm import queue, stop_job
from remote.base import BoxesError
from remote.boxes import Box, parse_boxes
from remote.client import BoxClient
from remote.protocol import RemoteError
from remote.protocol.jobs import StopRequest
from tests.remote.test_shell import Shell
from tests.remote.test_sync import Clone, engine_that_says
from tests.support.agent import Recorder, agents_here, ask, connected, eventually, refusal
from tests.support.saving import small_checkpoint
from tests.support.slurm import Slurm, missing, running_cluster, wait_for_row
from tests.support.terminal import Terminal

__all__ = ["agents_here"]
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def login(box: Box, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield replace(box, scheduler="slurm", slurm={"cpus": 2})
    cluster.clear()


@pytest.fixture
def link(login: Box) -> Iterator[tuple[BoxClient, Recorder]]:
    with connected(login, clock=CLOCK) as pair:  # SLURM takes real time
        yield pair


def test_a_launch_is_a_job(login: Box, root: Path, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an agent of its own process, which has SLURM's configuration from the ``env`` of the box."""
    for name in cluster.environment:
        monkeypatch.delenv(name)
    with connected(replace(login, env=cluster.environment), process=True) as (client, recorder):
        request = {"config_text": "obedient", "run_name": "run_a.b", "idempotency_key": "k1"}
        dry = ask(client, "launch", **request, dry_run=True)
        assert not (root / "training_runs").exists()
        assert not cluster.jobs()
        done = ask(client, "launch", **request)
        assert done["argv"] == dry["argv"] == ["sbatch", str(root / "training_runs" / "run_a.b" / "slurm.sh")]
        assert (done["started"], done["session"], cluster.jobs()) == (True, "", [done["job"]])
        again = ask(client, "launch", **request)
        assert (again["run"], again["job"], again["started"]) == ("run_a.b", done["job"], False)
        row = wait_for_row(recorder, "run_a.b", lambda row: row["state"] == "running" and "job" in row)
        assert row["job"] == {"id": done["job"], "state": "RUNNING", "reason": "", "nodes": "node1", "requeues": 0}
        assert row["host"] == "node1"
        assert refusal(client, "resume", run="run_a.b").code == "run_is_live"
        assert ask(client, "stop", run="run_a.b", by="me")["state"] == "running"
        assert wait_for_row(recorder, "run_a.b", lambda row: row["state"] == "stopped")["state"] == "stopped"
        cluster.wait_for_jobs(0)


@pytest.mark.usefixtures("agents_here")
def test_a_run_that_has_ended_is_resumed_by_the_shell(
    login: Box, root: Path, cluster: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(tmp_path, login, capsys)
    launched = shell.json("launch", str(shell.config), "--run-name", "run_r", "--slurm", "cpus=1")
    eventually(lambda: open_run(root, "run_r").observed_state().state == "running", 30)
    assert shell.json("show", "run_r")["summary"]["state"] == "running"
    shell("stop", "run_r")
    cluster.wait_for_jobs(0)
    small_checkpoint(open_run(root, "run_r"), 1)
    assert "run_r" in shell("resume", "run_r", "--dry-run")[1]
    assert not cluster.jobs()
    resumed = shell.json("resume", "run_r", "--key", "k")
    assert (resumed["started"], resumed["step"], resumed["job"] != launched["job"]) == (True, 1, True)
    assert cluster.jobs() == [resumed["job"]]
    again = shell.json("resume", "run_r", "--key", "k")
    assert (again["started"], again["job"]) == (False, resumed["job"])
    assert "--cpus-per-task=1" in (root / "training_runs" / "run_r" / "slurm.sh").read_text(), "as it was launched"
    eventually(lambda: open_run(root, "run_r").observed_state().state == "running", 30)
    assert shell.json("kill", "run_r", "--yes")["state"] == "killed"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["partition=nosuch"], "invalid partition specified: nosuch"),
        (["partition=short", "time=10:00"], "Requested time limit is invalid"),
        (["nodes=3"], "Node count specification invalid"),
        (["options=--mem=9999999"], "Memory specification can not be satisfied"),
    ],
)
def test_a_refusal_is_in_slurms_words(
    link: tuple[BoxClient, Recorder], root: Path, cluster: Slurm, words: list[str], reason: str
) -> None:
    client, _ = link
    error = refusal(client, "launch", config_text="obedient", slurm=words, idempotency_key="k")
    assert error.code == "slurm"
    assert reason in error.message
    assert not cluster.jobs()
    assert [file for file in root.rglob("*") if file.is_file() and not file.name.endswith("lock")] == []


def test_a_job_waits_for_nodes_that_are_drained(link: tuple[BoxClient, Recorder], cluster: Slurm) -> None:
    client, recorder = link
    cluster.run("scontrol", "update", "NodeName=node[1-2]", "State=DRAIN", "Reason=maintenance")
    try:
        ask(client, "launch", config_text="obedient", run_name="run")
        row = wait_for_row(recorder, "run", lambda row: row["state"] == "pending" and row["job"]["reason"])
        assert "DRAINED" in row["job"]["reason"] or "ReqNodeNotAvail" in row["job"]["reason"]
        session = ask(client, "evaluate", ckpt_path="/models/start")["session"]
        cluster.wait_for_jobs(2)
        assert ask(client, "kill", session=session)["left"] == []
        cluster.wait_for_jobs(1)
    finally:
        cluster.run("scontrol", "update", "NodeName=node[1-2]", "State=RESUME")
    wait_for_row(recorder, "run", lambda row: row["state"] == "running")
    assert ask(client, "kill", run="run")["left"] == []


def test_a_pending_job_can_be_stopped_and_killed(link: tuple[BoxClient, Recorder], root: Path, cluster: Slurm) -> None:
    client, recorder = link
    cluster.submit("--partition=high", "--nodes=2", "--exclusive")
    for name, op, end in (("run_s", "stop", "stopped"), ("run_k", "kill", "killed")):
        ask(client, "launch", config_text="obedient", run_name=name)
        row = wait_for_row(recorder, name, lambda row: row["state"] == "pending")
        assert row["job"]["state"] == "PENDING"
        assert wait_for_row(recorder, name, lambda row: row.get("job", {}).get("reason") in ("Resources", "Priority"))
        assert ask(client, op, run=name)["state"] == end
        assert open_run(root, name).observed_state().state == end
    assert len(cluster.jobs()) == 1


def test_a_job_that_starts_or_ends_before_its_stop_is_stopped(
    link: tuple[BoxClient, Recorder], root: Path, cluster: Slurm
) -> None:
    """Between the agent's look at the queue and its word to SLURM."""
    client, recorder = link
    blocker = cluster.submit("--partition=high", "--nodes=2", "--exclusive")
    ask(client, "launch", config_text="obedient", run_name="run_s")
    wait_for_row(recorder, "run_s", lambda row: row["state"] == "pending")
    run = open_run(root, "run_s")
    pending = queue(root)["run_s"]
    cluster.run("scancel", blocker)
    wait_for_row(recorder, "run_s", lambda row: row["state"] == "running")
    running = queue(root)["run_s"]
    assert stop_job(run, pending, StopRequest(run="run_s"), RequestRecord(""), root)["state"] == "running"
    cluster.wait_for_jobs(0)
    for seen in (pending, running):
        run.clear_stop()
        assert stop_job(run, seen, StopRequest(run="run_s"), RequestRecord(""), root) == {
            "run": "run_s",
            "state": "stopped",
        }
    gone = replace(running, id="99999")  # SLURM refuses, and the queue has the run's job
    ask(client, "launch", config_text="obedient", run_name="run_l")
    wait_for_row(recorder, "run_l", lambda row: row["state"] == "running")
    os.kill((open_run(root, "run_l").read_status() or {})["pid"], signal.SIGSTOP)  # else it may have stopped by then
    with pytest.raises(RemoteError, match="99999"):
        stop_job(open_run(root, "run_l"), gone, StopRequest(run="run_l"), RequestRecord(""), root)


def test_a_kill_is_not_requeued_and_a_job_without_status_is_crashed(
    link: tuple[BoxClient, Recorder], root: Path, cluster: Slurm
) -> None:
    client, recorder = link
    ask(client, "launch", config_text="short", run_name="run_x")
    ask(client, "launch", config_text="obedient", run_name="run_k")
    wait_for_row(recorder, "run_k", lambda row: row["state"] == "running")
    reply = ask(client, "kill", run="run_k", by="me")
    assert (reply["state"], reply["left"], cluster.jobs()) == ("killed", [], [])
    assert open_run(root, "run_k").observed_state().state == "killed"
    row = wait_for_row(recorder, "run_x", lambda row: row["state"] == "crashed")
    assert row["error"]["code"] == "internal"
    assert "fake engine: supervise run_x" in row["error"]["console_tail"][0]


def test_a_job_over_its_memory_is_crashed_in_slurms_words(link: tuple[BoxClient, Recorder], cluster: Slurm) -> None:
    """Without cgroups, the node's daemon kills it, and SLURM calls that FAILED."""
    client, recorder = link
    options = ["options=--mem=5", "options=--acctg-freq=task=1"]  # MB: less than any Python needs
    ask(client, "launch", config_text="obedient", run_name="run_m", slurm=options)
    row = wait_for_row(recorder, "run_m", lambda row: row["state"] == "crashed")
    assert "xceeded" in row["error"]["summary"]
    assert "memory limit" in row["error"]["summary"]
    assert not cluster.jobs(), "it is not requeued"


def test_an_evaluation_is_a_job_of_its_session(link: tuple[BoxClient, Recorder], cluster: Slurm) -> None:
    client, _ = link
    wanted = {"ckpt_path": "/models/start", "name": "start"}
    dry = ask(client, "evaluate", **wanted, dry_run=True)
    assert dry["argv"][:2] == ["srun", "--job-name=eval_start"]
    assert not cluster.jobs()
    started = ask(client, "evaluate", **wanted)
    assert (started["session"], started["argv"]) == ("eval_start", dry["argv"])
    eventually(lambda: "fake engine: eval" in ask(client, "capture_pane", session="eval_start")["text"], 30)
    [job] = cluster.jobs()
    assert cluster.job(job)["JobName"] == "eval_start"
    assert ask(client, "kill", session="eval_start")["left"] == []
    cluster.wait_for_jobs(0)


def test_a_refused_evaluation_leaves_nothing(login: Box) -> None:
    with connected(replace(login, slurm={"partition": "nowhere"}), clock=CLOCK) as (client, _):
        error = refusal(client, "evaluate", ckpt_path="/models/start")
        assert (error.code, "nowhere" in error.message or "partition" in error.message) == ("slurm", True)
        assert ask(client, "list_sessions")["sessions"] == []


def test_job_options_are_checked() -> None:
    def boxes(text: str) -> list[Box]:
        return parse_boxes(f"boxes:\n  - name: c\n    host: login\n    scheduler: slurm\n    slurm: {text}\n", "b.yaml")

    assert boxes('{partition: gpu, nodes: 2, time: "24:00:00", options: [--exclusive]}')[0].slurm["nodes"] == 2
    for text, problem in {
        "{partitions: gpu}": "unknown key 'partitions'; did you mean partition?",
        "{nodes: 0}": "'nodes' must be an integer of 1 or more, not 0",
        "{time: 24:00:00}": "YAML reads",
        "{options: exclusive}": "'options' must be a list",
        "{account: a b}": "'account' must be one word",
        "8": "must be a mapping",
    }.items():
        with pytest.raises(BoxesError, match=r"b\.yaml:5: 'slurm'") as caught:
            boxes(text)
        assert problem in str(caught.value)
    with pytest.raises(BoxesError, match="'slurm' needs 'scheduler: slurm'"):
        parse_boxes("boxes:\n  - name: c\n    host: login\n    slurm: {nodes: 2}\n")


@pytest.mark.usefixtures("agents_here")
def test_attaching_opens_a_shell_in_the_job(
    link: tuple[BoxClient, Recorder], login: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, recorder = link
    job = ask(client, "launch", config_text="obedient", run_name="run_a")["job"]
    wait_for_row(recorder, "run_a", lambda row: row["state"] == "running" and "job" in row)
    argv = plan_job(login, f"job {job}").argv
    shell = Shell(tmp_path, login, capsys)
    assert shell.json("attach", "run_a")["argv"] == argv
    assert shell.json("show", "run_a")["summary"]["job"]["id"] == str(job)
    error = shell.json("capture", "run_a", code=2)["error"]
    assert (error["code"], f"it is job {job} of SLURM" in error["message"]) == ("no_session", True)
    assert "grpo-tui tail run_a console" in error["hint"]
    with Terminal(argv, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}) as terminal:
        terminal.type("echo node:$SLURMD_NODENAME job:$SLURM_JOB_ID")
        terminal.press("Enter")
        terminal.wait_for(f"node:node1 job:{job}")


@pytest.mark.usefixtures("agents_here")
def test_a_cluster_is_brought_up_with_the_code_of_this_machine(
    login: Box,
    root: Path,
    cluster: Slurm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/boxes.md walks through it; the engine is an environment that exists."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    clone = Clone(tmp_path / "clone")
    monkeypatch.chdir(clone.folder)
    shell = Shell(tmp_path, replace(login, code="sync", engine=[str(engine_that_says(tmp_path))]), capsys)
    code, out, errors = shell("up", str(shell.config), "--run-name", "run_up", "--slurm", "cpus=1")
    assert code == 0, errors
    assert "local: run_up trains: step" in out
    assert "run_up was launched as job" in errors
    assert (root / "what").read_text() == "one\n", "it imports the commit that was synced"
    assert open_run(root, "run_up").read_launch()["code"]["commit"] == clone.git("rev-parse", "HEAD")
    clone.commit("two")
    shell.json("sync")
    shell("stop", "run_up")
    cluster.wait_for_jobs(0)
    small_checkpoint(open_run(root, "run_up"), 1)
    assert shell.json("resume", "run_up", code=1)["error"]["code"] == "code_differs"
    shell.json("resume", "run_up", "--code", "now")
    eventually(lambda: (root / "what").read_text() == "one\ntwo\n", 30)
    assert shell.json("kill", "run_up", "--yes")["state"] == "killed"
