"""GPU samples in ``logs/gpu.jsonl``, from simulated GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.gpus import Gpu, GpuReadError
from grpo_train.tracking import gpu
from tests.support.clock import TestClock
from tests.support.engine import rows


def sampled(folder: Path, has_none: bool = False) -> RunDir:
    """Run a sampler for three intervals."""
    run, clock = RunDir(folder), TestClock()
    run.logs.mkdir(parents=True)
    with gpu.sample_gpus(run, 10.0, clock):
        if not has_none:
            clock.wait_for_threads(1)
            clock.advance(30)
    return run


def test_a_row_per_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = Gpu(0, "NVIDIA H200", "580.95.05", 143771.0, 114688.0, 94.0, 612.35, None)
    monkeypatch.setattr(gpu, "query_gpus", lambda processes: [h200])
    row, *others = rows(sampled(tmp_path), "gpu.jsonl")
    assert len(others) == 2
    del row["time"]
    assert row == {
        "step": 0,
        "index": 0,
        "name": "NVIDIA H200",
        "utilization_percent": 94.0,
        "memory_used_mib": 114688.0,
        "memory_total_mib": 143771.0,
        "power_w": 612.35,
        "temperature_c": None,
    }


def test_a_note_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "query_gpus", lambda processes: [])
    (row,) = rows(sampled(tmp_path, has_none=True), "gpu.jsonl")
    assert row["note"] == "no GPU on this box"


def test_a_driver_that_fails_at_first_is_not_taken_for_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [GpuReadError("nvidia-smi failed: busy")] * 2
    h200 = Gpu(0, "NVIDIA H200", "580.95.05", 143771.0, 114688.0, 94.0, 612.35, None)

    def query(processes: bool) -> list[Gpu]:
        if answers:
            raise answers.pop()
        return [h200]

    monkeypatch.setattr(gpu, "query_gpus", query)
    note, *samples = rows(sampled(tmp_path), "gpu.jsonl")
    assert note["note"] == "nvidia-smi failed: busy"
    assert [row["utilization_percent"] for row in samples] == [94.0, 94.0]


def test_a_log_that_cannot_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "query_gpus", lambda processes: [])
    run = RunDir(tmp_path)
    (run.logs / "gpu.jsonl").mkdir(parents=True)
    with gpu.sample_gpus(run, 10.0, TestClock()):
        pass
    said = capfd.readouterr().err
    assert said.startswith("warning: no samples of the GPUs are kept: ")
    assert "gpu.jsonl" in said
    assert "Traceback" not in said
