"""Files that version 0.1.0 wrote, read by everything that reads runs: the shell, the agent, the app."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from remote.agent.box import BoxContext
from remote.agent.operations import show_run
from remote.protocol.runs import ShowRunRequest
from tests.support.data import FIXTURES
from tests.support.engine import grpo_train, rows, run_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURES / "format_1", tmp_path / "root")


def test_the_shell_reads_runs(root: Path) -> None:
    (row,) = json.loads(grpo_train("runs", "--json", root=root).stdout)
    assert (row["run"], row["state"], row["step"], row["total_steps"]) == ("whole", "finished", 6, 6)
    shown = json.loads(grpo_train("show", "whole", "--json", root=root).stdout)
    (record,) = shown["health"]
    assert (record["code"], record["level"]) == ("", "info")
    assert record["message"].startswith("The gradient noise scale recommends")


def test_log_keys_have_their_new_names(root: Path) -> None:
    steps = rows(run_of(root, "whole"))
    assert all({"groups/all_correct", "accuracy/flexible"} <= step.keys() for step in steps)
    assert not any("groups/all_right" in step for step in steps)
    assert [record["level"] for record in steps[2]["health"]] == ["warning"]


def test_the_agent_reads_evaluations(root: Path) -> None:
    shown = show_run(BoxContext.from_settings({"root": str(root)}), ShowRunRequest("whole"))
    (evaluation,) = shown["evaluations"]
    assert [(row["step"], row["status"], row["flexible_accuracy"]) for row in evaluation["metrics"]] == [
        ("0", "ok", "0.575"),
        ("6", "ok", "0.825"),
    ]


def test_steps_are_compared(root: Path) -> None:
    done = grpo_train("compare", "--training-run", "whole", "--steps", "0,6", root=root)
    assert done.returncode == 0, done.stderr
    assert "10 gained, 0 lost" in done.stdout
