"""code_execution with the tiny model and the real sandbox, through ``grpo-train train``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import micro
from tests.support.engine import grpo_train, rows, run_of, write_config

make_root, tiny_model = micro.make_root, micro.tiny_model

POINTS = {
    "ok": 1.0, "silent": 0.5, "syntax_error": -0.5, "no_code": -0.5, "runtime_error": -1.0, "timeout": -1.0,
    "memory": -1.0, "killed": -1.0, "output_limit": -1.0,
}  # fmt: skip


@pytest.mark.timeout(300)
def test_rewards_come_from_executed_programs(make_root: Callable[[], Path]) -> None:
    root = make_root()
    config = write_config(
        root, task__name="code_execution", run__total_steps=2, run__save_every=2, rollout__max_prompt_length=256,
        rollout__generation_batch_size=4, sandbox__cpu_seconds=1.0,
    )  # fmt: skip
    done = grpo_train("train", "--cfg", config, "--run-name", "code", root=root, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    run = run_of(root, "code")
    assert (run.training_state / "step_2" / "MANIFEST.json").is_file()
    written = rows(run, "rollouts.jsonl")
    assert len(written) == 2 * 16
    assert all(row["rewards"] == {"score": POINTS[row["reason"]]} for row in written)
    assert all(row["facts"]["isolation"] in ("strong", "full") for row in written if row["reason"] != "no_code")
    for row in rows(run):
        scores = [each["rewards"]["score"] for each in written if each["step"] == row["step"]]
        assert row["reward/avg_batch_reward"] == pytest.approx(sum(scores) / 16)
        assert row["reward/successful_predictions_count"] == sum(score > 0 for score in scores)
        assert row["rewards/score/mean"] == pytest.approx(sum(scores) / 16)
        assert row["hacking/canary"] == 0.0
    reasons = {row["reason"] for row in written}
    assert reasons & {"ok", "silent"} or "syntax_error" in reasons  # at least one program was executed
