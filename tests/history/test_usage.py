"""``grpo-train usage``: what GPUs did, by stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_train.history.usage import usage_of
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import append_jsonl, to_json, utc_from
from grpo_train.run_dir.gpus import Gpu
from grpo_train.tracking import gpu
from tests.support.engine import command_here, wait_for
from tests.support.histories import BEGAN, evaluate, make_run

HOUR = 3600.0


def sample(file: Path, at: float, use: float | None, power: float | None = 360.0, index: int = 0) -> None:
    with file.open("a") as stream:
        row = {
            "step": 0, "time": utc_from(BEGAN + at), "index": index, "utilization_percent": use,
            "memory_used_mib": 40_000 + at, "memory_total_mib": 80_000, "power_w": power,
        }  # fmt: skip
        stream.write(to_json(row) + "\n")


def run_of_stages(root: Path) -> RunDir:
    """Loaded for 20 s, two steps of 40 s each (10 save, 10 rollout, 20 train), 20 s of nothing, evaluated for 20 s."""
    run = make_run(root, "a", hours=140 / HOUR, steps=1)
    (run.logs / "train_log.jsonl").unlink()
    for step, end in ((1, 60.0), (2, 100.0)):
        times = {"time/save": 10.0, "time/rollout": 10.0, "time/train": 20.0, "time/step": 40.0}
        append_jsonl(run.logs / "train_log.jsonl", {"step": step, "time": utc_from(BEGAN + end), **times})
    evaluate(run, (0.5,), began=BEGAN + 120, hours=20 / HOUR)
    return run


def test_samples_are_split_by_stage(tmp_path: Path) -> None:
    run = run_of_stages(tmp_path)
    for at in range(1, 140, 2):
        busy = 90.0 if 20 <= at < 100 and (at - 20) % 40 >= 10 else 0.0 if at < 120 else 60.0
        sample(run.logs / "gpu.jsonl", at, busy)
    found = usage_of(run)
    hours = {name: round(usage.hours * HOUR) for name, usage in found.stages.items()}
    assert hours == {"save": 20, "rollout": 20, "train": 40, "evaluate": 20, "start": 20, "other": 20}
    idle = {name: usage.idle_share for name, usage in found.stages.items()}
    assert idle == {"save": 1, "rollout": 0, "train": 0, "evaluate": 0, "start": 1, "other": 1}
    assert found.whole.energy_wh == pytest.approx(360 * 140 / HOUR)
    assert found.whole.use_percent == pytest.approx((60 * 90 + 20 * 60) / 140)
    assert found.whole.memory_share == pytest.approx(0.5 + 70 / 80_000)
    assert found.whole.memory_peak_share == pytest.approx((40_000 + 139) / 80_000)


def test_gaps_and_missing_values_are_not_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    for at in (0.0, 2.0, 4.0, 3000.0, 3002.0):
        sample(run.logs / "gpu.jsonl", at, None if at == 2.0 else 50.0, None if at == 4.0 else 100.0)
    found = usage_of(run).whole
    assert found.hours * HOUR == pytest.approx(10)
    assert found.energy_wh * HOUR == pytest.approx(800)
    assert found.use_percent == 50


def test_evaluations_by_hand_have_their_own_line(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", accuracy=(0.5,))
    for index in (0, 1):
        for at in range(0, 20, 2):
            sample(run.root / "eval_runs" / "a_gsm8k" / "gpu.jsonl", at, 80.0, index=index)
    done = command_here("usage", "a", "--json", root=tmp_path)
    found = json.loads(done.stdout)
    assert found["gpus"] == 2
    assert found["evaluations"]["a_gsm8k"]["gpu_hours"] == pytest.approx(40 / HOUR)
    assert "a_gsm8k" in command_here("usage", "a", root=tmp_path).stdout


def test_a_run_without_gpus_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    append_jsonl(run.logs / "gpu.jsonl", {"step": 0, "note": "no GPU on this box"})
    assert "no GPU samples" in command_here("usage", "a", root=tmp_path).stdout
    assert json.loads(command_here("usage", "a", "--json", root=tmp_path).stdout)["gpu_hours"] == 0


def test_an_evaluation_samples_gpus_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu.sample_evaluation(tmp_path, 0.01):
        pass
    assert not (tmp_path / "gpu.jsonl").exists()  # without a GPU
    h200 = Gpu(0, "NVIDIA H200", "580.95.05", 143771.0, 114688.0, 94.0, 612.35, None)
    monkeypatch.setattr(gpu, "query_gpus", lambda processes: [h200])
    with gpu.sample_evaluation(tmp_path, 0.01):
        wait_for(lambda: (tmp_path / "gpu.jsonl").is_file() and (tmp_path / "gpu.jsonl").stat().st_size, "a sample")
