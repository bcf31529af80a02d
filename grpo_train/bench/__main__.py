"""``python -m grpo_train.bench CONFIG SCRATCH [--rows N,…] [--length N]``: print one JSON object.

``grpo-train bench`` resolves the config, runs this process and shows the result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from grpo_train.bench.measure import (
    REPEATS,
    Trainer,
    machine_rates,
    rollout_figures,
    save_figure,
    sync_figure,
    train_figure,
)
from grpo_train.bench.subject import make_subject, shape_of
from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.platforms.memory import state_bytes, training_bytes
from grpo_train.platforms.speeds import shape_parameters
from grpo_train.policy.loading import compute_type, device_name, pick_device
from grpo_train.policy.memory import total_bytes
from grpo_train.run_dir.errors import exiting_on_error


def measure_all(config: Config, scratch: Path, rows: list[int], length: int, repeats: int = REPEATS) -> dict[str, Any]:
    """All measurements; ``rows`` and ``length`` are those of the rollouts. Files go below ``scratch``.

    Raises PolicyError, RunDirError, CheckpointError, OSError.
    """
    imported_at, device = time.monotonic(), pick_device(config.model.device)
    dtype = compute_type(config.model, device)
    shape, subject = shape_of(config.model.backbone), make_subject(config)
    _say("measuring the machine")
    rates = machine_rates(device, dtype, scratch)
    step_prompts = subject.prompts(config.rollout.buffer_size)
    loading = time.monotonic()
    trainer = Trainer(subject.policy(device), config, step_prompts)
    loading = time.monotonic() - loading
    forward = trainer.forward
    found = (forward.description, *forward.notes, trainer.compiling.note, *trainer.backend.fallbacks.values())
    notes = [note for note in found if note]
    figures = [sync_figure(trainer, shape, rates)]
    for count in rows:
        _say(f"generating {count} completions at once")
        prompts = [list(ids) for ids in subject.tokenizer(subject.prompts(count, seed=1))["input_ids"]]
        figures += rollout_figures(trainer, prompts, shape, rates, length)
    _say("training")
    trainer.step()
    steps = [trainer.step() for _ in range(repeats)]
    figures.append(train_figure(trainer, steps, rates))
    _say("saving")
    save, waited = save_figure(trainer, rates, scratch)
    figures.append(save)
    name = str(dtype).removeprefix("torch.")
    prompts_per_pass = max(1, trainer.rows.rows // config.rollout.num_generations)
    split = {part: median(getattr(step, part) for step in steps) for part in ("rollout", "gradient", "optimizer")}
    trainer.close()
    return {
        "device": device_name(device),
        "dtype": name,
        "versions": {package: version(package) for package in ("torch", "transformers", "peft")},
        "threads": torch.get_num_threads(),
        "notes": notes,
        "model": config.model.backbone,
        "adapter": config.model.adapter,
        "prompt_length": config.rollout.max_prompt_length,
        "rates": asdict(rates),
        "work": {
            "parameters": shape_parameters(shape),
            "prompts": config.rollout.buffer_size,
            "completions": config.rollout.buffer_size * config.rollout.num_generations,
            "length": config.rollout.max_completion_length,
            "imported_at": imported_at,
            "loading": loading,
        },
        "figures": [{**asdict(figure), "share": figure.share} for figure in figures],
        "step": {**split, "save": save.seconds, "save_wait": waited},
        "memory": {
            "peak_bytes": max(step.peak_bytes for step in steps),
            "above_bytes": max((step.above_bytes for step in steps if step.above_bytes), default=None),
            "state_bytes": state_bytes(shape, config, name),
            "estimate_bytes": training_bytes(shape, config, name, prompts_per_pass, total_bytes(device)),
        },
        "microbatch_size": prompts_per_pass,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rows", default="1")
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    config = load_config(options.config.read_text(encoding="utf-8"), source=str(options.config))
    rows = [int(count) for count in options.rows.split(",")]
    warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, caused by peft and TRL
    with exiting_on_error():
        found = measure_all(config, options.scratch, rows, options.length, options.repeats)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
