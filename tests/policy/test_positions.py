"""Prompt and completion fit the model's positions, or are refused with both numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_train.policy.locate import positions_of
from grpo_train.run_dir import RunDir
from grpo_train.train.worker import main
from tests.support.engine import command_here, train_here, write_micro
from tests.support.evaluating import outcome_of


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 20, "n_ctx": 20}, 20),
        ({"max_position_embeddings": 1, "text_config": {"max_position_embeddings": 128}}, 128),
        ({"max_position_embeddings": 32, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 128),
        ({"max_position_embeddings": 128, "rope_parameters": {"rope_type": "yarn", "factor": 4,
                                                              "original_max_position_embeddings": 32}}, 128),
        ({"max_position_embeddings": 128, "rope_parameters": {"rope_type": "llama3", "factor": 32.0}}, 128),
        ({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64),
        ({"max_position_embeddings": 64, "rope_scaling": None, "alibi": False}, 64),
        ({"max_position_embeddings": 2048, "alibi": True}, None),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": "many", "text_config": "none"}, None),
        ({"state_size": 16}, None),
    ],
)  # fmt: skip
def test_positions_of_a_config(config: dict[str, Any], positions: int | None) -> None:
    assert positions_of(config) == positions


def limit_to(model: Path, positions: int) -> None:
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": positions}))


@pytest.mark.parametrize("start", ["backbone", "full weights", "adapter"])
def test_a_launch_that_does_not_fit_is_refused(root: Path, start: str, capfd: pytest.CaptureFixture[str]) -> None:
    model, weights = root / "models" / "tiny", list[str]()
    kind = {"model__adapter": "lora"} if start == "adapter" else {}
    if start == "adapter":
        run = train_here(root, write_micro(root, run__total_steps=1, **kind), "before")
        weights = ["--ckpt", str(run.training_state / "step_1")]
    elif start == "full weights":
        model = Path(shutil.copytree(model, root / "full"))
        weights = ["--ckpt", str(model)]
    limit_to(model, 71)
    runs = sorted((root / "training_runs").glob("*"))
    assert main(["--cfg", str(write_micro(root, **kind)), "--root", str(root), *weights]) == 1
    said = capfd.readouterr().err
    assert "rollout.max_prompt_length (64) and rollout.max_completion_length (8) are 72 tokens together" in said
    assert "has 71 positions" in said
    assert sorted((root / "training_runs").glob("*")) == runs
    config = write_micro(root, rollout__max_prompt_length=63, run__total_steps=1, **kind)
    train_here(root, config, "fits", *weights)


def test_an_evaluation_that_does_not_fit_is_refused(root: Path) -> None:
    run: RunDir = train_here(root, write_micro(root, run__total_steps=1, model__adapter="lora"), "run")
    limit_to(root / "models" / "tiny", 100)
    outcome = outcome_of(root, run.name, steps="1", num_problems=2, max_completion_length=97)
    assert outcome.exit_code
    errors = str(outcome.steps)
    assert "the longest prompt (" in errors
    assert "max_completion_length (97) are" in errors
    asked = command_here(
        "generate", "--training-run", run.name, "--prompt", "1+1", "--max-completion-length", 99, root=root
    )
    assert asked.returncode
    assert "has 100 positions; lower one of them" in asked.stderr
