"""The evaluating process: loads each checkpoint, answers the problems, grades, writes the step's three files.

Started by :mod:`grpo_train.evaluation.runner` with a plan's file and the descriptor to report on. A step's directory
appears only when it is complete.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from grpo_train.evaluation.plan import Target, wilson_interval
from grpo_train.evaluation.runner import metrics_csv
from grpo_train.files import JsonlWriter, atomic_write, fsync_directory, read_json, to_json
from grpo_train.policy.loading import load_policy, pick_device
from grpo_train.policy.locate import PolicyError, base_of_checkpoint, check_weights, recorded_base
from grpo_train.processes import die_with_parent
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.run_dir import remove_tree
from grpo_train.schema import Config
from grpo_train.tasks import Attempt, Task, load_task


def main() -> int:
    """Evaluate every target of the plan; a step that raises is reported and the next one goes on."""
    die_with_parent(signal.SIGKILL)
    plan = json.loads(Path(sys.argv[1]).read_text())
    channel = int(sys.argv[2])

    def report(event: str, **fields: Any) -> None:
        os.write(channel, (json.dumps({"event": event, **fields}) + "\n").encode())

    config = Config.model_validate(plan["config"])
    task = load_task(config.task)
    for target in (Target(**target) for target in plan["targets"]):
        report("started", name=target.name)
        try:
            evaluate(target, plan, config, task, report)
            report("done")
        except Exception as error:  # one step must not cost the others
            if not isinstance(error, PolicyError):
                traceback.print_exc()
            report(
                "failed", reason=f"{error}" if isinstance(error, PolicyError) else f"{type(error).__name__}: {error}"
            )
    return 0


def evaluate(target: Target, plan: dict[str, Any], config: Config, task: Task, report: Any) -> None:
    """Write ``FOLDER/NAME_DATASET/{completions.jsonl, metrics.csv, summary.json}``."""
    began = time.perf_counter()
    device = pick_device()
    path = Path(target.path)
    root = Path(plan["root"])
    base = plan["base"] or base_of_checkpoint(path, root)
    weights = None if path == root else check_weights(path)
    policy = load_policy(config.model, root, device, weights=weights, base=base, trainable=False)
    backend = TransformersBackend(policy.model, policy.tokenizer, stop=task.stop)
    torch.manual_seed(config.run.seed)
    budget = config.eval.max_completion_length or config.rollout.max_completion_length
    problems = [task.problem("test", index) for index in plan["indices"]]
    prompts = policy.tokenizer([problem.prompt for problem in problems])["input_ids"]
    order = sorted(range(len(problems)), key=lambda k: len(prompts[k]))  # like lengths side by side: little padding
    rows: dict[int, dict[str, Any]] = {}
    batch_size = 32 if config.eval.batch_size == "auto" else config.eval.batch_size
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        completions = backend.generate(
            [prompts[k] for k in chosen],
            num_generations=1,
            max_completion_length=budget,
            temperature=config.eval.temperature or 0.0,
        )
        texts = policy.tokenizer.batch_decode([c.ids for c in completions], skip_special_tokens=True)
        for k, completion, text in zip(chosen, completions, texts, strict=True):
            attempt = Attempt(problems[k], text, truncated=not completion.finished, length=len(completion.ids))
            grade = task.judge(attempt)
            rows[k] = {
                "step": target.step,
                "index": problems[k].index,
                "question": problems[k].question,
                "gold": problems[k].answer,
                "completion": text,
                "answer": grade.answer,
                "correct": grade.correct,
                "formatted": grade.formatted,
                "reason": grade.reason,
                "length": len(completion.ids),
                "truncated": not completion.finished,
            }
        report("progress", done=len(rows), total=len(problems))
    ordered = [rows[k] for k in range(len(problems))]
    metrics = _metrics(target, plan, config, ordered, budget, time.perf_counter() - began)
    summary = {
        "metrics": metrics,
        "reasons": dict(Counter(row["reason"] for row in ordered)),
        "checkpoint": recorded_base(target.path, root) if weights else policy.base,
        "manifest": read_json(path / "MANIFEST.json"),
        "task": plan["config"]["task"],
        "eval": plan["config"]["eval"],
        "device": str(device),
        "torch": torch.__version__,
    }
    _write_step(Path(plan["folder"]) / f"{target.name}_{plan['label']}", ordered, metrics, summary)


def _metrics(
    target: Target, plan: dict[str, Any], config: Config, rows: list[dict[str, Any]], budget: int, seconds: float
) -> dict[str, Any]:
    total, correct = len(rows), sum(row["correct"] for row in rows)
    low, high = wilson_interval(correct, total)
    return {
        "step": target.step,
        "name": target.name,
        "dataset": plan["label"],
        "status": "ok",
        "accuracy": correct / total,
        "ci_low": low,
        "ci_high": high,
        "correct": correct,
        "n": total,
        "format_rate": sum(row["formatted"] for row in rows) / total,
        "truncated_rate": sum(row["truncated"] for row in rows) / total,
        "mean_length": sum(row["length"] for row in rows) / total,
        "subset_frac": config.eval.subset_frac,
        "temperature": config.eval.temperature,
        "max_completion_length": budget,
        "batch_size": config.eval.batch_size,
        "seconds": round(seconds, 3),
    }


def _write_step(folder: Path, rows: list[dict[str, Any]], metrics: dict[str, Any], summary: dict[str, Any]) -> None:
    """The step's directory, complete or not at all; an earlier evaluation of the step is replaced."""
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        staging.mkdir(parents=True)
        writer = JsonlWriter(staging / "completions.jsonl")
        writer.write(*rows)
        writer.sync()
        writer.close()
        atomic_write(staging / "metrics.csv", metrics_csv([metrics]))
        atomic_write(staging / "summary.json", to_json(summary) + "\n")
        old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
        if folder.exists():
            folder.rename(old)
        staging.rename(folder)
        fsync_directory(folder.parent)
        remove_tree(old)
    except BaseException:
        remove_tree(staging)
        raise


if __name__ == "__main__":
    raise SystemExit(main())
