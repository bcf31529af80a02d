"""code_game in training with the tiny model: programs are executed; the starting model predicts their output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import micro
from tests.support.engine import assert_same_run, grpo_train, resume_here, rows, run_of, train_here, write_config

make_root, tiny_model = micro.make_root, micro.tiny_model

CHANGES: dict[str, Any] = {
    "run__save_every": 2, "rollout__max_prompt_length": 512, "rollout__max_completion_length": 12,
    "sandbox__cpu_seconds": 1.0, "rollout__buffer_size": 2, "rollout__num_generations": 2,
}  # fmt: skip
OWN = '''
from dataclasses import replace
from grpo_train.tasks.code_game import CodeGameTask, load as load_game, referee


class Lengths(CodeGameTask):
    """The tiny model cannot write programs, so the length of its completion is put into one."""

    def play(self, attempt):
        return referee(f"x = {attempt.length}\\nprint(x * 7 % 50, x % 3)", self.limits)


def by_index(attempt, verdict):
    """Rewards that differ in every group, so that the policy changes at every step."""
    return float(attempt.key.rpartition("/")[2])


def load(config):
    game = load_game(config)
    return Lengths(**{name: getattr(game, name) for name in game.__dataclass_fields__})
'''


@pytest.mark.timeout(300)
def test_training_by_the_command_line(make_root: Callable[[], Path]) -> None:
    root = make_root()
    config = write_config(root, task__name="code_game", run__total_steps=2, **CHANGES)
    done = grpo_train("train", "--cfg", config, "--run-name", "game", root=root, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    written = rows(run_of(root, "game"), "rollouts.jsonl")
    assert len(written) == 2 * 4
    assert all((row["rewards"]["score"] is None) == (not row["formatted"]) for row in written)
    assert all("code_game/valid" in row for row in rows(run_of(root, "game")))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_resume_keeps_the_opponent(make_root: Callable[[], Path], adapter: str) -> None:
    root = make_root()
    (root / "own.py").write_text(OWN)
    own = root / "own.py"
    config = write_config(
        root, task__name=f"{own}:load", task__rewards=["score", f"{own}:by_index"], model__adapter=adapter,
        run__total_steps=4, optimizer__learning_rate=0.02, optimizer__warmup_steps=0, **CHANGES,
    )  # fmt: skip
    whole = train_here(root, config, f"whole_{adapter}")
    half = train_here(root, config, f"half_{adapter}", "--until", "2")
    resume_here(half, total=4)
    assert_same_run(whole, half, 4)
    replies: dict[str, dict[int, str]] = {}
    for row in rows(whole, "rollouts.jsonl"):
        assert row["formatted"]
        assert row["rewards"]["score"] in (1.0, -1.0)
        replies.setdefault(row["answer"], {})[row["step"]] = row["facts"]["reply"]
    assert all(len(set(by_step.values())) == 1 for by_step in replies.values()), "one reply per program, in all steps"
    assert any(len(by_step) > 1 for by_step in replies.values())
