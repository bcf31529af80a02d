"""Self-play teaches a tiny model with frequent illegal moves to obey the rules, by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_train.evaluation.report.match_table import match_lines
from grpo_train.run_dir import open_run
from tests.support.engine import time_grpo_train

STEPS = 120
CONFIG = f"""
run: {{total_steps: {STEPS}, save_every: {STEPS}, nproc: 2, seed: 0}}
model: {{backbone: tiny, adapter: none}}
rollout: {{buffer_size: 64, num_generations: 9, max_prompt_length: 14, max_completion_length: 8}}
optimizer: {{learning_rate: 1.5e-4, warmup_steps: 5, max_grad_norm: 0.1}}
train: {{microbatch_size: 16}}
task: {{name: tictactoe, template: compact}}
eval: {{batch_size: 400}}
tracking: {{tensorboard: false}}
"""


def results(root: Path, step: str) -> list[dict[str, Any]]:
    folder = root / "eval_runs" / "learner_tictactoe" / f"{step}_tictactoe"
    table: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text())["matches"]
    return table


def share(table: list[dict[str, Any]], outcome: str, opponent: str) -> float:
    """Share of matches against an opponent, over both roles."""
    lines = [line for line in table if line["opponent"] == opponent]
    return float(sum(line[outcome]["value"] * line["n"] for line in lines) / sum(line["n"] for line in lines))


def test_self_play_removes_illegal_moves(tmp_path: Path) -> None:
    task = "tictactoe"
    made = time_grpo_train("tiny-model", "--out", f"{tmp_path}/models/tiny", "--task", task)
    (tmp_path / "learner.yaml").write_text(CONFIG)
    options = ["--root", str(tmp_path)]
    trained = time_grpo_train("train", "--cfg", tmp_path / "learner.yaml", "--run-name", "learner", *options)
    # Four samples of each of 200 openings at temperature 1: 200 matches per opponent and role.
    evaluated = time_grpo_train(
        "eval", "--training-run", "learner", "--steps", "0,final", "--num-samples", "4", *options
    )
    print(f"tiny model {made:.0f} s, {STEPS} steps {trained:.0f} s, evaluation {evaluated:.0f} s")

    log = list(open_run(tmp_path, "learner").read_log("train_log.jsonl"))
    for key in ("invalid_rate", "draw_rate", "tictactoe/X/win_rate", "same_opening"):
        means = [sum(row[f"self_play/{key}"] for row in log[i : i + 20]) / 20 for i in range(0, STEPS, 20)]
        print(f"self-play {key}, means of 20 steps:", [round(value, 2) for value in means])
    before, after = results(tmp_path, "step_0"), results(tmp_path, f"step_{STEPS}")
    for name, table in (("before", before), ("after", after)):
        print(name, *match_lines(table), sep="\n  ")

    for opponent in ("random", "minimax"):
        assert share(before, "invalid", opponent) > 0.3
        assert share(after, "invalid", opponent) < share(before, "invalid", opponent) / 3
    assert share(after, "win", "random") > share(before, "win", "random") + 0.2
    invalid = [row["self_play/invalid_rate"] for row in log]
    assert sum(invalid[-10:]) < sum(invalid[:10]) / 3
