"""``grpo-train plan`` of a run: what it used already counts, and an unknown stage is not within any budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_train.cli.plan import kept_checkpoints, verdict_on
from grpo_train.config import load_config
from grpo_train.platforms.memory import QWEN2_5, checkpoint_bytes
from grpo_train.run_dir.files import append_jsonl
from tests.support.backups import make_run, set_state
from tests.support.engine import command_here

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
        done = command_here("plan", "--training-run", "one", "--json", root=tmp_path)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert planned(1.5)["seconds"] == 3600, "100 steps"
    assert [planned(hours)["budget"] for hours in (1.5, 2.5)] == ["within", "exceeds"]
    assert planned(2.5)["used_dollars"] == 5.0
    text = command_here("plan", "--training-run", "one", root=tmp_path).stdout
    assert "used so far" in text
    assert "the estimate with the 2.5 h already used exceeds the budget of 3.0 h" in " ".join(text.split())


@pytest.mark.parametrize(
    ("run", "start", "kept"),
    [
        ("total_steps: 100, save_every: 10", 0, 10),
        ("total_steps: 105, save_every: 10", 0, 11),
        ("total_steps: 105, save_every: 10", 50, 6),
        ("total_steps: 100, save_every: 10, keep_last: 2", 0, 3),
        ("total_steps: 100, save_every: 10, keep_last: 2, keep_every: 20", 0, 7),
    ],
)
def test_checkpoints_on_disk_are_counted(run: str, start: int, kept: int) -> None:
    config = load_config(f"run: {{{run}}}\ntask: {{name: addition}}\n")
    assert kept_checkpoints(config, start) == kept


@pytest.mark.parametrize(("adapter", "size"), [("none", 5.93e9), ("lora", 0.1e9)])
def test_the_size_of_a_checkpoint_is_estimated(adapter: str, size: float) -> None:
    """Qwen2.5-0.5B has 494 million weights; each is saved with two moments."""
    config = load_config(f"model: {{adapter: {adapter}, lora_rank: 16}}\ntask: {{name: addition}}\n")
    assert checkpoint_bytes(QWEN2_5["qwen2_5_05"], config) == pytest.approx(size, rel=0.1)


def test_a_plan_has_the_room_for_checkpoints(tmp_path: Path) -> None:
    cfg = tmp_path / "my.yaml"
    cfg.write_text("run: {total_steps: 30, save_every: 10, eval_every: 10}\ntask: {name: addition}\n")
    done = command_here("plan", "--cfg", cfg, "--set", "model.backbone=qwen2_5_05", "--json", root=tmp_path)
    found = json.loads(done.stdout)
    assert (found["checkpoints"], found["checkpoint_bytes"] > 1e6, found["free_bytes"] > 0) == (3, True, True)
