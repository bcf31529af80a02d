"""``grpo-train plan`` of a run: what it used already counts, and an unknown stage is not within any budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_train.cli.plan import verdict_on
from grpo_train.run_dir.files import append_jsonl
from tests.support.backups import make_run, set_state
from tests.support.engine import grpo_train

CONFIG = """\
run: {total_steps: 110, eval_every: 0}
model: {backbone: Qwen/Qwen2.5-0.5B}
task: {name: addition}
budget: {hours: 3, dollars: 100, price_per_hour: 2}
"""


@pytest.mark.parametrize(
    ("budget", "used", "left", "has_unknown", "verdict"),
    [
        (None, 9, 9, True, ""),
        (3, 0, 2.5, False, "within"),
        (3, 0, 2.5, True, "unknown"),
        (3, 1, 2.5, False, "exceeds"),
        (3, 1, 2.5, True, "exceeds"),
        (3, 3.5, 0, True, "exceeds"),
    ],
)
def test_a_verdict_needs_every_stage(
    budget: float | None, used: float, left: float, has_unknown: bool, verdict: str
) -> None:
    assert verdict_on(budget, used, left, has_unknown) == verdict


def test_what_a_run_used_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", 10)
    run.config_file.write_text(CONFIG)
    for step in range(11, 13):
        append_jsonl(run.logs / "train_log.jsonl", {"step": step, "reward": 0.5, "time/step": 36.0})

    def planned(hours: float) -> dict[str, Any]:
        set_state(run, "stopped", run_seconds=hours * 3600)
        done = grpo_train("plan", "--training-run", "one", "--json", root=tmp_path)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert planned(1.5)["seconds"] == 3600, "100 steps"
    assert [planned(hours)["budget"] for hours in (1.5, 2.5)] == ["within", "exceeds"]
    assert planned(2.5)["used_dollars"] == 5.0
    text = grpo_train("plan", "--training-run", "one", root=tmp_path).stdout
    assert "used so far" in text
    assert "the estimate with the 2.5 h already used exceeds the budget of 3.0 h" in " ".join(text.split())
