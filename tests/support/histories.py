"""Runs of a root as history reads them, made without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.files import append_jsonl, to_json, utc_from

BEGAN = 1_790_000_000.0
"""When the first run was launched; each takes an hour."""
HOUR = 3600.0


def make_run(
    root: Path,
    name: str,
    *,
    state: str = "finished",
    began: float = BEGAN,
    hours: float = 1.0,
    steps: int = 10,
    reward: float = 0.5,
    config: str = "",
    accuracy: tuple[float, ...] = (),
    **status: Any,
) -> RunDir:
    """A run that ran once, and was evaluated on gsm8k at as many steps as there are accuracies."""
    run = create_run(root, {"argv": [name], "time": utc_from(began)}, name)
    ended = began + hours * HOUR
    run.config_file.write_text(
        "run:\n  total_steps: 20\ntask:\n  name: gsm8k\noptimizer:\n  learning_rate: 1.0e-05\n"
        f"rollout:\n  buffer_size: 4\n  num_generations: 8\n{config}"
    )
    run.events_file.unlink()
    append_jsonl(run.events_file, {"step": 0, "time": utc_from(began), "event": "launched"})
    if state in ("finished", "stopped", "crashed"):
        append_jsonl(run.events_file, {"step": steps, "time": utc_from(ended), "event": state})
    with (run.logs / "train_log.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            at = began + hours * HOUR * step / steps
            share = reward * step / steps if step < steps else reward
            row = {
                "step": step,
                "time": utc_from(at),
                "reward": share,
                "loss": 1 / step,
                "time/step": hours * HOUR / steps,
            }
            log.write(to_json(row) + "\n")
    fields = {
        "state": state, "started_at": utc_from(began), "updated_at": utc_from(ended), "run_seconds": hours * HOUR,
        "total_steps": 20, "nproc": 1, "device": "NVIDIA H200", **status,
    }  # fmt: skip
    run.status_file.write_text(json.dumps(fields))
    if accuracy:
        evaluate(run, accuracy, began=ended)
    return run


def evaluate(run: RunDir, accuracy: tuple[float, ...], began: float = BEGAN, hours: float = 0.5) -> None:
    """An evaluation of a run, a step per accuracy: 0, 10, 20, …"""
    folder = run.root / "eval_runs" / f"{run.name}_gsm8k"
    folder.mkdir(parents=True, exist_ok=True)
    status = {
        "state": "finished", "training_run": run.name, "dataset": "gsm8k", "started_at": utc_from(began),
        "updated_at": utc_from(began + hours * HOUR),
    }  # fmt: skip
    (folder / "status.json").write_text(json.dumps(status))
    lines = ["step,name,dataset,status,done,total,error,code,accuracy,ci_low,ci_high,n"]
    for index, value in enumerate(accuracy):
        step = 10 * index
        lines.append(f"{step},step_{step},gsm8k,ok,200,200,,,{value},{value - 0.03:.4f},{value + 0.03:.4f},200")
    (folder / "consolidated_metrics.csv").write_text("\n".join(lines) + "\n")
