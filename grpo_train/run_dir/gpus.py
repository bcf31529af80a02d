"""The GPUs of this machine, from NVML where its Python bindings are installed, else from ``nvidia-smi``.

Standard library only (``pynvml`` is optional). Values that a driver does not report are None.
"""

from __future__ import annotations

import csv
import functools
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.errors import UserError

TIMEOUT_S = 15.0
_FIELDS = (
    *("index", "uuid", "name", "driver_version", "memory.total", "memory.used"),
    *("utilization.gpu", "power.draw", "temperature.gpu"),
)


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    name: str
    driver: str
    """Driver version, e.g. ``570.86.15``."""
    memory_total_mib: float | None
    memory_used_mib: float | None
    utilization: float | None
    """Percent."""
    power_w: float | None
    temperature_c: float | None
    pids: dict[int, float | None] = field(default_factory=dict)
    """Process ID to GPU memory in MiB, for each process that computes on this GPU."""
    uuid: str = ""
    """As in ``CUDA_VISIBLE_DEVICES``, e.g. ``GPU-8932f937-d72c-4106-c12f-20bd9faed9f6``."""

    def sample(self) -> dict[str, Any]:
        """What varies, and the GPU's name, as a row of ``gpu.jsonl`` and of the link's ``gpu`` topic."""
        return {
            "index": self.index,
            "name": self.name,
            "utilization_percent": self.utilization,
            "memory_used_mib": self.memory_used_mib,
            "memory_total_mib": self.memory_total_mib,
            "power_w": self.power_w,
            "temperature_c": self.temperature_c,
        }


class GpuReadError(UserError):
    """A driver is installed but does not answer."""

    code = "no_gpu"


def read_gpus(processes: bool = True) -> list[Gpu]:
    """Every GPU, by index; [] without GPUs and where the driver does not answer. ``processes=False`` skips ``pids``."""
    try:
        return query_gpus(processes)
    except GpuReadError:
        return []


def query_gpus(processes: bool = True) -> list[Gpu]:
    """Every GPU, by index; [] without GPUs. Raises GpuReadError when a driver is installed but does not answer."""
    if nvml := _nvml():
        return _read_nvml(nvml, processes)
    if not shutil.which("nvidia-smi"):
        return []
    try:
        rows = _nvidia_smi("gpu", *_FIELDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise GpuReadError(f"nvidia-smi failed: {_reason(error)}") from error
    pids = _query_processes() if processes and rows else {}
    return [_gpu(row, pids.get(row["uuid"], {})) for row in rows]


# ------------------------------------------------------------------------------------------------------------- NVML


@functools.cache
def _nvml() -> Any:
    """The initialized bindings; None without them, without a driver or without a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml if pynvml.nvmlDeviceGetCount() else None
    except Exception:  # the bindings raise a type of their own for each missing library, driver or device
        return None


def _read_nvml(nvml: Any, processes: bool) -> list[Gpu]:
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise GpuReadError(f"NVML failed: {error}") from error

    def ask(function: str, *arguments: Any) -> Any:
        """The answer of an NVML function; None where this GPU does not support it or the user may not ask."""
        try:
            return getattr(nvml, function)(*arguments)
        except nvml.NVMLError:
            return None

    found = []
    for index, handle in enumerate(handles):
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        power = ask("nvmlDeviceGetPowerUsage", handle)
        temperature = ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
        running = (ask("nvmlDeviceGetComputeRunningProcesses", handle) if processes else None) or []
        pids = {item.pid: None if item.usedGpuMemory is None else item.usedGpuMemory / 2**20 for item in running}
        found.append(
            Gpu(
                index=index,
                name=_text(ask("nvmlDeviceGetName", handle) or ""),
                driver=driver,
                memory_total_mib=memory.total / 2**20 if memory else None,
                memory_used_mib=memory.used / 2**20 if memory else None,
                utilization=float(rates.gpu) if rates else None,
                power_w=None if power is None else power / 1000,
                temperature_c=None if temperature is None else float(temperature),
                pids=pids,
                uuid=_text(ask("nvmlDeviceGetUUID", handle) or ""),
            )
        )
    return found


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# ------------------------------------------------------------------------------------------------------- nvidia-smi


def _query_processes() -> dict[str, dict[int, float | None]]:
    """GPU UUID to its processes; {} where the query fails."""
    found: dict[str, dict[int, float | None]] = {}
    try:
        rows = _nvidia_smi("compute-apps", "gpu_uuid", "pid", "used_memory")
    except (OSError, subprocess.SubprocessError):
        return {}
    for row in rows:
        if row["pid"].isdigit():
            found.setdefault(row["gpu_uuid"], {})[int(row["pid"])] = _float(row["used_memory"])
    return found


def _nvidia_smi(query: str, *fields: str) -> list[dict[str, str]]:
    """The rows of a query; lines of another width (such as "No devices were found") are skipped."""
    command = ["nvidia-smi", f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, text=True, errors="replace",
        check=True,
    )  # fmt: skip
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [dict(zip(fields, map(str.strip, row), strict=True)) for row in rows if len(row) == len(fields)]


def _gpu(row: dict[str, str], pids: dict[int, float | None]) -> Gpu:
    return Gpu(
        index=int(row["index"]) if row["index"].isdigit() else 0,
        name=row["name"],
        driver=row["driver_version"],
        memory_total_mib=_float(row["memory.total"]),
        memory_used_mib=_float(row["memory.used"]),
        utilization=_float(row["utilization.gpu"]),
        power_w=_float(row["power.draw"]),
        temperature_c=_float(row["temperature.gpu"]),
        pids=pids,
        uuid=row["uuid"],
    )


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]", "[Not Supported]"


def _reason(error: Exception) -> str:
    output = getattr(error, "stdout", None) or getattr(error, "stderr", None) or str(error)
    lines = str(output).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
