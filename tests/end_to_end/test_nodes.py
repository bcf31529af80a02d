"""Several machines train one run: namespaces of processes and host names, one disk, the loopback network."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from grpo_train.config import load_config
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter, create_run
from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from grpo_train.supervisor import nodes
from grpo_train.supervisor.join import GRACE_S, POLL_S, JoinedMachine, wait_for_run
from grpo_train.supervisor.nodes import Meeting, announced, count_joined, difference, read_meeting, take_place
from grpo_train.train.preflight import check_nodes
from tests.support import micro
from tests.support.clock import TestClock
from tests.support.engine import (
    REPOSITORY,
    assert_same_run,
    at_start,
    config_text,
    environment,
    grpo_train,
    run_of,
    wait_for,
    write_config,
)
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.supervising import fake_command

make_root, tiny_model = micro.make_root, micro.tiny_model

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


LOST = """
import os, signal, sys
from pathlib import Path
if "grpo_train.train" in sys.orig_argv and "RANK" in os.environ:
    from grpo_train.tasks.addition import AdditionTask
    judged, judge = 0, AdditionTask.judge
    def lost(*arguments, **options):
        global judged
        judged += 1
        if judged > 12 and Path({fuse!r}).exists():
            Path({fuse!r}).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return judge(*arguments, **options)
    AdditionTask.judge = lost
"""
"""For :func:`at_start`: the training process of a machine is killed once, in its second step."""


@needs_namespaces
def test_two_machines_are_two_processes_and_survive_a_kill(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """A process of the other machine is killed; the run restarts on both, and ends as two processes of one machine."""
    root, steps, port = make_root(), 4, free_port()
    keys = {"run__total_steps": steps, "run__save_every": 1}
    cfg = write_config(root, run__nodes=2, run__nproc=2, run__max_restarts=1, run__restart_wait=[0], **keys)
    run, fuse = run_of(root, "two"), tmp_path / "fuse"
    lost = at_start(tmp_path / "beta", LOST.format(fuse=str(fuse)))
    fuse.touch()
    with ExitStack() as stack:
        other = stack.enter_context(machine("beta", root, port, "join", "two", **lost))
        train = ("train", "--cfg", str(cfg), "--run-name", "two")
        first = stack.enter_context(machine("alpha", root, port, *train))
        said, _ = first.communicate(timeout=240 * PATIENCE)
        assert first.returncode == 0, said
        joined, _ = other.communicate(timeout=60 * PATIENCE)
        assert other.returncode == 0, joined
    (crash,) = [event["error"]["summary"] for _, event in run.events() if event["event"] == "crashed"]
    assert crash.startswith("rank 1 (pid")
    assert "was killed by SIGKILL" in crash
    assert f"grpo-train join two --root {root}" in said
    assert joined.count("taking part with 1 of 2 processes") == 2
    assert joined.rstrip().endswith("two: finished")
    assert not list((run.path / "control").glob("node*"))
    assert "step 1/" in run.logs.joinpath("console.log").read_text(), "rank 0 is on the first machine"
    one = write_config(root, "one.yaml", run__nproc=2, **keys)
    assert grpo_train("train", "--cfg", one, "--run-name", "one", root=root, timeout=240).returncode == 0
    assert_same_run(run_of(root, "one"), run, steps)


# -------------------------------------------------------------------------------------------- one of the machines


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
            JoinedMachine(run)._take_part(meeting)
        (report,) = (run.path / "control").glob("error_node.*.json")
        assert "nodes_differ" in report.read_text()


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@contextmanager
def in_thread(clock: TestClock, work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Work of another machine, once it waits."""
    thread = threading.Thread(target=work, name="machine")
    thread.start()
    clock.wait_for_threads(1)
    yield thread
    thread.join()


def test_a_run_is_waited_for(tmp_path: Path, clock: TestClock, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[RunDir] = []
    with in_thread(clock, lambda: found.append(wait_for_run(tmp_path, "later", clock))):
        clock.advance(1000)
        assert found == []
        run = create_run(tmp_path, {}, "later")
        clock.advance(POLL_S)
    assert found == [run]
    assert capsys.readouterr().err.count(f"waiting for a run named later under {tmp_path}") == 1
    with pytest.raises(RunDirError):
        wait_for_run(tmp_path, str(tmp_path / "elsewhere" / "one"))


@contextmanager
def taking_part(run: RunDir, clock: TestClock, *words: str) -> Iterator[threading.Thread]:
    """Another machine's part in a stage of a live run, whose processes do what the words say."""
    command = patch("grpo_train.supervisor.join.torchrun_command", lambda *_: fake_command(run, *words))
    with closing(StatusWriter(run.path)) as status, command:
        status.update(state="running")
        with (
            meeting_of(run) as meeting,
            in_thread(clock, lambda: JoinedMachine(run, clock)._take_part(meeting)) as thread,
        ):
            wait_for(lambda: find_by_run_id(run_id_of(run.path)), "its process")
            yield thread


def test_a_machine_ends_what_is_left_of_a_stage(run: RunDir, clock: TestClock) -> None:
    """It may be saving; then it gets SIGTERM, and what ignores that is killed with its workers."""
    with taking_part(run, clock, "deaf") as thread:
        console = run.logs / f"console_{socket.gethostname()}.log"
        wait_for(lambda: console.exists() and "deaf" in console.read_text(), "its output")
        clock.advance(1000)
        assert len(find_by_run_id(run_id_of(run.path))) == 2
        (run.path / "control" / "nodes.json").unlink()  # the end of the stage
        clock.advance(POLL_S + GRACE_S - 0.1)
        assert "SIGTERM" not in console.read_text()
        clock.advance(0.1)
        wait_for(lambda: "SIGTERM" in console.read_text(), "SIGTERM")
        clock.advance(GRACE_S - 0.1)
        assert len(find_by_run_id(run_id_of(run.path))) == 2
        clock.advance(0.2)
        thread.join()
    assert find_by_run_id(run_id_of(run.path)) == []


def test_a_stage_that_ends_by_itself_is_not_waited_for(run: RunDir, clock: TestClock) -> None:
    with taking_part(run, clock, "waits", "exit:1") as thread:
        (run.path / "control" / "nodes.json").unlink()
        clock.advance(POLL_S + 0.1)
        (run.path / "control" / "go").touch()
        thread.join()
    assert clock.monotonic() == pytest.approx(1000 + POLL_S + 0.1)


@pytest.mark.parametrize("given", ["alpha", ":1", "alpha:x"])
def test_an_address_without_a_port_is_refused(run: RunDir, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nodes.ADDRESS_VARIABLE, given)
    with pytest.raises(RunDirError, match=f"GRPO_RENDEZVOUS is '{given}'; expected HOST:PORT"), meeting_of(run):
        pass


def test_the_supervising_machine_cannot_join(run: RunDir) -> None:
    status = StatusWriter(run.path)
    status.update(state="running")
    with pytest.raises(RunDirError, match="is supervised on this machine; run grpo-train join on another one"):
        JoinedMachine(run)._refuse_same_machine()
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
