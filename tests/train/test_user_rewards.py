"""Training with a user's reward functions: before the run, in it, and across a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_train.train.worker import main
from tests.support.engine import assert_same_run, resume_here, rows, run_of, train_here, write_config

OWN = """
calls = 0

def smaller(prompts, completions, completion_ids, answer, **columns):
    assert len(set(prompts)) == 1 and "question" in columns
    sums = [sum(ids) for ids in completion_ids]
    return [None if each == max(sums) else -each / 100 for each in sums]

async def remainder(completion_ids, **kwargs):
    return [sum(ids) % 7 for ids in completion_ids]

def needs_solution(completions, solution, **kwargs):
    return [1.0] * len(completions)

def fails_later(completions, **kwargs):
    global calls
    calls += 1
    if calls > 2:
        raise KeyError("later")
    return [1.0] * len(completions)
"""


def test_trl_functions_resume_exactly(root: Path) -> None:
    own = root / "own.py"
    own.write_text(OWN)
    names = ["accuracy", f"{own}:smaller", f"trl:{own}:remainder"]
    cfg = write_config(root, task__rewards=names, run__total_steps=2)
    whole = train_here(root, cfg, "whole")
    half = train_here(root, cfg, "half", "--until", "1")
    resume_here(half, total=2)
    assert_same_run(whole, half, 2)
    first = [row["rewards"] for row in rows(whole, "rollouts.jsonl")]
    assert all(list(rewards) == ["accuracy", "smaller", "remainder"] for rewards in first)
    assert len({rewards["remainder"] for rewards in first}) > 1
    assert {type(rewards["smaller"]) for rewards in first} == {float, type(None)}


def test_a_failing_function_stops_the_launch(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = root / "own.py"
    own.write_text(OWN)
    cfg = write_config(root, task__rewards=[f"{own}:needs_solution"])
    assert main(["--cfg", str(cfg), "--root", str(root), "--run-name", "never"]) == 1
    message = "error: task.rewards: 'needs_solution' needs the argument 'solution', which is not a column of the data"
    assert message in capfd.readouterr().err
    assert not run_of(root, "never").path.exists()


def test_a_failure_in_training_saves_completions(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = root / "own.py"
    own.write_text(OWN)
    cfg = write_config(root, task__rewards=[f"{own}:fails_later"])
    assert main(["--cfg", str(cfg), "--root", str(root), "--run-name", "later"]) == 1
    file = run_of(root, "later").logs / "failed_reward_rank0.json"
    message = f"error: task.rewards: 'fails_later' raised KeyError: 'later' ({own}:19); its completions are in {file}"
    assert message in capfd.readouterr().err
    record = json.loads(file.read_text())
    assert [each["key"].rpartition("/")[0] for each in record["attempts"]] == ["0/2"] * len(record["attempts"])
    assert 'raise KeyError("later")' in record["traceback"]
