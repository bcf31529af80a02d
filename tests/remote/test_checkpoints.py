"""Room that checkpoints take, and those that nothing needs, as the agent reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir, create_run, write_manifest
from grpo_train.run_dir.files import atomic_symlink, utc_now
from grpo_train.run_dir.processes import identity
from remote import gate
from remote.agent import checkpoints
from remote.agent.box import BoxContext
from remote.agent.checkpoints import Sizes
from remote.protocol import RemoteError
from remote.protocol.backups import CheckpointSizesRequest, SpareCheckpointsRequest

CONFIG = "run:\n  keep_last: 0\n  keep_every: 0\nmodel:\n  backbone: tiny\n"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_sizes", Sizes())


def make(root: Path, name: str, *steps: int, size: int = 1_000, config: str = CONFIG) -> RunDir:
    run = create_run(root, {}, name)
    run.config_file.write_text(config)
    for step in steps:
        save(run, step, size)
    return run


def save(run: RunDir, step: int, size: int = 1_000) -> Path:
    folder = run.training_state / f"step_{step}"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_bytes(b"w" * size)
    write_manifest(folder, format=1, step=step)
    return folder


def sizes(root: Path) -> dict[str, Any]:
    box = BoxContext.from_settings({"root": str(root)})
    result = checkpoints.checkpoint_sizes(box, CheckpointSizesRequest())
    return gate.reply("checkpoint_sizes", {"ok": True, "result": result})


def spare(root: Path) -> tuple[list[tuple[str, int]], list[str]]:
    box = BoxContext.from_settings({"root": str(root)})
    result = checkpoints.spare_checkpoints(box, SpareCheckpointsRequest())
    reply = gate.reply("spare_checkpoints", {"ok": True, "result": result})
    return [(row["run"], int(row["step"])) for row in reply["spare"]], reply["problems"]


def evaluate(root: Path, run: str, accuracies: dict[int, float], **status: Any) -> None:
    folder = root / "eval_runs" / f"{run}_gsm8k"
    folder.mkdir(parents=True)
    rows = [f"{step},step_{step},ok,{value}" for step, value in accuracies.items()]
    (folder / "consolidated_metrics.csv").write_text("\n".join(["step,name,status,accuracy", *rows]) + "\n")
    (folder / "status.json").write_text(json.dumps({"training_run": run, "state": "finished", **status}))


def test_sizes_come_run_by_run(root: Path) -> None:
    assert sizes(root)["sizes"] == []
    make(root, "small", 1)
    make(root, "large", 1, 2, size=5_000)
    make(root, "empty")
    reply = sizes(root)
    assert [(row["run"], row["count"], row["bytes"]) for row in reply["sizes"]] == [
        ("large", 2, 10_000),
        ("small", 1, 1_000),
    ]
    assert (reply["runs"], reply["checkpoints"], reply["bytes"], reply["unmeasured"]) == (2, 3, 11_000, 0)
    assert reply["day_bytes"] == 11_000
    os.utime(root / "training_runs/small/training_state/step_1", (1e9, 1e9))
    assert sizes(root)["day_bytes"] == 10_000


def test_measuring_goes_on_where_it_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "BUDGET_S", 0.0)
    for name in "abc":
        make(root, name, 1, 2, 3)
    replies = [sizes(root) for _ in range(12)]
    left = [reply["unmeasured"] for reply in replies]
    assert left == sorted(left, reverse=True)
    assert left[0] == 3, "a run is known as a whole, or not at all"
    assert (left[-1], replies[-1]["bytes"]) == (0, 9_000)


def test_a_manifest_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(root, "one", 1)
    assert sizes(root)["bytes"] == 1_000
    monkeypatch.setattr(checkpoints, "checkpoint_size", lambda path: 7)
    assert sizes(root)["bytes"] == 1_000
    save(run, 2)
    assert sizes(root)["bytes"] == 1_007


def test_one_measures_at_a_time(root: Path) -> None:
    with checkpoints._sizes.lock, pytest.raises(RemoteError, match="being measured"):
        sizes(root)


def test_a_checkpoint_without_manifest_is_walked(root: Path) -> None:
    run = make(root, "old", 1)
    (run.training_state / "step_1" / "MANIFEST.json").unlink()
    assert sizes(root)["bytes"] == 1_000


def test_last_best_and_linked_ones_stay(root: Path) -> None:
    run = make(root, "one", *range(1, 8))
    atomic_symlink(run.training_state / "step_latest", "step_6")
    atomic_symlink(run.training_state / "step_final", "step_5")
    evaluate(root, "one", {1: 0.5, 2: 0.7, 3: 0.6})
    assert spare(root) == ([("one", 1), ("one", 3), ("one", 4)], [])


def test_milestones_and_what_is_in_use_stay(root: Path) -> None:
    make(root, "one", *range(1, 8), config=CONFIG.replace("last: 0", "last: 2").replace("every: 0", "every: 3"))
    make(root, "two", config=CONFIG.replace("tiny", "training_runs/one/training_state/step_1/model"))
    me = identity()
    live = {"pid": me.pid, "pid_start": me.pid_start, "host": me.host, "boot_id": me.boot_id, "updated_at": utc_now()}
    pending = ["training_runs/one/training_state/step_2"]
    evaluate(root, "one", {}, **{**live, "state": "evaluating", "pending": pending})
    assert spare(root) == ([("one", 4), ("one", 5)], [])


def test_a_damaged_config_hides_what_is_in_use(root: Path) -> None:
    make(root, "one", 1, 2)
    make(root, "two", config="model: {\n")
    rows, problems = spare(root)
    assert rows == []
    assert "what is in use is not known" in problems[0]
    assert "two/config.yaml is damaged" in problems[0]


def test_a_damaged_checkpoint_is_not_listed(root: Path) -> None:
    run = make(root, "one", 1, 2, 3)
    (run.training_state / "step_1" / "model" / "weights").unlink()
    assert spare(root) == ([("one", 2)], [])
