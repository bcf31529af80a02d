"""Finding and ending the processes of a run."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_train.run_dir.processes import (
    _is_starting,
    find_by_run_id,
    identity,
    is_alive,
    kill_all,
    run_id_of,
    signal_quietly,
    start_ticks,
)
from tests.support.engine import wait_for
from tests.support.patience import PATIENCE

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"]


@pytest.fixture
def run_id() -> str:
    return f"test_{secrets.token_hex(6)}"


def start(run_id: str, command: list[str] = SLEEP, **options: object) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        command, env={**os.environ, "GRPO_RUN_ID": run_id}, stdout=subprocess.PIPE, text=True, **options
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return child


def test_identity_rejects_a_reused_pid() -> None:
    me = identity()
    assert is_alive(me.pid, me.pid_start)
    assert not is_alive(me.pid, me.pid_start + 1)
    assert start_ticks(2**22 + 1) is None


def test_a_process_does_not_find_itself(run_id: str) -> None:
    command = "import sys; from grpo_train.run_dir.processes import find_by_run_id as find; print(find(sys.argv[1]))"
    environment = {**os.environ, "GRPO_RUN_ID": run_id}
    found = subprocess.run([sys.executable, "-c", command, run_id], env=environment, capture_output=True, text=True)
    assert found.stdout == "[]\n"


def test_kill_all_ends_only_the_run(run_id: str) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
    )
    mine = [start(run_id), start(run_id, [sys.executable, "-c", stubborn], start_new_session=True)]
    other = start(run_id + "x")
    try:
        assert sorted(find_by_run_id(run_id)) == sorted(child.pid for child in mine)
        assert kill_all(run_id) == []
        assert [child.wait(timeout=60 * PATIENCE) for child in mine] == [-signal.SIGKILL] * 2
        assert other.poll() is None
        assert find_by_run_id(run_id) == []
    finally:
        other.kill()
        other.wait()


def test_signal_to_a_missing_process_is_ignored() -> None:
    assert signal_quietly(2**22 + 1, signal.SIGTERM) is False


PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "GRPO_PARENT_PID": str(os.getpid())})
print("up", flush=True)
print(child.pid, flush=True)
child.wait()
"""


def test_run_id_is_the_same_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in ("real", "demo"):
        (tmp_path / root / "training_runs" / "one").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    runs = {root: tmp_path / root / "training_runs" / "one" for root in ("real", "demo", "link")}
    assert run_id_of(runs["real"]) == run_id_of(runs["link"]) != run_id_of(runs["demo"])
    monkeypatch.chdir(tmp_path)
    assert run_id_of(Path("link/training_runs/one")) == run_id_of(runs["real"])


def test_run_id_may_hold_any_bytes(tmp_path: Path) -> None:
    odd = run_id_of(tmp_path / os.fsdecode(b"caf\xe9 \xc3\xa9=\n"))
    child = start(odd)
    try:
        wait_for(lambda: find_by_run_id(odd) == [child.pid], "the child")
        assert kill_all(odd) == []
    finally:
        child.kill()
        child.communicate()


CHILD = """
import os, time
{imports}
from grpo_train.run_dir.processes import die_with_parent
die_with_parent()
print("prepared", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(
    "imports",
    ["", "while os.getppid() == int(os.environ['GRPO_PARENT_PID']): time.sleep(0.01)"],
    ids=["parent dies later", "parent dies during the imports"],
)
def test_child_dies_with_its_parent(run_id: str, imports: str) -> None:
    parent = start(run_id, [sys.executable, "-c", PARENT, CHILD.format(imports=imports)])
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if not imports:
        assert parent.stdout.readline() == "prepared\n"
    parent.kill()
    parent.wait()
    wait_for(lambda: not find_by_run_id(run_id), f"the end of {pid}", timeout=15)
    assert parent.stdout.read() == ""


def test_a_process_is_found_as_soon_as_it_is_started(run_id: str) -> None:
    """The kernel shows no environment while it starts the program."""
    for _ in range(200):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"GRPO_RUN_ID": run_id}) as child:
            assert find_by_run_id(run_id) == [child.pid]
            child.kill()


def test_neither_kernel_threads_nor_empty_environments_are_waited_for() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"up\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"up\n"
        assert not [pid for pid in (2, child.pid) if _is_starting(pid)]
        child.kill()
