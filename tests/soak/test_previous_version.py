"""A box whose engine is version 0.1.0 (format 1), with this version's agent and app model."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted
from tests.support.agent import connected, eventually
from tests.support.engine import (
    REPOSITORY,
    config_text,
    grpo_train,
    rows,
    run_of,
    steps_logged,
)

PREVIOUS = "abe2103"
"""The last commit of 0.1.0; this repository has it (a shallow clone does not)."""
HELD: dict[str, Any] = {"algorithm__beta": 0.02, "model__adapter": "lora", "algorithm__num_iterations": 2}
"""A step in the middle of a buffer, a reference, probes: all that a checkpoint can hold."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``grpo-train`` of 0.1.0."""
    folder = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(["git", "archive", PREVIOUS, "grpo_train", "config"], cwd=REPOSITORY, capture_output=True)
    assert archive.returncode == 0, f"needs the history of this repository: {archive.stderr.decode()}"
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    script = folder / "grpo-train"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -P -m grpo_train.cli "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def box(root: Path, engine: Path) -> Iterator[Box]:
    socket = f"grpo-soak-{secrets.token_hex(4)}"
    yield Box("old", kind="local", root=str(root), repo=str(engine.parent), engine=[str(engine)], tmux_socket=socket)
    subprocess.run(["tmux", "-L", socket, "kill-server"], capture_output=True, timeout=10)


def ask(client: BoxClient, operation: str, **parameters: Any) -> dict[str, Any]:
    return client.request(operation, 60, **parameters).result(65)


def finished(run: RunDir) -> bool:
    assert run.observed_state().state not in ("crashed", "lost"), (run.logs / "console.log").read_text()
    return run.observed_state().state == "finished"


def test_an_older_engine_is_named_and_works(box: Box, root: Path) -> None:
    with connected(box, process=True) as (client, recorder):
        greeting = recorder.wait_for(BoxGreeted)
        assert (greeting.engine.version, greeting.engine.format) == ("0.1.0", 1)
        points = {point["name"]: point for point in ask(client, "doctor")["checks"]}
        assert points["engine"]["ok"]
        assert "0.1.0" in points["engine"]["detail"]
        text = config_text(run__total_steps=3, **HELD)
        ask(client, "launch", config_text=text, run_name="half", overrides=[], nproc=1)
        run = run_of(root, "half")
        eventually(lambda: run.config_file.exists() and finished(run), 120)
        assert all("groups/all_correct" in row for row in rows(run))
        ask(client, "evaluate", run="half", steps="3", num_problems=8)
        eventually(lambda: ask(client, "show_run", run="half")["evaluations"], 90)
        evaluations = eventually(
            lambda: [row for each in ask(client, "show_run", run="half")["evaluations"] for row in each["metrics"]], 90
        )
        assert [(row["step"], row["status"]) for row in evaluations] == [("3", "ok")]
        ask(client, "resume", run="half", additional_steps=1)
        eventually(lambda: steps_logged(run) == [1, 2, 3, 4] and finished(run), 120)


def test_its_run_resumes_up_to_rounding_and_its_evaluation_is_read(root: Path, engine: Path) -> None:
    def previous(*words: str) -> None:
        command = [str(engine), *words, "--root", str(root)]
        done = subprocess.run(command, cwd=engine.parent, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr

    for name, steps in (("whole", 6), ("half", 3)):
        cfg = root / f"{name}.yaml"
        cfg.write_text(config_text(run__total_steps=steps, **HELD))
        previous("train", "--cfg", str(cfg), "--run-name", name)
    previous("eval", "--training-run", "whole", "--steps", "6", "--num-problems", "24")

    done = grpo_train("resume", "--training-run", "half", "--additional-steps", "3", root=root)
    assert done.returncode == 0, done.stdout
    assert "this resume is not bit-exact: the saved config does not have " in done.stdout
    half, whole = (rows(run_of(root, name)) for name in ("half", "whole"))
    for ours, theirs in zip(half, whole, strict=True):
        assert ours["reward"] == theirs["reward"], "the same completions"
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    again = grpo_train("eval", "--training-run", "whole", "--steps", "6", "--num-problems", "24", root=root)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "step_6: accuracy" in again.stdout
