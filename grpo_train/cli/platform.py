"""``grpo-train platform``: what this machine has, and what the ``auto`` keys of a config become on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.cli.options import AsJson, Overrides, Root
from grpo_train.config import load_config, read_config_text
from grpo_train.platforms.choices import Choice, resolve_auto
from grpo_train.platforms.facts import Platform, Reach, read_platform
from grpo_train.run_dir import resolve_root


def platform(
    cfg: Annotated[Path | None, typer.Option(help="Also show what its auto keys become here.")] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Show this machine: GPUs, disks, reachable services and cached models."""
    folder = resolve_root(root)
    found, choices = read_platform(folder), list[Choice]()
    if cfg is not None:
        config = load_config(read_config_text(cfg), set_ or [], source=str(cfg))
        choices = resolve_auto(config, found, folder)[1]
    if as_json:
        facts = found.to_json()
        print(json.dumps(facts if cfg is None else {**facts, "choices": [asdict(each) for each in choices]}, indent=1))
        return
    for name, text in _facts(found):
        print(f"{name:<12} {text}")
    for choice in choices:
        print(f"{choice.key}: auto -> {choice.value} ({choice.reason})")


def _facts(found: Platform) -> Iterator[tuple[str, str]]:
    yield "host", f"{found.host} ({found.site})"
    memory = f", {found.memory_bytes / 2**30:.0f} GiB" if found.memory_bytes else ""
    yield "processors", f"{found.cpus}{memory}"
    for gpu in found.gpus:
        capability = "?" if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)
        size = "" if gpu.memory_mib is None else f", {gpu.memory_mib / 1024:.0f} GiB"
        part = ", an instance (MIG)" if gpu.is_mig else ""
        yield "GPU", f"{gpu.name}{size}, compute capability {capability}, driver {gpu.driver}{part}"
    if found.gpu_problem or not found.gpus:
        yield "GPU", found.gpu_problem or "none"
    for disk in found.disks:
        yield "disk", f"{disk.path} ({disk.kind}): {disk.free_bytes / 1e9:.0f} of {disk.total_bytes / 1e9:.0f} GB free"
    yield "hub", _reach(found.hub)
    yield "W&B", _reach(found.wandb)
    for model in found.models:
        yield "model", f"{model.name} ({model.bytes / 1e9:.1f} GB in the cache)"


def _reach(service: Reach) -> str:
    return f"{service.address}: {service.problem or 'reachable'}"
