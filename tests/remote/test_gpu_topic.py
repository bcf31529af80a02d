"""The GPU topic, from an nvidia-smi with recorded output."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_train.run_dir import gpus
from grpo_train.run_dir.gpus import Gpu, read_gpus
from grpo_train.run_dir.processes import RUN_ID_VARIABLE, run_id_of
from remote.agent.watch import gpu_value
from tests.support.agent import eventually


def fake_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(gpus, "_nvml", lambda: None)


def test_values_processes_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, RUN_ID_VARIABLE: run_id_of(tmp_path / "run_1"), "RANK": "1"}
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    script = f"""case "$1" in
--query-gpu=*) echo "0, GPU-a, NVIDIA H200, 570.86.15, 143771, 114688, 94, 612.35, 61"
               echo "1, GPU-b, NVIDIA H200 MIG, 570.86.15, 143771, 0, [N/A], [Not Supported], 33";;
--query-compute-apps=*) echo "GPU-a, {worker.pid}, 100000"; echo "GPU-a, 999999999, [N/A]";;
esac"""
    try:
        fake_nvidia_smi(tmp_path, script, monkeypatch)
        environ = Path(f"/proc/{worker.pid}/environ")
        eventually(lambda: RUN_ID_VARIABLE.encode() in environ.read_bytes())
        value = gpu_value()
    finally:
        worker.communicate(b"\n")
    first, second = value["gpus"]
    assert first == {
        "index": 0,
        "name": "NVIDIA H200",
        "utilization_percent": 94.0,
        "memory_used_mib": 114688.0,
        "memory_total_mib": 143771.0,
        "power_w": 612.35,
        "temperature_c": 61.0,
        "processes": [
            {"pid": worker.pid, "memory_mib": 100000.0, "run": "run_1", "rank": 1},
            {"pid": 999999999, "memory_mib": None, "run": "", "rank": None},
        ],
    }
    assert (second["utilization_percent"], second["power_w"], second["processes"]) == (None, None, [])


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not reach the driver'; exit 9", "could not reach the driver"),
        ("exit 1", "nvidia-smi failed"),
        ("echo 'No devices were found'", "no GPU"),
    ],
)
def test_a_failing_driver_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, note: str) -> None:
    fake_nvidia_smi(tmp_path, script, monkeypatch)
    value = gpu_value()
    assert value["gpus"] == []
    assert note in value["note"]


def test_without_nvidia_smi_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    assert gpu_value() == {"gpus": [], "note": "no GPU on this box"}


class FakeNvml:
    """NVML's bindings for one GPU that reports neither power nor processes."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0

    def __getattr__(self, name: str) -> Any:
        memory = SimpleNamespace(total=80 * 2**30, used=2**30)
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": b"570.86.15",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "NVIDIA H100",
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
            "nvmlDeviceGetTemperature": 40,
        }

        def call(*arguments: Any) -> Any:
            if name not in answers:
                raise self.NVMLError("Not Supported")
            return answers[name]

        return call


def test_gpus_are_read_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_nvml", FakeNvml)
    assert read_gpus() == [Gpu(0, "NVIDIA H100", "570.86.15", 81_920.0, 1024.0, 50.0, None, 40.0)]
