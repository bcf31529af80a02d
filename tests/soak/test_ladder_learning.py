"""The tiny model learns rungs of the ladder: warm start, GRPO and held-out accuracy, by the command line.

Each rung is warm-started on worked examples with mistakes (a minute or two) and trained with config/ladder/tiny.yaml.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from grpo_train.run_dir import open_run
from tests.support.engine import REPOSITORY, time_grpo_train

RUNGS = {
    # Steps, and the required gain of greedy accuracy on the held-out split: well below the measured gains.
    "echo": (40, 0.15),
    "pattern": (60, 0.15),
    "counting": (60, 0.15),
    "arithmetic": (60, 0.15),
    "comparison": (120, 0.10),
    "word_problem": (60, 0.20),
}


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_learned(rung: str, tmp_path: Path) -> None:
    steps, gain = RUNGS[rung]
    root = ["--root", str(tmp_path)]
    config = str(REPOSITORY / "config/ladder/tiny.yaml")
    changes = ["--set", f"task.name={rung}", "--set", f"run.total_steps={steps}"]
    made = time_grpo_train("tiny-model", "--task", rung, "--out", f"{tmp_path}/models/tiny")
    trained = time_grpo_train("train", "--cfg", config, "--run-name", rung, *changes, *root)
    evaluated = time_grpo_train("eval", "--training-run", rung, "--steps", "0,final", *root)
    rewards = [float(row["reward"]) for row in open_run(tmp_path, rung).read_log("train_log.jsonl")]
    rows = list(csv.DictReader((tmp_path / f"eval_runs/{rung}_{rung}/consolidated_metrics.csv").open()))
    before, after = ({key: float(row[key]) for key in ("accuracy", "ci_low", "ci_high", "n")} for row in rows)
    print(f"{rung}: warm start {made:.0f} s, {steps} steps {trained:.0f} s, evaluations {evaluated:.0f} s")
    print("reward, mean of five steps:", [round(sum(rewards[i : i + 5]) / 5, 2) for i in range(0, steps, 5)])
    print(f"greedy accuracy on {after['n']:.0f} held-out problems: {before['accuracy']:.3f} -> {after['accuracy']:.3f}")
    assert [int(row["step"]) for row in rows] == [0, steps]
    assert after["accuracy"] >= before["accuracy"] + gain
    assert after["ci_low"] > before["ci_high"]
    assert sum(rewards[-5:]) > sum(rewards[:5])
