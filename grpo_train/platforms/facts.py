"""Facts of a machine: GPUs, disks, where it stands, what it reaches, which models it has. Torch-free.

Reading never raises: what cannot be read is missing, with the reason where there is one.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grpo_train.run_dir.gpus import GpuReadError, describe_problems, mig_instances, query_gpus
from grpo_train.run_dir.machine import mount_of

CONNECT_S = 3.0
SERVICES = {"hub": "HF_ENDPOINT", "wandb": "WANDB_BASE_URL"}
"""Service to the environment variable with its address."""
ADDRESSES = {"hub": "https://huggingface.co", "wandb": "https://api.wandb.ai"}


@dataclass(frozen=True)
class GpuFacts:
    """A GPU as a process sees it: a whole one, or an instance of one (MIG)."""

    name: str
    memory_mib: float | None
    compute_capability: tuple[int, int] | None
    driver: str
    is_mig: bool = False


@dataclass(frozen=True)
class Disk:
    path: str
    kind: str
    """Type of the file system, e.g. ``ext4`` or ``nfs4``."""
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Reach:
    """Whether a service can be reached."""

    address: str
    problem: str = ""
    """Why not; "" where it can."""


@dataclass(frozen=True)
class CachedModel:
    name: str
    bytes: int


@dataclass(frozen=True)
class Platform:
    """What a machine has."""

    host: str
    site: str
    """``lambda``, ``supercloud`` (MIT's), ``slurm`` or ``plain``."""
    gpus: tuple[GpuFacts, ...] = ()
    gpu_problem: str = ""
    """Why GPUs could not be read."""
    cpus: int = 1
    memory_bytes: int | None = None
    disks: tuple[Disk, ...] = ()
    hub: Reach = Reach(ADDRESSES["hub"])
    wandb: Reach = Reach(ADDRESSES["wandb"])
    models: tuple[CachedModel, ...] = ()
    """In the cache of the hub's client."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Platform:
        """Facts as :meth:`to_json` writes them."""
        gpus = tuple(
            GpuFacts(**{**gpu, "compute_capability": gpu["compute_capability"] and tuple(gpu["compute_capability"])})
            for gpu in facts["gpus"]
        )
        return cls(
            **{
                **facts,
                "gpus": gpus,
                "disks": tuple(Disk(**disk) for disk in facts["disks"]),
                "hub": Reach(**facts["hub"]),
                "wandb": Reach(**facts["wandb"]),
                "models": tuple(CachedModel(**model) for model in facts["models"]),
            }
        )


def read_machine() -> Platform:
    """Read the hardware alone, which costs milliseconds."""
    gpus, problem = read_gpu_facts()
    cpus = len(os.sched_getaffinity(0))
    return Platform(socket.gethostname(), _site(), gpus, problem, cpus, _memory())


def read_platform(root: Path) -> Platform:
    """Read everything. Takes up to ``CONNECT_S`` where a network answers nothing."""
    with ThreadPoolExecutor() as pool:
        hub, wandb = pool.submit(reach, "hub"), pool.submit(reach, "wandb")
        return replace(
            read_machine(),
            disks=tuple(_disks(root)),
            models=tuple(_cached_models()),
            hub=hub.result(),
            wandb=wandb.result(),
        )


def reach(service: str) -> Reach:
    """Whether ``hub`` or ``wandb`` accepts a connection, directly or through the proxy of the environment."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    address = os.environ.get(SERVICES[service]) or ADDRESSES[service]
    parts = urlsplit(address)
    proxy = getproxies().get(parts.scheme)
    to = urlsplit(proxy) if proxy and not proxy_bypass(parts.hostname or "") else parts
    port = to.port or (80 if to.scheme == "http" else 443)
    try:
        socket.create_connection((to.hostname or "", port), timeout=CONNECT_S).close()
    except OSError as error:
        return Reach(address, error.strerror or str(error))
    return Reach(address)


# --------------------------------------------------------------------------------------------------------- GPUs


def read_gpu_facts() -> tuple[tuple[GpuFacts, ...], str]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` does not hide, and why they could not be read; MIG instances as GPUs."""
    try:
        gpus = query_gpus(processes=False)
    except GpuReadError as error:
        return (), str(error)
    if not gpus:
        return (), ""
    problem = describe_problems(gpus)
    by_nvml = _from_nvml()
    if by_nvml is not None:
        return by_nvml, problem
    capabilities = _capabilities()
    return tuple(
        GpuFacts(gpu.name, gpu.memory_total_mib, capabilities.get(gpu.index), gpu.driver)
        for gpu in gpus
        if not gpu.problem and _is_visible(gpu.index, gpu.uuid)
    ), problem


def _is_visible(index: int, uuid: str) -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",")]
    return str(index) in names or any(name and uuid.startswith(name) for name in names if not name.isdecimal())


def _from_nvml() -> tuple[GpuFacts, ...] | None:
    """By NVML, which knows MIG instances; None without its Python bindings."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
    except Exception:  # of the bindings, or of the driver below them
        return None
    found: list[GpuFacts] = []
    for index in range(count):
        with suppress(nvml.NVMLError):  # it is lost
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            instances = mig_instances(nvml, handle)
            for each in instances or [handle]:
                if not _is_visible(index, _text(nvml.nvmlDeviceGetUUID(each))):
                    continue
                major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
                memory, name = nvml.nvmlDeviceGetMemoryInfo(each).total / 2**20, _text(nvml.nvmlDeviceGetName(each))
                found.append(GpuFacts(name, memory, (major, minor), driver, bool(instances)))
    return tuple(found)


def _capabilities() -> dict[int, tuple[int, int]]:
    """GPU index to compute capability, by nvidia-smi; {} for a driver that is too old to know."""
    command = ["nvidia-smi", "--query-gpu=index,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=15, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    found = {}
    for line in done.stdout.splitlines():
        index, _, version = line.partition(",")
        major, _, minor = version.strip().partition(".")
        if index.strip().isdecimal() and major.isdecimal() and minor.isdecimal():
            found[int(index)] = (int(major), int(minor))
    return found


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# -------------------------------------------------------------------------------------------------- everything else


def _site() -> str:
    if shutil.which("LLsub") or Path("/home/gridsan").is_dir():
        return "supercloud"
    if "SLURM_JOB_ID" in os.environ or shutil.which("sbatch"):
        return "slurm"
    return "lambda" if Path("/lambda").is_dir() else "plain"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # macOS
        return None


def _disks(root: Path) -> list[Disk]:
    """The file systems of the root, the home directory and /, each once."""
    found: dict[str, Disk] = {}
    for place in (root, Path.home(), Path("/")):
        if (mount := mount_of(place)) is None:
            continue
        try:
            usage = shutil.disk_usage(mount.point)
        except OSError:  # a mount whose server is gone
            continue
        found.setdefault(mount.point, Disk(mount.point, mount.kind, usage.free, usage.total))
    return list(found.values())


def _cached_models() -> list[CachedModel]:
    """Models of the hub client's cache that have weights, by name."""
    try:
        from huggingface_hub import CacheNotFound, constants, scan_cache_dir
    except ImportError:  # the engine's packages are not installed
        return []
    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, OSError):
        return []
    found = []
    for repository in cache.repos:
        files = {file.file_name for revision in repository.revisions for file in revision.files}
        if repository.repo_type == "model" and any(name.endswith((".safetensors", ".bin")) for name in files):
            found.append(CachedModel(repository.repo_id, repository.size_on_disk))
    return sorted(found, key=lambda model: model.name)
