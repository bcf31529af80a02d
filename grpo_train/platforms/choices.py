"""The keys of a config that are ``auto``, resolved from the facts of the machine at launch. Torch-free.

The values go into the run's ``config.yaml``, so that a resume on another machine keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.config import with_changes
from grpo_train.config.schema import Config
from grpo_train.platforms.facts import GpuFacts, Platform
from grpo_train.platforms.hub_models import model_config
from grpo_train.platforms.memory import QWEN2_5, Shape, least_bytes
from grpo_train.policy.locate import BACKBONES, PolicyError, hub_id, resolve_backbone
from grpo_train.run_dir.safe_json import Unreadable

MEMORY_SHARE = 0.85
"""Share of a GPU's memory that an estimate may fill."""
CPU_SHARE = 0.4
"""Share of a machine's memory on a CPU, where other programs need some."""
FEW_PROBLEMS = 256
"""Problems of an evaluation on a slow machine: an accuracy of 0.5 has a standard error of 0.03."""
SCORED_PER_PASS = 64
"""Completions of a pass without gradient, at most; more are not faster."""


@dataclass(frozen=True)
class Choice:
    """A key that was ``auto``."""

    key: str
    value: Any
    reason: str


def resolve_auto(config: Config, platform: Platform, root: Path) -> tuple[Config, list[Choice]]:
    """The config without ``auto``, and what was chosen. Raises PolicyError where a choice cannot be made."""
    choices: list[Choice] = []

    def choose(key: str, value: Any, reason: str) -> None:
        nonlocal config
        section, _, name = key.partition(".")
        config = with_changes(config, **{section: {name: value}})
        choices.append(Choice(key, value, reason))

    gpu = _smallest(platform) if config.model.device != "cpu" else None
    if config.model.dtype == "auto":
        choose("model.dtype", *_dtype(gpu))
    if config.eval.num_problems == "auto":
        choose("eval.num_problems", *eval_problems(gpu))
    if config.model.backbone == "auto":
        choose("model.backbone", *_backbone(config, platform, gpu))
    if "auto" in (config.train.microbatch_size, config.train.tf_micro_batch):
        try:
            shape = find_shape(config.model.backbone, root)
        except PolicyError as error:
            raise PolicyError(f"train.microbatch_size: auto: {error}; or set a number") from None
        memory = _memory(platform, gpu)
        if config.train.microbatch_size == "auto":
            choose("train.microbatch_size", *_prompts(config, shape, memory))
        if config.train.tf_micro_batch == "auto":
            # Without a gradient a pass holds one layer's activations: about the share of a layer.
            rows = config.microbatch_size * config.rollout.num_generations * shape.layers // 2
            choose("train.tf_micro_batch", max(1, min(SCORED_PER_PASS, rows)), "a pass without gradient needs less")
    return config, choices


def _smallest(platform: Platform) -> GpuFacts | None:
    """The GPU with the least memory: every process has the same config."""
    unread = GpuFacts("the GPU", None, None, "") if platform.gpu_problem else None
    return min(platform.gpus, key=lambda gpu: gpu.memory_mib or 0.0, default=unread)


def _dtype(gpu: GpuFacts | None) -> tuple[str, str]:
    if gpu is None:
        return "float32", "no GPU is used"
    if gpu.compute_capability is None:
        return "bfloat16", f"{gpu.name}, whose compute capability its driver does not report"
    major, minor = gpu.compute_capability
    reason = f"{gpu.name}, compute capability {major}.{minor}"
    return ("bfloat16", reason) if major >= 8 else ("float16", f"{reason}: no bfloat16 arithmetic")


def eval_problems(gpu: GpuFacts | None) -> tuple[int | None, str]:
    """``eval.num_problems: auto`` with its reason; None = all."""
    if gpu is not None and (gpu.compute_capability is None or gpu.compute_capability[0] >= 8):
        return None, f"all, on {gpu.name}"
    return FEW_PROBLEMS, "no GPU is used" if gpu is None else f"{gpu.name} is slow"


def _memory(platform: Platform, gpu: GpuFacts | None) -> tuple[float, str]:
    """Bytes that may be filled, and their name. Raises PolicyError where the GPU does not report its memory."""
    if gpu is None:
        return CPU_SHARE * (platform.memory_bytes or 0), "memory of this machine"
    if not gpu.memory_mib:
        raise PolicyError(
            f"{gpu.name} does not report its memory: set model.backbone, train.microbatch_size and "
            "train.tf_micro_batch to values instead of auto"
        )
    return MEMORY_SHARE * gpu.memory_mib * 2**20, f"{gpu.memory_mib / 1024:.0f} GiB of {gpu.name}"


def _backbone(config: Config, platform: Platform, gpu: GpuFacts | None) -> tuple[str, str]:
    """The largest model that fits with the smallest passes that the config allows."""
    available, name = _memory(platform, gpu)
    needed = 0.0
    for backbone, shape in reversed(QWEN2_5.items()):
        needed = least_bytes(shape, config, config.model.dtype, available / MEMORY_SHARE)
        if needed <= available:
            return backbone, f"the largest that fits: needs at least {needed / 2**30:.1f} GiB of the {name}"
    raise PolicyError(
        f"model.backbone: auto finds no model that fits: the smallest needs {needed / 2**30:.1f} GiB, and "
        f"{available / 2**30:.1f} GiB may be used of the {name}; lower rollout.max_completion_length, "
        "or set train.gradient_checkpointing: true",
        code="no_memory",
    )


def _prompts(config: Config, shape: Shape, memory: tuple[float, str]) -> tuple[int, str]:
    """The largest micro-batch that fits and divides the buffer."""
    available, name = memory
    share = config.rollout.buffer_size // (config.run.nproc * config.algorithm.updates_per_buffer)
    for prompts in _divisors(max(1, share)):
        needed = least_bytes(shape, config, config.model.dtype, available / MEMORY_SHARE, prompts)
        if needed <= available:
            return prompts, f"estimated {needed / 2**30:.1f} GiB of the {name}"
    return 1, f"one prompt's completions are split: at once they need {needed / 2**30:.1f} GiB of the {name}"


def _divisors(number: int) -> Iterator[int]:
    """From the largest down."""
    return (divisor for divisor in range(number, 0, -1) if number % divisor == 0)


def find_shape(backbone: str, root: Path) -> Shape:
    """The shape of a model that is known, on this machine or in the hub's cache.

    Raises PolicyError for another one, and for a config that cannot be read.
    """
    if known := QWEN2_5.get(backbone.removesuffix("_instruct")):
        return known
    by_name = {BACKBONES[name]: shape for name, shape in QWEN2_5.items()}
    resolved = resolve_backbone(backbone, root)
    name = hub_id(resolved)[0]
    if known := by_name.get(name.removesuffix("-Instruct")):
        return known
    unknown = f"the shape of {backbone} is unknown"
    file = model_config(resolved)
    if file is None or not file.exists():
        raise PolicyError(
            f"{unknown}: the model is neither on this machine nor in the hub's cache; download it first "
            "(grpo-train fetch-model)"
        )
    try:
        return Shape.read(file)
    except KeyError as error:
        raise PolicyError(f"{unknown}: {file} has no {error}") from error
    except (OSError, Unreadable, ValueError, TypeError) as error:
        raise PolicyError(f"{unknown}: {error}") from error
