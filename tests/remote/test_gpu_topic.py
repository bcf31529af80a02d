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
from grpo_train.run_dir.gpus import Gpu, GpuReadError, query_gpus
from grpo_train.run_dir.processes import RUN_ID_VARIABLE, run_id_of
from grpo_tui.box.fleet import gpu_counts
from remote.agent import doctor
from remote.agent.topics import gpu_value
from remote.events import GpuSampled
from remote.gate import topic_event
from remote.protocol import RemoteError
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
        "free": False,
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
        ("exit 1", "nvidia-smi failed: exit code 1"),
        ("echo 'Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost'; exit 15", "GPU is lost"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18", "version mismatch"),
    ],
)
def test_a_failing_driver_is_not_taken_for_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, note: str
) -> None:
    fake_nvidia_smi(tmp_path, script, monkeypatch)
    with pytest.raises(RemoteError, match=note) as caught:
        gpu_value()
    assert caught.value.code == "no_gpu"
    assert doctor._gpus(None).level == "error"  # type: ignore[arg-type]


def test_a_driver_without_devices_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, "echo 'No devices were found'", monkeypatch)
    assert gpu_value() == {"gpus": [], "note": "no GPU on this box"}


def well(index: int, memory: object = 3, use: object = 0) -> str:
    """The row of a GPU that answers."""
    return f"{index}, GPU-{index}, NVIDIA H100, 570.86.15, 81559, {memory}, {use}, 70.0, 31"


GONE = "Unable to determine the device handle for GPU 0000:3B:00.0: gone"


@pytest.mark.parametrize(
    ("rows", "compute", "code", "expected"),
    [
        pytest.param([well(0, 70000, 98)], "", 0, [(0, False, "")], id="busy"),
        pytest.param([well(0, 70000)], "", 0, [(0, False, "")], id="memory is held"),
        pytest.param([well(0, 3, 98)], "", 0, [(0, False, "")], id="used"),
        pytest.param([well(0, 690)], "", 0, [(0, True, "")], id="the driver's own memory"),
        pytest.param([well(0)], "exit 1", 0, [(0, True, "")], id="processes cannot be read"),
        pytest.param([well(0, "[N/A]", "[N/A]")], "", 0, [(0, None, "")], id="nothing reported"),
        pytest.param(
            [well(0, use="[N/A]"), well(1, use="[N/A]")], "echo 'MIG-b1, 7, 500'", 0, [(0, True, ""), (1, False, "")],
            id="a process of a MIG instance",
        ),
        pytest.param(
            [well(0), "[GPU is lost], GPU-1" + 7 * ", [GPU is lost]"], "", 0,
            [(0, True, ""), (1, False, "GPU is lost")],
            id="a lost row",
        ),
        pytest.param(
            [well(0), well(1, "[Unknown Error]")], "", 0, [(0, True, ""), (1, False, "Unknown Error")],
            id="an error in place of the memory",
        ),
        pytest.param([well(0).replace("70.0", "[Unknown Error]")], "", 0, [(0, True, "")], id="a sensor that fails"),
        pytest.param(
            [well(0), GONE, well(2)], "", 15, [(0, True, ""), (1, False, GONE), (2, True, "")], id="a message",
        ),
        pytest.param(
            [well(0)], "", 15, [(0, True, ""), (1, False, "nvidia-smi ended with exit code 15")], id="exit 15 alone",
        ),
        pytest.param([well(0), "WARNING: infoROM is corrupted"], "", 14, [(0, True, "")], id="a warning"),
    ],
)  # fmt: skip
def test_which_gpus_are_free(
    rows: list[str], compute: str, code: int, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows").write_text("\n".join(rows) + "\n")
    (tmp_path / "list").write_text(
        "GPU 0: NVIDIA H100 (UUID: GPU-0)\nGPU 1: NVIDIA H100 (UUID: GPU-1)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-b1)\n"
    )
    script = f'case "$1" in\n--query-gpu=*) cat {tmp_path}/rows; exit {code};;\n-L) cat {tmp_path}/list;;\n'
    fake_nvidia_smi(tmp_path, script + f"--query-compute-apps=*) {compute or 'true'};;\nesac", monkeypatch)
    gpus = gpu_value()["gpus"]
    assert [(gpu["index"], gpu["free"], gpu.get("problem", "")) for gpu in gpus] == expected
    problems = [problem for _, _, problem in expected if problem]
    finding = doctor._gpus(None)  # type: ignore[arg-type]
    assert finding.level == ("error" if problems else "ok")
    assert all(problem in finding.detail for problem in problems)
    assert (gpu_counts(gpus, "")["gpu_problem"] != "") == bool(problems)
    assert topic_event("gpu", {"value": {"gpus": gpus}}) == GpuSampled(gpus), "the rows pass the client's checks"


def test_a_process_of_an_unknown_instance_may_be_on_any_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = f"echo '{well(0, '[N/A]')}'"
    script = f'case "$1" in\n--query-gpu=*) {rows};;\n--query-compute-apps=*) echo "MIG-x, 7, 5";;\nesac'
    fake_nvidia_smi(tmp_path, script, monkeypatch)
    (gpu,) = gpu_value()["gpus"]
    assert (gpu["free"], gpu["processes"]) == (None, None)


@pytest.mark.parametrize("device", [False, True])
def test_without_a_program_that_reads_gpus(device: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    monkeypatch.setattr(gpus, "has_device_files", lambda: device)
    if device:
        with pytest.raises(RemoteError, match="neither nvidia-smi nor pynvml"):
            gpu_value()
    else:
        assert gpu_value() == {"gpus": [], "note": "no GPU on this box"}


class FakeNvml:
    """NVML's bindings: GPU 0 reports neither power nor processes, 1 is lost, 2 is used from another container, and 3
    has a MIG instance with a process, and only an administrator may read the whole GPU."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU, NVML_DEVICE_MIG_ENABLE = 0, 1
    count: int | None = 4

    def __getattr__(self, name: str) -> Any:
        def memory(mib: int) -> Any:
            return SimpleNamespace(total=80 * 2**30, used=mib * 2**20)

        process = [SimpleNamespace(pid=7, usedGpuMemory=None)]
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": b"570.86.15",
            "nvmlDeviceGetCount": self.count,
            "nvmlDeviceGetHandleByIndex": {0: 0, 2: 2, 3: 3},
            "nvmlDeviceGetName": "NVIDIA H100",
            "nvmlDeviceGetUUID": {0: "GPU-0", 2: b"GPU-2", 3: "GPU-3"},
            "nvmlDeviceGetMemoryInfo": {0: memory(1023), 2: memory(70_000), "instance": memory(500)},
            "nvmlDeviceGetUtilizationRates": {0: SimpleNamespace(gpu=4), 2: SimpleNamespace(gpu=98)},
            "nvmlDeviceGetTemperature": 40,
            "nvmlDeviceGetMigMode": {3: (1, 1)},
            "nvmlDeviceGetMaxMigDeviceCount": 1,
            "nvmlDeviceGetMigDeviceHandleByIndex": "instance",
            "nvmlDeviceGetComputeRunningProcesses": {2: [], "instance": process},
        }

        def call(*arguments: Any) -> Any:
            answer = answers.get(name)
            if isinstance(answer, dict):
                answer = answer.get(arguments[0])
            if answer is None:
                raise self.NVMLError("GPU is lost" if arguments == (1,) else "Not Supported")
            return answer

        return call


def test_gpus_are_read_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_nvml", FakeNvml)
    first, *_ = found = query_gpus()
    assert first == Gpu(0, "NVIDIA H100", "570.86.15", 81_920.0, 1023.0, 4.0, None, 40.0, {}, "GPU-0")
    assert [(gpu.index, gpu.free, gpu.problem) for gpu in found] == [
        (0, True, ""), (1, False, "GPU is lost"), (2, False, ""), (3, False, ""),
    ]  # fmt: skip
    assert (found[3].pids, found[3].memory_used_mib) == ({7: None}, 500.0)


def test_nvml_that_fails_is_not_taken_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.count = None
    monkeypatch.setattr(gpus, "_nvml", lambda: nvml)
    with pytest.raises(GpuReadError, match="NVML failed"):
        query_gpus()
