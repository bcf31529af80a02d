"""Backups that the agent starts: the real engine in a tmux session."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.job import working_on
from grpo_train.run_dir.errors import UserError
from remote.boxes import Box
from remote.client import BoxClient
from remote.protocol import RemoteError
from tests.support.agent import ask, connected, eventually
from tests.support.backups import bytes_of, make_run
from tests.support.stores import other_disk

ENGINE = ["env", f"PYTHONPATH={Path(__file__).resolve().parents[2]}", sys.executable, "-m", "grpo_train.cli"]
"""The engine of this checkout."""


def row(client: BoxClient) -> dict[str, Any]:
    return next(each for each in ask(client, "list_runs")["runs"] if each["run"] == "a.b")


def finish(client: BoxClient, name: str) -> int:
    """Wait for the command of a session to exit; returns its status."""

    def ended() -> dict[str, Any] | None:
        found = {session["name"]: session for session in ask(client, "list_sessions")["sessions"]}
        session = found.get(name)
        return session if session and session["dead"] and session["exit_status"] is not None else None

    return int(eventually(ended, timeout=120, what=f"the end of {name}")["exit_status"])


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The second destination of backup.yaml, on another disk than the root; the first does not exist."""
    config = tmp_path / ".config" / "grpo-tui"
    config.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with other_disk(tmp_path) as folder:
        rows = f"  - name: gone\n    folder: {tmp_path / 'gone'}\n  - name: disk\n    folder: {folder}\n"
        (config / "backup.yaml").write_text(f"destinations:\n{rows}")
        yield folder


def test_back_up_clean_up_restore(box: Box, root: Path, disk: Path) -> None:
    run = make_run(root, "a.b", 2, 4)
    real = dataclasses.replace(box, engine=ENGINE)
    with connected(real) as (client, _):
        dry = ask(client, "back_up", run="a.b", steps="latest", to="disk", dry_run=True)
        expected = ["backup", "--training-run", "a.b", "--steps", "latest", "--to", "disk", "--root", str(root)]
        assert dry["argv"][len(ENGINE) :] == expected
        assert not ask(client, "list_sessions")["sessions"]
        destinations = ask(client, "list_destinations")["destinations"]
        assert [(each["name"], each["kind"]) for each in destinations] == [("gone", "folder"), ("disk", "folder")]

        failing = ask(client, "back_up", run="a.b", idempotency_key="j")
        assert finish(client, failing["session"]) == 2
        with pytest.raises(RemoteError) as caught:
            ask(client, "plan_cleanup", run="a.b", to="disk")
        assert caught.value.code == "no_backup"

        started = ask(client, "back_up", run="a.b", to="disk", idempotency_key="k")
        assert (started["session"], started["started"]) == ("backup_a_b", True)
        assert finish(client, "backup_a_b") == 0, ask(client, "capture_pane", session="backup_a_b")["text"]
        backup = row(client)["backup"]
        assert (backup["destination"], backup["step"], backup["behind"]) == ("disk", 4, 0)
        assert ask(client, "back_up", run="a.b", to="disk", idempotency_key="k")["started"] is False
        (stored,) = ask(client, "list_backups", source="disk")["backups"]
        assert (stored["name"], stored["here"], stored["snapshots"][0]["steps"]) == ("a.b", True, [2, 4])

        plan = ask(client, "plan_cleanup", run="a.b", to="disk")
        assert [each["step"] for each in plan["removed"]] == [2]
        assert (plan["read_back"], plan["destination"], plan["run"]) == (1, "disk", "a.b")
        assert plan["read_back_age_s"] < 3_600
        assert {each["step"] for each in plan["kept"]} == {4}
        before = bytes_of(run.training_state)
        assert finish(client, ask(client, "clean_up", run="a.b", to="disk")["session"]) == 0
        assert [each.step for each in run.checkpoints()] == [4]
        name = f"a.b--{stored['identity']}"
        assert finish(client, ask(client, "restore", run=name, source="disk")["session"]) == 0
        assert bytes_of(run.training_state) == before


def test_a_failed_command_is_in_the_row(box: Box, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo-train", "backup", "--training-run", "a.b"])
    make_run(root, "a.b", 2)
    with connected(box) as (client, _):
        with suppress(UserError), working_on(root, "training_runs", "a.b", "backup", "disk") as job:
            job.update(phase="sending", bytes=5, bytes_total=10)
            raise UserError("no route to the store", code="unreachable")
        failed = row(client)["transfer"]
        assert (failed["phase"], failed["error"]) == ("failed", "no route to the store")
        assert failed["again"] == "grpo-train backup --training-run a.b"
        with working_on(root, "training_runs", "a.b", "backup", "disk"):
            eventually(lambda: row(client)["transfer"]["phase"] != "failed")
        eventually(lambda: "transfer" not in row(client))
        status = root / "transfers" / "training_runs.a.b" / "status.json"
        killed = json.loads(status.read_text()) | {"state": "running", "pid": 1, "pid_start": 1}
        status.write_text(json.dumps(killed))
        eventually(lambda: "killed" in row(client).get("transfer", {}).get("error", ""))


def test_commands_of_the_forms(box: Box, root: Path) -> None:
    make_run(root, "a.b", 2)
    with connected(box) as (client, _):

        def command(op: str, **params: Any) -> tuple[str, list[str]]:
            reply = ask(client, op, dry_run=True, **params)
            return reply["session"], reply["argv"][1 : reply["argv"].index("--root")]

        assert command("archive", run="a.b", step=0, note="two words") == (
            "archive_a_b", ["archive", "a.b", "--step", "0", "--note", "two words"],
        )  # fmt: skip
        assert command("back_up_all", to="s3") == ("backup_all-runs", ["backup-all", "--to", "s3"])
        assert command("clean_up", run="a.b", keep=3) == (
            "cleanup_a_b", ["cleanup", "--training-run", "a.b", "--keep", "3", "--yes"],
        )  # fmt: skip
        assert command("verify_backup", run="a.b", to="s3") == ("verify_a_b", ["verify-backup", "a.b", "--to", "s3"])
        name = f"old--{'a' * 16}"
        assert command("restore", run=name, source="s3", snapshot=7, steps="logs") == (
            "restore_old",
            ["restore", "--training-run", name, "--from", "s3", "--snapshot", "7", "--steps", "logs"],
        )
        session, argv = command("restore", run=name, as_name="new.one", resume=True)
        assert (session, argv[-3:]) == ("new_one", ["--as", "new.one", "--resume"])
        for op, params in (("restore", {"run": "../up"}), ("restore", {"run": "ok", "as_name": "-x"})):
            with pytest.raises(RemoteError) as caught:
                command(op, **params)
            assert caught.value.code == "bad_name"


def test_one_backup_of_a_run_at_a_time(box: Box, root: Path) -> None:
    make_run(root, "a.b", 2)
    with connected(box) as (client, _):
        ask(client, "back_up", run="a.b")
        for run, code in (("a.b", "session_live"), ("nobody", "no_run")):
            with pytest.raises(RemoteError) as caught:
                ask(client, "back_up", run=run)
            assert caught.value.code == code


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_the_run_of_another_account_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remote.agent.box import BoxContext
    from remote.agent.operations import HANDLERS
    from remote.protocol import Settings
    from remote.protocol.backups import BackUpRequest

    run = make_run(root, "a.b")
    os.chown(run.path, 65_534, 65_534)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(RemoteError) as caught:
        HANDLERS["back_up"](BoxContext(Settings(), root, None), BackUpRequest("a.b"))
    assert caught.value.code == "not_ours"
