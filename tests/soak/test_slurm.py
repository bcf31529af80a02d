"""Training as SLURM jobs, on a real cluster on this machine. Part of ``make soak``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir, open_run
from grpo_train.run_dir.processes import find_by_run_id, run_id_of, signal_quietly
from grpo_train.run_dir.slurm_job import PREEMPTED
from remote.boxes import Box
from remote.client import BoxClient
from remote.protocol import RemoteError
from tests.support import slurm_accounting
from tests.support.agent import Recorder, connected, eventually
from tests.support.engine import (
    GRPO_TRAIN,
    REPOSITORY,
    assert_same_run,
    config_text,
    grpo_train,
    steps_logged,
    train_here,
    wait_for,
)
from tests.support.slurm import Slurm, missing, running_cluster, wait_for_end, wait_for_row

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


def ask(client: BoxClient, op: str, **params: Any) -> dict[str, Any]:
    return client.request(op, 120, **params).result(125)


@contextmanager
def login_node(cluster: Slurm, root: Path, **options: Any) -> Iterator[tuple[BoxClient, Recorder]]:
    """The cluster as a box with the real engine."""
    env = {**cluster.environment, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    box = Box("c", kind="local", root=str(root), engine=GRPO_TRAIN, scheduler="slurm", env=env, slurm=options)
    with connected(box) as pair:
        yield pair
    cluster.clear()


def undisturbed(root: Path, text: str) -> RunDir:
    """The same run in this process."""
    config = root / "config.yaml"
    config.write_text(text)
    return train_here(root, config, "undisturbed")


def preempted(cluster: Slurm, recorder: Recorder, run: str, job: str) -> None:
    """Preempt a job, wait until it is pending, and let it start again."""
    other = cluster.submit("--partition=high", "--nodes=2", "--exclusive")
    row = wait_for_row(recorder, run, lambda row: row["state"] == "pending" and row["job"]["requeues"] == 1)
    assert row["job"]["id"] == job
    cluster.run("scancel", other)
    cluster.start_now(job)


def test_a_preempted_run_ends_bit_for_bit_as_an_undisturbed_one(cluster: Slurm, make_root: Callable[[], Path]) -> None:
    root, text = make_root(), config_text(run__total_steps=200, run__save_every=100)
    with login_node(cluster, root) as (client, recorder):
        job = ask(client, "launch", config_text=text, run_name="run")["job"]
        run = open_run(root, "run")
        wait_for(lambda: steps_logged(run)[-1:] > [2], "steps")
        preempted(cluster, recorder, "run", job)
        assert (run.read_status() or {})["state"] in ("requeued", "starting", "running")
        wait_for_end(recorder, "run")
    asked = [(event["event"], event.get("by")) for _, event in run.events()]
    assert asked.count(("stop_asked", PREEMPTED)) == 1
    assert ("resumed", None) in asked
    assert_same_run(undisturbed(root, text), run, 200)


@contextmanager
def held(pids: list[int]) -> Iterator[None]:
    """Keep processes from running: SLURM sends SIGCONT before it sends SIGTERM."""
    over = threading.Event()

    def hold() -> None:
        while not over.wait(0.001):
            for pid in pids:
                signal_quietly(pid, signal.SIGSTOP)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_save_that_takes_too_long_resumes_from_the_last_checkpoint(
    cluster: Slurm, make_root: Callable[[], Path]
) -> None:
    root, text = make_root(), config_text(run__total_steps=20, run__save_every=2)
    with login_node(cluster, root) as (client, recorder):
        job = ask(client, "launch", config_text=text, run_name="run")["job"]
        run = open_run(root, "run")
        wait_for(lambda: run.newest_step() >= 2, "a checkpoint")
        trainers = find_by_run_id(run_id_of(run.path))
        with held(trainers):
            preempted(cluster, recorder, "run", job)
        wait_for_end(recorder, "run")
    resumed = [event["from_step"] for _, event in run.events() if event["event"] == "resumed"]
    assert len(resumed) == 1
    assert resumed[0] % 2 == 0
    assert_same_run(undisturbed(root, text), run, 20)


def test_a_job_whose_node_fails_continues_on_another(cluster: Slurm, make_root: Callable[[], Path]) -> None:
    root, text = make_root(), config_text(run__total_steps=200, run__save_every=2)
    with login_node(cluster, root) as (client, recorder):
        job = ask(client, "launch", config_text=text, run_name="run")["job"]
        run = open_run(root, "run")
        node = wait_for_row(recorder, "run", lambda row: row["state"] == "running" and "job" in row)["job"]["nodes"]
        wait_for(lambda: run.newest_step() >= 2, "a checkpoint")
        cluster.fail(node, find_by_run_id(run_id_of(run.path)), (run.read_status() or {})["pid"])
        try:
            wait_for_row(recorder, "run", lambda row: row["state"] == "pending")
            cluster.start_now(job)
            row = wait_for_row(recorder, "run", lambda row: row["state"] == "running" and "job" in row)
            assert (row["job"]["requeues"], row["job"]["nodes"] != node) == (1, True)
            wait_for_end(recorder, "run")
        finally:
            cluster.repair(node)
    assert_same_run(undisturbed(root, text), run, 200)


def test_the_controller_may_restart(cluster: Slurm, make_root: Callable[[], Path]) -> None:
    root, text = make_root(), config_text(run__total_steps=2000, run__save_every=1000)
    with login_node(cluster, root) as (client, recorder):
        ask(client, "launch", config_text=text, run_name="run")
        wait_for_row(recorder, "run", lambda row: row["state"] == "running" and "job" in row)
        cluster.end("slurmctld")
        step = steps_logged(open_run(root, "run"))[-1:]
        wait_for_row(recorder, "run", lambda row: [row["step"] - 20] > step and row["state"] == "running")
        cluster.start_controller()
        assert ask(client, "stop", run="run")["state"] == "running"
        wait_for_row(recorder, "run", lambda row: row["state"] == "stopped")


def test_two_nodes_train_as_two_processes_on_one_machine(cluster: Slurm, make_root: Callable[[], Path]) -> None:
    root, text = make_root(), config_text(run__total_steps=40, run__save_every=100)
    with login_node(cluster, root, nodes=2) as (client, recorder):
        larger = config_text(rollout__buffer_size=6)
        error = ask_refused(client, config_text=larger, nproc=3, slurm=["nodes=3"])
        assert "Node count" in error.message
        ask(client, "launch", config_text=text, run_name="run", nproc=2)
        row = wait_for_row(recorder, "run", lambda row: row["state"] == "running" and "job" in row)
        assert row["job"]["nodes"] == "node[1-2]"
        wait_for_end(recorder, "run")
    config = root / "config.yaml"
    config.write_text(text)
    grpo_train("train", "--cfg", config, "--nproc", 2, "--run-name", "one", root=root, timeout=300)
    assert_same_run(open_run(root, "one"), open_run(root, "run"), 40)


def ask_refused(client: BoxClient, **params: Any) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        ask(client, "launch", **params)
    return caught.value


@pytest.mark.skipif(bool(slurm_accounting.missing()), reason=slurm_accounting.missing())
def test_accounting_refuses_a_launch_without_an_account(tmp_path: Path, make_root: Callable[[], Path]) -> None:
    root, text = make_root(), config_text(run__total_steps=2)
    with slurm_accounting.accounting_cluster(tmp_path) as cluster, login_node(cluster, root) as (client, recorder):
        error = ask_refused(client, config_text=text, slurm=["account=nosuch"])
        assert "Invalid account" in error.message
        assert not (root / "training_runs").exists()
        ask(client, "launch", config_text=text, run_name="run", slurm=[f"account={slurm_accounting.ACCOUNT}"])
        wait_for_end(recorder, "run")
        eventually(lambda: "COMPLETED" in cluster.run("sacct", "--noheader", "--format=State"))
