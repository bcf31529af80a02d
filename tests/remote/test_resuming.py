"""Resuming a run whose workflow was edited: the real engine plans it, and the agent wants the edits confirmed."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import load_config
from grpo_train.supervisor.workflow import RunWorkflow
from remote.boxes import Box
from tests.support.agent import ask, connected, eventually, refusal
from tests.support.backups import contents, make_run
from tests.support.engine import MICRO, REPOSITORY, config_text, train_here, write_micro

ENGINE = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "grpo_train.cli"]
"""The engine of this checkout."""
BEFORE = [{"train": {"until": 1}}, "backup"]


@pytest.fixture
def root(make_micro_root: Callable[[], Path]) -> Path:
    return make_micro_root()


def test_an_edited_workflow_is_confirmed_once(box: Box, root: Path) -> None:
    run = train_here(root, write_micro(root, run__total_steps=1), "edited")
    RunWorkflow(run, load_config(config_text(MICRO, run__total_steps=1, workflow__stages=BEFORE))).write()
    params: dict[str, Any] = {"run": "edited", "additional_steps": 1}
    with connected(dataclasses.replace(box, engine=ENGINE)) as (client, _):
        before = contents(run.path)
        plan = ask(client, "plan_resume", **params)
        assert (plan["run"], plan["step"], plan["total_steps"]) == ("edited", 1, 2)
        assert plan["host"]
        assert plan["left"] == ["train to step 2"]
        assert plan["edits"] == [
            {"change": "kept", "stage": "train to step 1", "done": True},
            {"change": "removed", "stage": "back up at step 1", "done": True},
        ]
        assert refusal(client, "resume", **params, confirmation="of other edits").code == "workflow_edited"
        assert contents(run.path) == before
        assert ask(client, "list_sessions")["sessions"] == []
        confirmed = {**params, "confirmation": plan["confirmation"], "idempotency_key": "b"}
        reply = ask(client, "resume", **confirmed)
        assert reply["started"]
        assert "--yes" in reply["argv"]
        over = lambda: run.newest_step() == 2 and not run.observed_state().is_live  # noqa: E731
        eventually(over, timeout=120, what="the end of the resumed run")
    # The record of the answer is lost: the session knows the key, so nobody is asked again.
    (records,) = (root / "training_runs").glob(".requests-*")
    shutil.rmtree(records)
    with connected(dataclasses.replace(box, engine=["false"])) as (client, _):
        again = {**params, "overrides": ["workflow.stages=[train]"]}
        assert not ask(client, "resume", **again, idempotency_key="b")["started"]
        assert refusal(client, "resume", **again, idempotency_key="c").code == "no_answer"


def test_a_resume_with_changes_is_checked(box: Box, root: Path) -> None:
    """In the engine's words, before anything is started; a dry run likewise."""
    train_here(root, write_micro(root, run__total_steps=1), "one")
    params: dict[str, Any] = {"run": "one", "overrides": ["task.name=nope"]}
    with connected(dataclasses.replace(box, engine=ENGINE)) as (client, _):
        for more in ({"dry_run": True}, {}):
            error = refusal(client, "resume", **params, **more)
            assert (error.code, error.message[:31]) == ("bad_task", "task.name: unknown task 'nope';")
        assert ask(client, "list_sessions")["sessions"] == []
    with connected(box) as (client, _):  # an engine that does not answer
        assert "was not checked on the box" in ask(client, "resume", **params, dry_run=True)["note"]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("grpo-train 0.1.5 (format 2)", "box engine 0.1.5 is too old for this"),
        ("something else", "the engine on this box is too old for this"),
    ],
)
def test_an_older_engine_is_named(box: Box, root: Path, tmp_path: Path, version: str, message: str) -> None:
    run = make_run(root, "one", 2)
    RunWorkflow(run, load_config(config_text(run__total_steps=4, workflow__stages=["train", "backup"]))).write()
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo '{version}' && exit\nexit 2\n")
    engine.chmod(0o755)
    with connected(dataclasses.replace(box, engine=[str(engine)])) as (client, _):
        for op in ("plan_resume", "resume"):
            error = refusal(client, op, run="one")
            assert (error.code, error.message) == ("old_engine", message)
            assert error.hint.endswith("git pull && make setup-box")
