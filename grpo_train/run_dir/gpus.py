"""The GPUs of this machine, from NVML where its Python bindings are installed, else from ``nvidia-smi``.

Both are read into the same rows of text, so that one rule says what a GPU is. Standard library only (``pynvml`` is
optional). Values that a driver does not report are None.
"""

from __future__ import annotations

import csv
import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import number_in

TIMEOUT_S = 15.0
BUSY_MIB = 1024.0
"""Memory from which a GPU is in use although no process is listed: a container does not see the processes of others.
Some drivers count up to 0.7 GiB of their own."""
IDLE_PERCENT = 5.0
"""Use below which a GPU is idle."""
_FIELDS = (
    *("index", "uuid", "name", "driver_version", "memory.total", "memory.used"),
    *("utilization.gpu", "power.draw", "temperature.gpu"),
)
_NOT_REPORTED = ("[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[Function Not Found]", "[Not Found]", "N/A")
"""In place of a value, for a GPU that is well. Any other text in brackets is an error."""
Processes = dict[int, float | None]
"""Process ID to GPU memory in MiB."""


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    """As the driver counts. One that is lost and does not say its own has the smallest that no other GPU has."""
    name: str
    driver: str
    """Driver version, e.g. ``570.86.15``."""
    memory_total_mib: float | None
    memory_used_mib: float | None
    utilization: float | None
    """Percent."""
    power_w: float | None
    temperature_c: float | None
    pids: Processes | None = None
    """Each process that computes on this GPU or on one of its MIG instances; None where they were not read."""
    uuid: str = ""
    """As in ``CUDA_VISIBLE_DEVICES``, e.g. ``GPU-8932f937-d72c-4106-c12f-20bd9faed9f6``."""
    problem: str = ""
    """The driver's words about a GPU that cannot be used, such as ``GPU is lost``."""

    @property
    def free(self) -> bool | None:
        """Whether nothing uses this GPU; None where its driver does not report enough to know."""
        if self.problem or self.pids:
            return False
        if (self.memory_used_mib or 0.0) >= BUSY_MIB or (self.utilization or 0.0) >= IDLE_PERCENT:
            return False
        if self.memory_used_mib is None and (self.pids is None or self.utilization is None):
            return None
        return True

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
            **({"problem": self.problem} if self.problem else {}),
        }


class GpuReadError(UserError):
    """A driver is installed but does not answer."""

    code = "no_gpu"


class NoReaderError(GpuReadError):
    """The kernel shows a GPU, but no program is installed that reads it, as in some containers; torch may use it."""


def query_gpus(processes: bool = True) -> list[Gpu]:
    """Every GPU, by index; [] without GPUs. ``processes=False`` skips ``pids``.

    A GPU that is lost has a ``problem``, and the others are read. Raises GpuReadError when a driver is installed but
    does not answer.
    """
    if nvml := _nvml():
        rows, pids = _read_nvml(nvml, processes)
    elif shutil.which("nvidia-smi"):
        rows = _read_smi()
        pids = _query_processes(rows) if processes and rows else None
    elif has_device_files():
        raise NoReaderError("this machine has an NVIDIA GPU, but neither nvidia-smi nor pynvml to read it with")
    else:
        return []
    return sorted(_gpus(rows, pids), key=lambda gpu: gpu.index)


def has_device_files() -> bool:
    """Whether the NVIDIA kernel driver shows a GPU (a container may lack ``nvidia-smi``)."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def describe_problems(gpus: Iterable[Gpu]) -> str:
    """``GPU 1 (NVIDIA H200): GPU is lost; …``; "" where every GPU is well."""
    return "; ".join(
        f"GPU {gpu.index}{f' ({gpu.name})' if gpu.name else ''}: {gpu.problem}" for gpu in gpus if gpu.problem
    )


def _gpus(rows: Sequence[dict[str, str]], pids: dict[str, Processes] | None) -> list[Gpu]:
    """GPUs from their rows, and their processes by UUID (None: not read)."""
    taken = {int(row["index"]) for row in rows if row["index"].isdecimal()}
    found = []
    for row in rows:
        index = row["index"]
        number = int(index) if index.isdecimal() else next(free for free in range(len(rows) + 1) if free not in taken)
        taken.add(number)
        found.append(
            Gpu(
                index=number,
                name=_plain(row["name"]),
                driver=_plain(row["driver_version"]),
                memory_total_mib=number_in(row["memory.total"]),
                memory_used_mib=number_in(row["memory.used"]),
                utilization=number_in(row["utilization.gpu"]),
                power_w=number_in(row["power.draw"]),
                temperature_c=number_in(row["temperature.gpu"]),
                pids=None if pids is None else pids.get(row["uuid"], {}),
                uuid=_plain(row["uuid"]),
                problem=_problem(row),
            )
        )
    return found


def _problem(row: dict[str, str]) -> str:
    """What the driver says instead of values; an error in place of the memory counts, one of a sensor does not."""
    for key in ("memory.used", *row):
        text = row[key]
        is_lost = re.search("lost|reset|fallen off", text, re.IGNORECASE) and text.startswith("[")
        if is_lost or (key == "memory.used" and text.startswith("[") and text not in _NOT_REPORTED):
            return text.strip("[]")
    return ""


def _plain(text: str) -> str:
    return "" if text.startswith("[") else text


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


def _read_nvml(nvml: Any, processes: bool) -> tuple[list[dict[str, str]], dict[str, Processes] | None]:
    """The rows that nvidia-smi would print, and the processes by UUID."""
    try:
        driver, count = _text(nvml.nvmlSystemGetDriverVersion()), nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise GpuReadError(f"NVML failed: {error}") from error

    def ask(function: str, *arguments: Any) -> Any:
        """The answer of an NVML function, or its error in brackets."""
        try:
            return getattr(nvml, function)(*arguments)
        except nvml.NVMLError as error:
            return f"[{error}]"

    rows, pids = [], dict[str, Processes]()
    for index in range(count):
        row = {"index": str(index), "driver_version": driver}
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if _failed(handle):
            rows.append(row | {key: handle for key in _FIELDS if key not in row})
            continue
        instances = mig_instances(nvml, handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        used = memory if _failed(memory) else str(memory.used / 2**20)
        if instances and _failed(memory):  # only an administrator may ask for the sum
            parts = [part for each in instances if not _failed(part := ask("nvmlDeviceGetMemoryInfo", each))]
            used = str(sum(part.used for part in parts) / 2**20) if len(parts) == len(instances) else used
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        power = ask("nvmlDeviceGetPowerUsage", handle)
        uuid = _text(ask("nvmlDeviceGetUUID", handle))
        if processes:
            running = [ask("nvmlDeviceGetComputeRunningProcesses", each) for each in (handle, *instances)]
            pids[uuid] = {
                item.pid: None if item.usedGpuMemory is None else item.usedGpuMemory / 2**20
                for items in running
                if not _failed(items)
                for item in items
            }
        rows.append(
            row
            | {
                "uuid": uuid,
                "name": _text(ask("nvmlDeviceGetName", handle)),
                "memory.total": memory if _failed(memory) else str(memory.total / 2**20),
                "memory.used": used,
                "utilization.gpu": rates if _failed(rates) else str(rates.gpu),
                "power.draw": power if _failed(power) else str(power / 1000),
                "temperature.gpu": str(ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)),
            }
        )
    return rows, pids if processes else None


def mig_instances(nvml: Any, handle: Any) -> list[Any]:
    """Handles of a GPU's MIG instances; [] without MIG."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    found = []
    for index in range(count):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:  # no instance in this slot
            continue
    return found


def _failed(answer: Any) -> bool:
    return isinstance(answer, str) and answer.startswith("[")


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# ------------------------------------------------------------------------------------------------------- nvidia-smi


def _read_smi() -> list[dict[str, str]]:
    """A row for each GPU. One that nvidia-smi names only in a message, such as "Unable to determine the device handle
    for GPU0000:3B:00.0: GPU is lost", has a row of that message. Raises GpuReadError."""
    try:
        rows, messages, code = _nvidia_smi("gpu", *_FIELDS)
    except subprocess.TimeoutExpired as error:  # it hangs where a GPU has fallen off the bus
        raise GpuReadError(f"nvidia-smi did not answer within {TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise GpuReadError(f"nvidia-smi failed: {error}") from error
    if not rows:
        if code or any("No devices" not in message for message in messages):
            raise GpuReadError(f"nvidia-smi failed: {messages[0] if messages else f'exit code {code}'}")
        return []
    lost = [message for message in messages if re.search("unable to determine the device handle", message, re.I)]
    if code not in (0, 14) and not lost and not any(map(_problem, rows)):  # 14: a warning; 15: a GPU is inaccessible
        lost = ["; ".join(messages) or f"nvidia-smi ended with exit code {code}"]
    return rows + [dict.fromkeys(_FIELDS, f"[{message}]") | {"memory.used": f"[{message}]"} for message in lost]


def _query_processes(gpus: Sequence[dict[str, str]]) -> dict[str, Processes] | None:
    """GPU UUID to its processes, those of MIG instances included; None where the query fails."""
    found: dict[str, Processes] = {}
    known = {row["uuid"]: row["uuid"] for row in gpus}
    try:
        rows, _, code = _nvidia_smi("compute-apps", "gpu_uuid", "pid", "used_memory")
        if code and not rows:
            return None
        if any(row["gpu_uuid"] not in known for row in rows):
            known |= _mig_parents()
    except (OSError, subprocess.SubprocessError):  # a driver that fails between the two questions
        return None
    for row in rows:
        if row["pid"].isdecimal():
            found.setdefault(known.get(row["gpu_uuid"], ""), {})[int(row["pid"])] = number_in(row["used_memory"])
    if any(uuid not in known for uuid in found):
        return None  # a process whose GPU is not known may be on any of them
    return found


def _mig_parents() -> dict[str, str]:
    """UUID of each MIG instance to that of its GPU, from ``nvidia-smi -L`` (NVIDIA, "MIG User Guide")."""
    found, parent = {}, ""
    for line in _run_smi("-L").stdout.splitlines():
        if match := re.search(r"\(UUID: ([^)\s]+)\)", line):
            if line.startswith("GPU "):
                parent = match[1]
            else:
                found[match[1]] = parent
    return found


def _nvidia_smi(query: str, *fields: str) -> tuple[list[dict[str, str]], list[str], int]:
    """The rows of a query, its other lines (such as "No devices were found"), and its exit code."""
    done = _run_smi(f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits")
    rows, messages = [], []
    for line in done.stdout.splitlines():
        values = next(csv.reader([line], skipinitialspace=True), [])
        if len(values) == len(fields):
            rows.append(dict(zip(fields, map(str.strip, values), strict=True)))
        else:
            messages.append(line)
    lines = [line.strip()[:200] for line in [*messages, *done.stderr.splitlines()]]
    return rows, list(filter(None, lines)), done.returncode


def _run_smi(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nvidia-smi", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, text=True,
        errors="replace",
    )  # fmt: skip
