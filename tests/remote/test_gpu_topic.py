"""The GPU topic, from an nvidia-smi that says what real ones have said."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_train.run_dir.processes import RUN_ID_VARIABLE, run_id_of
from remote.agent.watch import gpu_value
from tests.support.agent import eventually


def fake_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_values_processes_and_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, RUN_ID_VARIABLE: run_id_of(tmp_path / "run_1")}
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    script = f"""case "$1" in
--query-gpu=*) echo "0, NVIDIA H200, GPU-a, 94, 114688, 143771, 612.35, 61"
               echo "1, NVIDIA H200 MIG, GPU-b, [N/A], 0, 143771, [Not Supported], 33";;
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
            {"pid": worker.pid, "memory_mib": 100000.0, "run": "run_1"},
            {"pid": 999999999, "memory_mib": None, "run": ""},
        ],
    }
    assert (second["utilization_percent"], second["power_w"], second["processes"]) == (None, None, [])


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not reach the driver'; exit 9", "could not reach the driver"),
        ("exit 1", "nvidia-smi fails"),
        ("echo 'No devices were found'", "no GPU"),
    ],
)
def test_a_driver_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, note: str) -> None:
    fake_nvidia_smi(tmp_path, script, monkeypatch)
    value = gpu_value()
    assert value["gpus"] == []
    assert note in value["note"]


def test_no_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_value() == {"gpus": [], "note": "no GPU on this box"}
