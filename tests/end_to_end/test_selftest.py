"""``grpo-train selftest`` on this machine: it passes, and a step that fails is named."""

from __future__ import annotations

import json
from pathlib import Path

from grpo_train.cli.selftest import _hashes
from tests.support import micro
from tests.support.engine import grpo_train, write_config

make_root, tiny_model = micro.make_root, micro.tiny_model


def test_every_step_passes(root: Path) -> None:
    before = sorted(root.iterdir())
    done = grpo_train("selftest", "--json", root=root, timeout=600)
    rows = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [row["result"] for row in rows] == ["ok"] * 11
    assert sorted(root.iterdir()) == before, "it leaves nothing behind"


def test_restored_runs_are_compared_whole(tmp_path: Path) -> None:
    """Only what belongs to the machine may differ."""
    for name in (
        "config.yaml",
        "control/stop",
        ".hidden",
        "logs/train_log.jsonl",
        "status.json",
        "training_state/a.pt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "training_state" / "latest").symlink_to("a.pt")
    assert sorted(_hashes(tmp_path)) == [
        "config.yaml", "logs/train_log.jsonl", "training_state/a.pt", "training_state/latest",
    ]  # fmt: skip


def test_a_step_that_fails_is_named(root: Path) -> None:
    cfg = write_config(root, task__name="jsonl", task__path="nowhere.jsonl")
    done = grpo_train("selftest", "--cfg", cfg, root=root)
    assert done.returncode == 1
    assert "train 2 steps failed" in done.stderr
    assert "nowhere.jsonl" in done.stderr, "the end of its output"
    assert done.stdout.count("not run") == 9
