"""The demo and every loss type learn: full weights of the tiny model, by the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from grpo_train.run_dir import open_run
from tests.support.engine import REPOSITORY, time_grpo_train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the tiny model that the demo creates."""
    root = tmp_path_factory.mktemp("root")
    print(f"tiny model {time_grpo_train('tiny-model', '--out', f'{root}/models/tiny'):.0f} s")
    return root


def learn(root: Path, name: str, steps: str, *changes: str) -> tuple[list[float], dict[int, float]]:
    """Train config/demo.yaml. Reward by step, and greedy accuracy on 1,024 held-out problems by evaluated step."""
    options = [argument for change in changes for argument in ("--set", change)]
    command = ["train", "--cfg", str(REPOSITORY / "config/demo.yaml"), "--root", str(root), "--run-name", name]
    trained = time_grpo_train(*command, *options)
    evaluated = time_grpo_train("eval", "--training-run", name, "--steps", steps, "--root", str(root))
    rewards = [float(row["reward"]) for row in open_run(root, name).read_log("train_log.jsonl")]
    table = list(csv.DictReader((root / f"eval_runs/{name}_addition/consolidated_metrics.csv").open()))
    assert {int(row["n"]) for row in table} == {1024}
    accuracy = {int(row["step"]): float(row["accuracy"]) for row in table}
    print(f"{name}: {len(rewards)} steps {trained:.0f} s, evaluation {evaluated:.0f} s")
    print("reward, every 10th step:", [round(reward, 2) for reward in rewards[::10]])
    print("greedy accuracy on 1,024 held-out problems:", accuracy)
    return rewards, accuracy


def test_the_demo_raises_reward_and_held_out_accuracy(root: Path) -> None:
    rewards, accuracy = learn(root, "demo", "0,20,40,60,80,final")
    last = max(accuracy)
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.4
    assert accuracy[last] >= 0.80
    assert accuracy[last] >= accuracy[0] + 0.20


VARIANTS = {
    "grpo": ["algorithm.loss_type=grpo", "algorithm.scale_rewards=group"],
    "bnpo": ["algorithm.loss_type=bnpo"],
    "dapo": ["algorithm.loss_type=dapo", "algorithm.scale_rewards=group", "algorithm.overlong_buffer=4"],
    "gspo": ["algorithm.loss_type=gspo", "algorithm.updates_per_buffer=2"],
    "cispo": ["algorithm.loss_type=cispo", "algorithm.num_iterations=2"],
    "dr_grpo_lora": ["model.adapter=lora", "optimizer.learning_rate=1e-3", "algorithm.beta=0.001"],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_loss_type_raises_held_out_accuracy(root: Path, name: str) -> None:
    rewards, accuracy = learn(root, name, "0,final", "run.total_steps=40", *VARIANTS[name])
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    assert accuracy[40] >= accuracy[0] + 0.20
