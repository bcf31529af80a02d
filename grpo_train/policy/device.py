"""Check, before a run exists, that torch can use this machine's GPUs. Torch-free: a child process asks torch."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass

from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir.gpus import Gpu, GpuReadError, NoReaderError, describe_problems, has_device_files, query_gpus

MINIMUM_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""Oldest Linux driver for each major version of CUDA. Minor-version compatibility lets a driver run every minor version
of its major one (NVIDIA, "CUDA Toolkit Release Notes", table 2, and "CUDA Compatibility", table 1)."""
PROBE_TIMEOUT_S = 120
_PROBE = """
import json, torch
cuda, error = torch.cuda, ""
try:
    cuda.init()
except Exception as failure:
    error = str(failure)
available = cuda.is_available()
devices = range(cuda.device_count() if available else 0)
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "available": available,
    "architectures": cuda.get_arch_list() if available else [],
    "capabilities": [cuda.get_device_capability(device) for device in devices],
    "error": error,
}))
"""


@dataclass(frozen=True)
class TorchFacts:
    """What torch reports about itself and the GPUs visible to it."""

    version: str
    cuda: str | None
    """CUDA version of the build; None for a CPU build."""
    available: bool
    architectures: tuple[str, ...] = ()
    """Compiled GPU architectures, e.g. ``sm_90``; empty where CUDA is not available."""
    capabilities: tuple[tuple[int, int], ...] = ()
    """Compute capability of each visible GPU."""
    error: str = ""
    """Why CUDA did not initialize."""


def check_device(setting: str, nproc: int) -> None:
    """Refuse a start whose GPUs torch cannot use. Costs nothing on a machine without an NVIDIA GPU.

    Args:
        setting: ``model.device``. ``auto`` accepts a CPU only where no NVIDIA GPU is seen.
        nproc: processes on this machine, one a GPU.

    Raises:
        PolicyError: (code ``no_gpu``) the driver is too old, the GPU's compute capability is not in the build,
            processes outnumber GPUs, or CUDA does not initialize.
    """
    if setting == "cpu":
        return
    try:
        gpus = _query_gpus()
    except GpuReadError as error:
        reason = str(error).rstrip(".")
        raise _no_gpu(f"{reason}. Repair the driver, or set model.device: cpu to train on the CPU") from error
    if not gpus and not has_device_files():
        if setting == "cuda" and not probe_torch().available:
            raise _no_gpu("model.device is cuda, but this machine has no GPU; set model.device: auto or cpu")
        return
    if problem := find_problem(gpus, probe_torch(), nproc):
        raise _no_gpu(f"{problem}, or set model.device: cpu to train on the CPU")


def training_device() -> str:
    """The device of ``model.device: auto`` on this machine, e.g. ``2 x NVIDIA H200, driver 580.65``, or ``CPU``.

    Raises PolicyError (code ``no_gpu``) as :func:`check_device` does.
    """
    check_device("auto", 1)
    gpus = _query_gpus()
    return _describe(gpus) if gpus or has_device_files() else "CPU"


def _query_gpus() -> list[Gpu]:
    """The GPUs; [] where nothing is installed to read them with, which torch does not need."""
    try:
        return query_gpus(processes=False)
    except NoReaderError:
        return []


def find_problem(gpus: list[Gpu], torch: TorchFacts, nproc: int) -> str:
    """What keeps torch from training on these GPUs, ending in the fix; "" where nothing does."""
    install = (
        f"install a matching build: uv pip install --python {sys.executable} --no-config --torch-backend=auto "
        "--reinstall-package torch torch"
    )
    seen = _describe(gpus)
    if not torch.available:
        if torch.cuda is None:
            return f"torch {torch.version} is a CPU build, but this machine has {seen}; {install}"
        driver = gpus[0].driver if gpus else ""
        minimum = MINIMUM_DRIVERS.get(int(torch.cuda.split(".")[0]), "")
        if driver and minimum and _numbers(driver) < _numbers(minimum):
            return (
                f"driver {driver} is too old for torch {torch.version}, built for CUDA {torch.cuda}, which needs "
                f"driver {minimum} or newer ({seen}); {install}, update the driver"
            )
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            return f"CUDA_VISIBLE_DEVICES '{visible}' hides every GPU of this machine ({seen}); unset it"
        reason = torch.error.splitlines()[0] if torch.error else "torch.cuda.is_available() is false"
        return f"torch {torch.version}, built for CUDA {torch.cuda}, cannot use {seen}: {reason}; {install}"
    for capability in torch.capabilities[:nproc]:
        if torch.cuda and not runs_on(torch.architectures, capability):
            return (
                f"torch {torch.version} was not built for compute capability {capability[0]}.{capability[1]} ({seen}), "
                f"only for {' '.join(torch.architectures)}; {install}"
            )
    if nproc > len(torch.capabilities):
        return (
            f"run.nproc is {nproc}, but torch sees {len(torch.capabilities)} GPU(s); each process needs its own: set "
            f"run.nproc to {len(torch.capabilities)}"
        )
    return ""


def runs_on(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code built for ``architectures`` (``torch.cuda.get_arch_list()``) runs on a compute capability.

    ``sm_XY`` runs on the same major version and the same or a newer minor one; with ``f`` likewise, with ``a`` only on
    XY itself. ``compute_XY`` is PTX, which newer GPUs compile (NVIDIA, "CUDA C++ Programming Guide", compute
    capabilities).
    """
    for architecture in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
        if match is None:
            continue
        built, suffix = (int(match[2]), int(match[3])), match[4]
        if suffix == "a":
            fits = built == capability
        elif match[1] == "compute" and not suffix:
            fits = built <= capability
        else:
            fits = built[0] == capability[0] and built <= capability
        if fits:
            return True
    return False


@functools.cache
def probe_torch() -> TorchFacts:
    """Ask torch in a short-lived child process, so that this one holds neither torch nor GPU memory.

    Raises PolicyError when torch does not load.
    """
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        facts = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        raise _no_gpu(f"torch does not load: {reason}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise _no_gpu(f"torch did not report its GPUs: {error}") from error
    facts |= {"architectures": tuple(facts["architectures"]), "capabilities": tuple(map(tuple, facts["capabilities"]))}
    return TorchFacts(**facts)


def _no_gpu(message: str) -> PolicyError:
    return PolicyError(message, code="no_gpu")


def _describe(gpus: list[Gpu]) -> str:
    if not gpus:
        return "an NVIDIA GPU"
    well = [gpu for gpu in gpus if not gpu.problem]
    count = f"{len(well)} x " if len(well) > 1 else ""
    seen = [f"{count}{well[0].name}, driver {well[0].driver}"] if well else []
    return "; ".join([*seen, *filter(None, [describe_problems(gpus)])])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
