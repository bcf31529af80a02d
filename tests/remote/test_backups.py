"""Backups that the agent starts: the real engine in a tmux session."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from remote.boxes import Box
from remote.client import BoxClient
from remote.protocol import RemoteError
from tests.support.agent import PATIENT, connected, eventually
from tests.support.backups import make_run


def ask(client: BoxClient, op: str, **params: Any) -> dict[str, Any]:
    return client.request(op, 60, **params).result(90)


def row(client: BoxClient) -> dict[str, Any]:
    return next(each for each in ask(client, "list_runs")["runs"] if each["run"] == "a.b")


def ended(client: BoxClient) -> dict[str, Any] | None:
    """The one session, once its command has exited."""
    (session,) = ask(client, "list_sessions")["sessions"]
    return session if session["dead"] and session["exit_status"] is not None else None


def test_a_run_is_backed_up_in_a_session(box: Box, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / ".config" / "grpo-tui"
    config.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "disk").mkdir()
    (config / "backup.yaml").write_text(f"destinations:\n  - name: disk\n    folder: {tmp_path / 'disk'}\n")
    make_run(root, "a.b", 2, 4)
    real = dataclasses.replace(box, engine=[sys.executable, "-m", "grpo_train.cli"])
    with connected(real, timing=PATIENT) as (client, _):
        dry = ask(client, "back_up", run="a.b", dry_run=True)
        assert dry["argv"][3:] == ["backup", "--training-run", "a.b", "--root", str(root)]
        assert not ask(client, "list_sessions")["sessions"]
        started = ask(client, "back_up", run="a.b", idempotency_key="k")
        assert (started["session"], started["started"]) == ("backup_a_b", True)
        session = eventually(lambda: ended(client), timeout=60)
        assert (session["name"], session["run"]) == ("backup_a_b", "a.b")
        output = ask(client, "capture_pane", session="backup_a_b")["text"]
        assert session["exit_status"] == 0, output
        backup = row(client)["backup"]
        assert (backup["destination"], backup["step"], backup["behind"]) == ("disk", 4, 0)
        assert ask(client, "back_up", run="a.b", idempotency_key="k")["started"] is False


def test_one_backup_of_a_run_at_a_time(box: Box, root: Path) -> None:
    make_run(root, "a.b", 2)
    with connected(box, timing=PATIENT) as (client, _):
        ask(client, "back_up", run="a.b")
        for run, code in (("a.b", "session_live"), ("nobody", "no_run")):
            with pytest.raises(RemoteError) as caught:
                ask(client, "back_up", run=run)
            assert caught.value.code == code


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_the_run_of_another_account_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from remote.agent import jobs
    from remote.agent.context import BoxContext
    from remote.protocol import Settings
    from remote.protocol.operations import BackUpRequest

    run = make_run(root, "a.b")
    os.chown(run.path, 65_534, 65_534)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(RemoteError) as caught:
        jobs.back_up(BoxContext(Settings(), root, None), BackUpRequest("a.b"))
    assert caught.value.code == "not_ours"
