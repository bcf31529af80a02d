"""The demo learns: the full tiny model and config/demo.yaml, by the commands a user types."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from pathlib import Path

from grpo_train.run_dir import open_run
from tests.conftest import REPOSITORY

ENGINE = Path(sys.executable).with_name("grpo-train")


def test_the_demo_raises_reward_and_held_out_accuracy(tmp_path: Path) -> None:
    def engine(*arguments: str) -> float:
        began = time.monotonic()
        subprocess.run([str(ENGINE), *arguments], check=True, timeout=1800, cwd=tmp_path)
        return time.monotonic() - began

    root = str(tmp_path)
    made = engine("tiny-model", "--out", f"{root}/models/tiny")
    trained = engine("train", "--cfg", str(REPOSITORY / "config/demo.yaml"), "--root", root, "--run-name", "demo")
    evaluated = engine(
        "eval", "--training-run", "demo", "--steps", "0,20,40,60,80,final", "--batch-size", "256", "--root", root
    )
    rows = list(open_run(tmp_path, "demo").read_log("train_log.jsonl"))
    rewards = [float(row["reward"]) for row in rows]
    table = list(csv.DictReader((tmp_path / "eval_runs/demo_addition/consolidated_metrics.csv").open()))
    accuracy = {int(row["step"]): float(row["accuracy"]) for row in table}
    print(f"tiny model {made:.0f} s, {len(rows)} steps {trained:.0f} s, evaluation {evaluated:.0f} s")
    print("reward, every 10th step:", [round(reward, 2) for reward in rewards[::10]])
    print("greedy accuracy on 1,024 held-out problems:", accuracy)
    assert {int(row["n"]) for row in table} == {1024}
    last = max(accuracy)
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.4
    assert accuracy[last] >= 0.80
    assert accuracy[last] >= accuracy[0] + 0.20
