"""A box that several accounts share: modes of files, and what another account owns."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from tests.support.accounts import Account, SharedBox, shared_box
from tests.support.agent import RawAgent, eventually
from tests.support.modes import modes_below


@pytest.fixture
def box() -> Iterator[SharedBox]:
    with shared_box() as box:
        yield box


@pytest.fixture
def owner(box: SharedBox) -> Account:
    return box.account("daemon")


@pytest.fixture
def other(box: SharedBox) -> Account:
    return box.account("nobody")


def launch(agent: RawAgent, name: str) -> dict[str, Any]:
    return agent.request("launch", config_text="obedient", run_name=name)


def row(agent: RawAgent, name: str) -> dict[str, Any]:
    reply = agent.request("list_runs")
    assert reply["ok"], reply
    return next((row for row in reply["result"]["runs"] if row["run"] == name), {"state": ""})


def launched(account: Account, name: str, **settings: Any) -> RawAgent:
    """An agent whose account launched a run that is now running."""
    agent = account.agent(**settings)
    reply = launch(agent, name)
    assert reply["ok"], reply
    eventually(lambda: row(agent, name)["state"] == "running")
    eventually(lambda: row(agent, name)["step"] > 0)
    return agent


def refusal(agent: RawAgent, op: str, **params: Any) -> tuple[str, str]:
    reply = agent.request(op, **params)
    assert not reply["ok"], reply
    return reply["error"]["code"], f"{reply['error']['message']} {reply['error']['hint']}"


def check(agent: RawAgent, name: str) -> dict[str, Any]:
    return next(check for check in agent.request("doctor")["result"]["checks"] if check["name"] == name)


def test_private_runs_beside_each_other(box: SharedBox, owner: Account, other: Account) -> None:
    owner.run("sh", "-c", "umask 022; tmux new-session -d sleep 600")  # a server with a umask of its own
    first = launched(owner, "theirs")
    run = RunDir(box.root / "training_runs" / "theirs")
    modes = modes_below(run.path)
    assert {"launch.json", "status.json", "logs/train_log.jsonl", "logs/events.jsonl"} <= modes.keys()
    assert set(modes.values()) == {"-rw-------", "drwx------"}
    assert check(first, "umask")["detail"] == "077: new runs are readable by their owner only"

    agent = launched(other, "mine")
    assert row(agent, "mine")["owner"] == ""
    assert row(first, "theirs")["state"] == "running"

    theirs = row(agent, "theirs")
    place = str(run.path)
    message = (
        f"{place} belongs to daemon, and nobody may not read it; on the box: sudo -u daemon chmod -R go+rX {place}"
    )
    assert theirs == {
        "run": "theirs", "state": "unreadable", "layout": "run", "step": 0,
        "error": {"code": "unreadable", "summary": message},
    }  # fmt: skip
    for op in ("show_run", "stop", "kill", "resume"):
        assert refusal(agent, op, run="theirs") == ("not_ours", f"{message} ")
    assert agent.request("stop", run="mine")["ok"]
    owner.run(*shlex.split(message.partition("sudo -u daemon ")[2]))
    eventually(lambda: row(agent, "theirs")["state"] == "running")


def test_readable_run_of_another_account(box: SharedBox, owner: Account, other: Account) -> None:
    first = launched(owner, "theirs", umask="022")
    run = RunDir(box.root / "training_runs" / "theirs")
    assert set(modes_below(run.path).values()) == {"-rw-r--r--", "drwxr-xr-x"}
    agent = other.agent()
    theirs = row(agent, "theirs")
    assert (theirs["state"], theirs["owner"]) == ("running", "daemon")
    pid = (run.read_status() or {})["pid"]
    kill = f"theirs is running as daemon, and nobody may not end it; on the box: sudo kill {pid} "
    assert refusal(agent, "kill", run="theirs") == ("not_ours", kill)
    code, message = refusal(agent, "stop", run="theirs")
    assert code == "not_ours"
    assert message.startswith(f"{run.path} belongs to daemon, and nobody may not stop it; on the box: sudo -u daemon ")
    owner.run(*shlex.split(message.partition("sudo -u daemon ")[2]))  # the command does what it says
    eventually(lambda: row(agent, "theirs")["state"] == "stopped")
    assert row(first, "theirs")["state"] == "stopped"


def test_root_of_another_account(box: SharedBox, owner: Account, other: Account) -> None:
    root = box.home_root(owner)
    launch(owner.agent(root, umask="022"), "theirs")
    agent = other.agent(root)
    runs = root / "training_runs"
    denied = f"{runs} belongs to daemon, and nobody may not write to it; on the box: sudo chown nobody {runs}"
    code, message = refusal(agent, "launch", config_text="obedient", run_name="mine")
    assert code == "bad_root"
    assert denied in message
    found = check(agent, "root")
    assert (found["ok"], found["detail"]) == (False, denied)
    assert check(owner.agent(root), "root")["ok"]

    owner.run("chmod", "700", str(root))
    agent.send({"type": "subscribe", "id": 1, "topic": "runs"})
    update = agent.until(lambda frame: frame["type"] == "update")
    assert update["error"]["code"] == "bad_root"
    assert f"{root} belongs to daemon, and nobody may not read it" in update["error"]["message"]
    owner.run("chmod", "755", str(root))
    agent.send({"type": "subscribe", "id": 2, "topic": "runs"})  # wakes the topic
    agent.until(lambda frame: frame["type"] == "update" and "value" in frame)


def test_tmux_directory_of_another_account(box: SharedBox, owner: Account, other: Account) -> None:
    folder = other.home / f"tmux-{other.run('id', '-u').strip()}"
    owner.run("mkdir", str(folder))
    agent = other.agent()
    message = f"tmux's directory {folder} belongs to daemon, and nobody may not use it"
    hint = f"on the box: sudo rm -r {folder}"
    found = check(agent, "tmux")
    assert (found["ok"], found["detail"], found["hint"]) == (False, message, hint)
    for op, params in (("launch", {"config_text": "obedient"}), ("list_sessions", {})):
        assert refusal(agent, op, **params) == ("tmux", f"{message} {hint}")
    agent.send({"type": "subscribe", "id": 1, "topic": "sessions"})
    update = agent.until(lambda frame: frame["type"] == "update")
    assert update["error"] == {"code": "tmux", "message": message, "hint": hint}
    owner.run("rmdir", str(folder))
    other.run("mkdir", "-m", "755", str(folder))
    assert check(agent, "tmux")["hint"] == f"on the box: chmod 700 {folder}"
    other.run("chmod", "700", str(folder))
    assert check(agent, "tmux")["ok"]


def test_modes_of_an_existing_root_stay(box: SharedBox, owner: Account) -> None:
    owner.run("mkdir", "-p", "-m", "755", f"{box.root}/training_runs/old")
    owner.run("sh", "-c", f"umask 022; echo '{{}}' > {box.root}/training_runs/old/launch.json")
    owner.run("chmod", "775", f"{box.root}/training_runs")
    before = {name: mode for name, mode in modes_below(box.root).items() if "old" in name or name == "training_runs"}
    launched(owner, "new")
    after = modes_below(box.root)
    assert {name: after[name] for name in before} == before
    assert stat.filemode(os.stat(box.root).st_mode) == "drwxrwxrwt"


def test_malformed_umask_ends_the_conversation(root: Path) -> None:
    with pytest.raises(AssertionError, match="invalid umask '8'"):
        RawAgent(root, process=True, umask="8")
