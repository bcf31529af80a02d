"""GPU samples into ``logs/gpu.jsonl``, by the supervisor: NVML where its bindings are, else ``nvidia-smi``.

Where there is no GPU the file holds one line that says so, and no samples. Torch-free.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import JsonlWriter, last_jsonl

Sample = dict[str, Any]
FIELDS = {
    "index": int,
    "name": str,
    "utilization.gpu": float,
    "memory.used": float,
    "memory.total": float,
    "power.draw": float,
    "temperature.gpu": float,
}
_OUR_NAMES = ("index", "name", "utilization_percent", "memory_used_mib", "memory_total_mib", "power_w", "temperature_c")


def find_sampler() -> Callable[[], list[Sample]] | None:
    """A function that samples every GPU now, or None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount():
            return lambda: _nvml(pynvml)
    except Exception:  # NVML's bindings raise their own kinds for a missing library, driver or GPU
        pass
    if shutil.which("nvidia-smi"):
        return _nvidia_smi
    return None


def _nvml(nvml: Any) -> list[Sample]:
    samples = []
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        name = nvml.nvmlDeviceGetName(device)
        samples.append(
            {
                "index": index,
                "name": name.decode() if isinstance(name, bytes) else name,
                "utilization_percent": float(nvml.nvmlDeviceGetUtilizationRates(device).gpu),
                "memory_used_mib": memory.used / 2**20,
                "memory_total_mib": memory.total / 2**20,
                "power_w": nvml.nvmlDeviceGetPowerUsage(device) / 1000,
                "temperature_c": float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
            }
        )
    return samples


def _nvidia_smi() -> list[Sample]:
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL).stdout
    return parse_nvidia_smi(output)


def parse_nvidia_smi(output: str) -> list[Sample]:
    """Rows of ``nvidia-smi --query-gpu=… --format=csv,noheader,nounits``; ``[N/A]`` becomes None."""
    samples = []
    for row in csv.reader(io.StringIO(output), skipinitialspace=True):
        if len(row) == len(FIELDS):
            values = [_value(kind, text) for kind, text in zip(FIELDS.values(), row, strict=True)]
            samples.append(dict(zip(_OUR_NAMES, values, strict=True)))
    return samples


def _value(kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(text.strip())
    except ValueError:
        return None


class GpuSampler:
    """A thread that appends a line per GPU every ``interval`` seconds."""

    def __init__(self, run: RunDir, interval: float) -> None:
        self._run, self._interval = run, interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gpu", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(timeout=15)

    def _work(self) -> None:
        writer = JsonlWriter(self._run.logs / "gpu.jsonl")
        sample = find_sampler()
        if sample is None:
            writer.write({"step": 0, "note": "no GPU on this box"})
        while sample is not None and not self._done.wait(self._interval):
            try:
                step = (last_jsonl(self._run.logs / "train_log.jsonl") or {}).get("step", 0)
                writer.write(*({"step": step, **row} for row in sample()))
            except (OSError, subprocess.SubprocessError):
                continue  # a full disk or a driver that hangs: the run goes on
        writer.close()
