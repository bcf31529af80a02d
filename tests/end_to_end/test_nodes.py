"""Several machines train one run: namespaces of processes and host names, one disk, the loopback network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from grpo_train.config import load_config
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir import RunDir, RunDirError, create_run
from grpo_train.supervisor import nodes
from grpo_train.supervisor.join import Member, wait_for_run
from grpo_train.supervisor.nodes import Meeting, announced, count_joined, difference, read_meeting, take_place
from grpo_train.train.preflight import check_nodes
from tests.support.engine import (
    REPOSITORY,
    SHORT_GRACE,
    assert_same_run,
    at_start,
    config_text,
    environment,
    grpo_train,
    rows,
    run_of,
    wait_for,
    write_config,
)
from tests.support.patience import PATIENCE
from tests.support.sshd import free_port

SIZES = {"rollout__buffer_size": 12, "train__microbatch_size": 1}
"""For three machines and six processes."""
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]

needs_namespaces = pytest.mark.skipif(
    bool(subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode), reason="needs namespaces (root)"
)


@contextmanager
def machine(name: str, root: Path, port: int, *command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """``grpo-train COMMAND`` on a machine of its own."""
    started = ["sh", "-c", f'hostname {name} && exec "$@"', "sh", sys.executable, "-m", "grpo_train.cli", *command]
    process = subprocess.Popen(
        [*NAMESPACE, *started],
        env=environment(root, GRPO_RENDEZVOUS=f"127.0.0.1:{port}", **variables),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rank_pid(run: RunDir, host: str) -> int:
    """The training process on a machine, as this machine sees it; 0 without one."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            variables = (entry / "environ").read_bytes().split(b"\0") if os.fsencode(run.path) in words else []
        except OSError:
            continue
        if (b"RANK=1" if host == "beta" else b"RANK=0") in variables:
            return int(entry.name)
    return 0


def crashes(run: RunDir) -> list[str]:
    return [event["error"]["summary"] for _, event in run.events() if event["event"] == "crashed"]


def has_crashed(run: RunDir, times: int) -> bool:
    return len(crashes(run)) >= times


def has_trained(run: RunDir, steps: int) -> bool:
    return len(rows(run)) >= steps


@needs_namespaces
def test_two_machines_are_two_processes_and_survive_kills(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """A process of each machine is killed; the run restarts on both, and ends as two processes on one machine do."""
    root, steps, port = make_root(), 20, free_port()
    keys = {"run__total_steps": steps, "run__save_every": 1}
    cfg = write_config(root, run__nodes=2, run__nproc=2, run__max_restarts=1, run__restart_wait=[0], **keys)
    run = run_of(root, "two")
    with ExitStack() as stack:
        other = stack.enter_context(machine("beta", root, port, "join", "two"))
        train = ("train", "--cfg", str(cfg), "--run-name", "two")
        first = stack.enter_context(machine("alpha", root, port, *train, **at_start(tmp_path / "alpha", SHORT_GRACE)))
        for host in ("beta", "alpha"):
            wait_for(partial(has_trained, run, len(rows(run)) + 2), "two steps")
            os.kill(wait_for(partial(rank_pid, run, host), "its process"), signal.SIGKILL)
            wait_for(partial(has_crashed, run, len(crashes(run)) + 1), "the end of the stage")
        said, _ = first.communicate(timeout=240)
        assert first.returncode == 0, said
        joined, _ = other.communicate(timeout=60 * PATIENCE)
        assert other.returncode == 0, joined
    first_crash, second_crash = crashes(run)
    assert first_crash.startswith("rank 1 (pid")
    assert second_crash.startswith("rank 0 (pid")
    assert "was killed by SIGKILL" in first_crash
    assert "was killed by SIGKILL" in second_crash
    assert f"grpo-train join two --root {root}" in said
    assert joined.count("taking part with 1 of 2 processes") == 3
    assert joined.rstrip().endswith("two: finished")
    assert not list((run.path / "control").glob("node*"))
    assert "step 1/" in run.logs.joinpath("console.log").read_text(), "rank 0 is on the first machine"
    one = write_config(root, "one.yaml", run__nproc=2, **keys)
    assert grpo_train("train", "--cfg", one, "--run-name", "one", root=root, timeout=240).returncode == 0
    assert_same_run(run_of(root, "one"), run, steps)


# ------------------------------------------------------------------------------------------------ what is refused


@needs_namespaces
def test_a_machine_with_another_engine_ends_the_run(make_root: Callable[[], Path], tmp_path: Path) -> None:
    root, port = make_root(), free_port()
    cfg = write_config(root, run__total_steps=2, run__nodes=2, run__nproc=2)
    older = at_start(
        tmp_path / "beta", "from grpo_train.supervisor import nodes\nnodes._versions = lambda: {'torch': '2.8.0'}"
    )
    with ExitStack() as stack:
        other = stack.enter_context(machine("beta", root, port, "join", "two", **older))
        train = ("train", "--cfg", str(cfg), "--run-name", "two")
        quick = at_start(tmp_path / "alpha", SHORT_GRACE)
        first = stack.enter_context(machine("alpha", root, port, *train, **quick))
        first.communicate(timeout=240)
        said, _ = other.communicate(timeout=60 * PATIENCE)
    assert (first.returncode, other.returncode) == (1, 2)
    assert "error: this machine's engine differs from the first one's: " in said
    error = (run_of(root, "two").read_status() or {})["error"]
    assert error["code"] == "nodes_differ"
    assert error["summary"].startswith("beta: this machine's engine differs")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create_run(tmp_path / "root", {}, "one")
    run.config_file.write_text(config_text(run__nodes=3, run__nproc=6, **SIZES))
    (run.path / "control").mkdir(exist_ok=True)
    return run


@contextmanager
def meeting_of(run: RunDir) -> Iterator[Meeting]:
    config = load_config(run.config_file.read_text(), source="config.yaml")
    with announced(run, config, ["--until", "3"]) as meeting:
        yield meeting


def test_a_meeting_is_announced_and_ends(run: RunDir) -> None:
    with meeting_of(run) as meeting:
        assert read_meeting(run) == meeting
        assert meeting.processes == 2
        assert meeting.torchrun(2)[:2] == ["--nnodes=3", "--node-rank=2"]
        assert [take_place(run, meeting) for _ in range(2)] == [1, 2]
        assert count_joined(run, meeting) == 3
        with pytest.raises(RunDirError, match=r"trains on 3 machines, and all have joined.*--set run\.nodes=N"):
            take_place(run, meeting)
    assert read_meeting(run) is None
    assert not list((run.path / "control").glob("node*"))


def test_machines_that_differ_are_named(run: RunDir) -> None:
    with meeting_of(run) as meeting:
        assert difference(run, meeting) == ""
        older = replace(meeting, versions={**meeting.versions, "torch": "2.8.0"})
        assert difference(run, older).startswith("this machine's engine differs from the first one's: torch ")
        assert difference(run, older).endswith("here and 2.8.0 there; install the same on both")
        run.config_file.write_text(config_text(run__nodes=2, run__nproc=6))
        assert "config.yaml differs between the machines (SHA-256 " in difference(run, meeting)
        with pytest.raises(RunDirError, match=r"must see one run directory, on a shared disk"):
            Member(run)._take_part(meeting)
        (report,) = (run.path / "control").glob("error_node.*.json")
        assert "nodes_differ" in report.read_text()


def test_a_run_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = threading.Timer(0.2, create_run, (tmp_path, {}, "later"))
    later.start()
    assert wait_for_run(tmp_path, "later").name == "later"
    later.join()
    assert f"waiting for a run named later under {tmp_path}" in capsys.readouterr().err
    with pytest.raises(RunDirError):
        wait_for_run(tmp_path, str(tmp_path / "elsewhere" / "one"))


@pytest.mark.parametrize("given", ["alpha", ":1", "alpha:x"])
def test_an_address_without_a_port_is_refused(run: RunDir, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nodes.ADDRESS_VARIABLE, given)
    with pytest.raises(RunDirError, match=f"GRPO_RENDEZVOUS is '{given}'; expected HOST:PORT"), meeting_of(run):
        pass


def test_the_supervising_machine_cannot_join(run: RunDir) -> None:
    from grpo_train.run_dir import StatusWriter

    status = StatusWriter(run.path)
    status.update(state="running")
    with pytest.raises(RunDirError, match="is supervised on this machine; run grpo-train join on another one"):
        Member(run)._refuse_same_machine()
    status.close()


@pytest.mark.parametrize(
    ("changes", "job_nodes", "message"),
    [
        ({"run__nodes": 2, "run__nproc": 3}, 1, "run.nproc is 3, but run.nodes is 2: it must be a multiple of 2"),
        ({"run__nproc": 2}, 3, "run.nproc is 2, but the job has 3 nodes: it must be a multiple of 3"),
        ({"run__nodes": 2, "run__nproc": 6}, 3, "run.nodes is 2, but the job has 3 nodes; leave run.nodes out"),
    ],
)
def test_processes_are_spread_evenly(
    changes: dict[str, int], job_nodes: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpo_train.train import preflight

    monkeypatch.setattr(preflight, "node_count", lambda: job_nodes)
    config = load_config(config_text(**changes, **SIZES), source="config.yaml")
    with pytest.raises(PolicyError, match=message):
        check_nodes(config)
