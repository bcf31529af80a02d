"""``grpo-train bench``: the speed of this machine with a model of random weights, beside what its hardware allows."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from grpo_train.cli.options import AsJson, Overrides, Root
from grpo_train.cli.output import fail, table
from grpo_train.config import dump_config, load_config
from grpo_train.config.schema import Config
from grpo_train.platforms.choices import resolve_auto
from grpo_train.platforms.facts import Platform, read_machine
from grpo_train.platforms.memory import QWEN2_5, checkpoint_bytes
from grpo_train.platforms.speeds import FILE
from grpo_train.policy.device import check_device
from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.errors import exiting_on_error
from grpo_train.run_dir.files import append_jsonl, utc_now
from grpo_train.supervisor.stages import compute_environment, thread_count
from grpo_train.train.preflight import check_engine

MODELS = ("auto", "tiny", *QWEN2_5)
ROWS = (1, 8, 64, 256)
LENGTH = 128
"""Tokens that are decoded, at most."""
SPARE_BYTES = 2**29
"""Beyond the checkpoint: what the measurement of the disk writes, and room to spare."""


def bench(
    model: Annotated[
        str, typer.Option(help=f"Shape of the model: {', '.join(MODELS)} (auto: tiny on a CPU).")
    ] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")] = 3,
    set_: Overrides = None,
    as_json: AsJson = False,
    root: Root = None,
) -> None:
    """Measure rollouts, training and a save on this machine, beside what its hardware allows.

    The model has random weights, so nothing is downloaded. Takes minutes and uses the GPU. The checkpoint is written
    below the root and removed; the figures are kept in bench.jsonl there, for grpo-train plan.
    """
    check_engine()
    machine = read_machine()
    config = bench_config(model, set_ or [], machine)
    if config.model.backbone not in MODELS:
        fail(f"--model {config.model.backbone}: choose from {', '.join(MODELS)}", 2)
    check_device(config.model.device, 1)
    with exiting_on_error():
        config, choices = resolve_auto(config, machine, resolve_root(root))
    folder = _folder(resolve_root(root))
    _check_room(config, folder)
    completions = config.rollout.buffer_size * config.rollout.num_generations
    rows = sorted({count for count in ROWS if count < completions} | {completions})
    length = min(LENGTH, config.rollout.max_completion_length)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=folder) as scratch:
        file = Path(scratch) / "config.yaml"
        file.write_text(dump_config(config), encoding="utf-8")
        command = [
            sys.executable, "-m", "grpo_train.bench", str(file), scratch,
            "--rows", ",".join(map(str, rows)), "--length", str(length), "--repeats", str(repeats),
        ]  # fmt: skip
        environment, started = compute_environment(thread_count(1, 1)), time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode == 1:  # it has said why
        raise typer.Exit(1)
    if done.returncode:
        fail(f"the measurement ended with exit code {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    chosen = {choice.key: choice.value for choice in choices}
    if "train.microbatch_size" in chosen:
        chosen["train.microbatch_size"] = min(chosen["train.microbatch_size"], found["microbatch_size"])
    found |= {"disk": str(folder), "config": {"model.backbone": config.model.backbone, **chosen}}
    found["work"]["startup"] = found["work"].pop("imported_at") - started + found["work"].pop("loading")
    kept = _keep(resolve_root(root), found)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)
        if kept:
            print(f"\nkept in {kept} for grpo-train plan")


def _keep(root: Path, found: dict[str, Any]) -> Path | None:
    """Add the figures to those of the root, for ``grpo-train plan``; None where there is no root yet."""
    if not os.access(root, os.W_OK):
        return None
    append_jsonl(root / FILE, {"time": utc_now(), "host": socket.gethostname(), **found})
    return root / FILE


def bench_config(model: str, overrides: list[str], machine: Platform) -> Config:
    """The measured config, with ``auto`` keys. Raises ConfigError."""
    is_cpu = not (machine.gpus or machine.gpu_problem) or "model.device=cpu" in overrides
    model = "tiny" if is_cpu and model == "auto" else model
    preset: dict[str, dict[str, Any]] = {
        "model": {"backbone": model},
        "rollout": {"max_prompt_length": 128, "max_completion_length": 512},
        "train": {"microbatch_size": "auto", "tf_micro_batch": "auto"},
    }
    if is_cpu:
        preset["rollout"] = {"buffer_size": 8, "max_prompt_length": 64, "max_completion_length": 64}
    if model == "tiny":
        preset["train"] = {"microbatch_size": 2, "tf_micro_batch": 32}
    return load_config(yaml.safe_dump(preset), overrides, source="grpo-train bench")


def _folder(root: Path) -> Path:
    """Where the checkpoint is written: on the disk of the runs, or, where there is none yet, of temporary files."""
    return root if os.access(root, os.W_OK) else Path(tempfile.gettempdir())


def _check_room(config: Config, folder: Path) -> None:
    shape = QWEN2_5.get(config.model.backbone)
    needed = (checkpoint_bytes(shape, config) if shape else 0) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        fail(
            f"{folder} has {free / 2**30:.1f} GiB free, and the checkpoint needs {needed / 2**30:.1f} GiB; choose "
            "another disk with --root"
        )


def _show(found: dict[str, Any]) -> None:
    rates, memory = found["rates"], found["memory"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    print(f"{found['device']}, {found['dtype']}, {versions}")
    print(f"{found['model']}, {_trained(found['adapter'])}, prompts of {found['prompt_length']} tokens, random weights")
    print(
        f"copy {rates['copy'] / 1e9:,.0f} GB/s, matrix products {rates['products'] / 1e12:,.2f} TFLOP/s, disk "
        f"{rates['disk'] / 1e9:.2f} GB/s ({found['disk']})"
    )
    for note in found["notes"]:
        print(note)
    print()
    table(("", "rows", "measured", "hardware allows", "share"), [_figure_row(figure) for figure in found["figures"]])
    split = found["step"]
    stages = {part: seconds for part, seconds in split.items() if not part.startswith("save")}
    whole = sum(stages.values())
    parts = ", ".join(f"{part} {seconds:.2f} s ({seconds / whole:.0%})" for part, seconds in stages.items())
    print(f"\nstep: {whole:.2f} s: {parts}")
    print(f"save: {split['save']:.2f} s, of which training waits {split['save_wait']:.2f} s")
    print(
        f"memory: peak {_gib(memory['peak_bytes'])}, estimated {_gib(memory['estimate_bytes'])}, of which weights and "
        f"optimizer {_gib(memory['state_bytes'])}"
    )
    print("\n# config for this machine")
    sections: dict[str, dict[str, Any]] = {}
    for key, value in found["config"].items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    print(yaml.safe_dump(sections, sort_keys=False), end="")


def _figure_row(figure: dict[str, Any]) -> list[str]:
    rate, best = (figure["amount"] / figure[name] for name in ("seconds", "floor_seconds"))
    name = figure["name"] if figure["name"] != "train" else "train (share = MFU)"
    cells = [
        f"{each:,.0f} tokens/s" if figure["unit"] == "tokens" else f"{each / 1e9:.2f} GB/s" for each in (rate, best)
    ]
    if figure["bandwidth_floor_seconds"]:
        cells[1] += f" (by bandwidth {figure['amount'] / figure['bandwidth_floor_seconds']:,.0f})"
    return [name, str(figure["rows"] or "-"), *cells, f"{figure['share']:.1%}"]


def _trained(adapter: str) -> str:
    return "LoRA" if adapter == "lora" else "all weights trained"


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
