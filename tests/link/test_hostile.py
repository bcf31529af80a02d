"""What another account, or a hostile box, tried: each of these broke something once."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.processes import boot_id, start_ticks
from remote import gate
from remote.boxes import Box
from remote.events import RunsReported
from remote.transports.paramiko import paramiko_attach_argv
from tests.run_dir.helpers import log
from tests.support.accounts import PYTHON, SharedBox, shared_box
from tests.support.agent import RawAgent, eventually
from tests.support.any_json import nested

WRITE = """
import json, os, sys
os.makedirs(sys.argv[1])
for name, text in json.loads(sys.argv[2]).items():
    open(os.path.join(sys.argv[1], name), "w").write(text)
"""


@pytest.fixture
def box() -> Iterator[SharedBox]:
    with shared_box() as box:
        yield box


# ----------------------------------------------------------------------------------- another account on a shared root


def test_a_status_file_names_only_processes_of_its_owner(box: SharedBox) -> None:
    """A trap: a run of another account whose supervisor is said to be a process of mine, which a kill would end."""
    attacker, me = box.account("daemon"), box.account("nobody")
    agent = me.agent()
    assert agent.request("launch", config_text="obedient", run_name="mine")["ok"]
    status = box.root / "training_runs" / "mine" / "status.json"
    pid = eventually(lambda: _pid(me.run("cat", str(status), check=False)))
    trap = {"state": "running", "pid": pid, "pid_start": start_ticks(pid)}
    trap |= {"host": socket.gethostname(), "boot_id": boot_id()}
    files = {"launch.json": "{}", "status.json": json.dumps(trap)}
    attacker.run(PYTHON, "-c", WRITE, str(box.root / "training_runs" / "trap"), json.dumps(files))
    for op in ("kill", "stop"):
        reply = agent.request(op, run="trap")
        assert not reply["ok"], op
        assert f"kill {pid}" not in json.dumps(reply), "nor is the user told to"
    assert start_ticks(pid) == trap["pid_start"]
    assert agent.request("kill", run="mine")["ok"]
    eventually(lambda: start_ticks(pid) is None)


def _pid(text: str) -> int:
    try:
        return int(json.loads(text)["pid"])
    except ValueError:
        return 0


# ------------------------------------------------------------------------------------------------------ a hostile box


@pytest.mark.parametrize("extra", [nested(40), {str(number): 0 for number in range(10_001)}, "x" * (1 << 21)])
@pytest.mark.parametrize("field", ["error", "processes"])
def test_an_unknown_field_inside_a_row_costs_one_row(field: str, extra: Any) -> None:
    bad = {"run": "bad", "state": "crashed", "error": {"code": "x", "summary": "y", field: extra}}
    update = gate.topic_event("runs", {"value": {"runs": [{"run": "good", "state": "running"}, bad]}})
    assert isinstance(update, RunsReported)
    reply = gate.reply("list_runs", {"ok": True, "result": {"runs": [{"run": "good", "state": "running"}, bad]}})
    for runs in (update.runs, reply["runs"]):
        assert runs[0] == {"run": "good", "state": "running"}
        assert runs[1]["run"] == "bad"


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh"])
@pytest.mark.parametrize(
    "name", ["run 1", "a'; touch PWNED; '", "a'$(touch PWNED)'", "a\\'; touch PWNED; #", "a!b", "a`id`$HOME*;#"]
)
def test_a_session_name_is_one_word_for_any_shell(tmp_path: Path, shell: str, name: str) -> None:
    """A run's directory may have any name, and so its session."""
    if set(name) & set("'\\!"):
        with pytest.raises(ValueError, match="attach to it on the box"):
            paramiko_attach_argv(Box("h200", host="h"), name)
        return
    remote = paramiko_attach_argv(Box("h200", host="h"), name)[-1]
    (tmp_path / "tmux").write_text('#!/bin/sh\nfor word; do :; done\nprintf %s "$word" > received\n')
    (tmp_path / "tmux").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    try:
        subprocess.run([shell, "-c", remote], cwd=tmp_path, env=environment, timeout=120, capture_output=True)
    except FileNotFoundError:
        pytest.skip(f"{shell} is not installed")
    assert not list(tmp_path.glob("PWNED*"))
    assert (tmp_path / "received").read_text() == f"={name}"
    assert shlex.split(remote)[-1] == f"={name}"


# ----------------------------------------------------------------------------------- files that never end or never open


def make_sparse(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)


def supersede_everything(run: RunDir) -> None:
    log(run, 1)
    make_sparse(run.logs / "train_log.jsonl")
    run.log_event("resumed", step=1, superseded={"train_log.jsonl": [0, 1 << 40]})


@pytest.mark.parametrize("damage", [lambda run: make_sparse(run.events_file), supersede_everything])
def test_a_file_of_a_terabyte_is_not_read(root: Path, damage: Callable[[RunDir], None]) -> None:
    run = create_run(root, {"config_text": "x"}, "bad")
    damage(run)
    create_run(root, {"config_text": "x"}, "good")
    agent = RawAgent(root)
    rows = {row["run"]: row["state"] for row in agent.request("list_runs")["result"]["runs"]}
    assert rows["good"] == "starting"
    assert rows["bad"] in ("unreadable", "starting")
    assert "ok" in agent.request("show_run", run="bad")
    agent.close()


def test_a_stop_does_not_wait_for_a_pipe(root: Path) -> None:
    run = create_run(root, {"config_text": "x"}, "bad")
    run.events_file.unlink(missing_ok=True)
    os.mkfifo(run.events_file)
    agent = RawAgent(root)
    reply = agent.request("stop", run="bad")
    agent.close()
    assert "not a regular file" in json.dumps(reply)
