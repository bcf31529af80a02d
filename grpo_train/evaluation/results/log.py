"""Evaluation results beside the training logs: ``logs/eval_log.jsonl`` and TensorBoard scalars. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_train.evaluation.results.stored import digest
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import append_jsonl, parse_time, read_jsonl, to_float, utc_now
from grpo_train.tasks import Task

SCALARS = (
    "accuracy", "ci_low", "ci_high", "flexible_accuracy", "format_rate", "truncated_rate", "mean_length",
    "grader_error_rate", "timeout_rate",
)  # fmt: skip


def scalars_of(task: Task, label: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """``LABEL_eval/NAME`` for each number; MBPP also gets the field's names ``pass_rate`` and ``problems_passed``."""
    names = [*SCALARS, *(name for name in metrics if "@" in name)]
    found = {f"{label}_eval/{name}": metrics[name] for name in names if metrics.get(name) is not None}
    if task.name == "mbpp":
        # With several samples: the expected number of problems solved by one sample each.
        passed = metrics["correct"] if metrics["num_samples"] == 1 else metrics["accuracy"] * metrics["problems"]
        found |= {f"{label}_eval/pass_rate": metrics["accuracy"], f"{label}_eval/problems_passed": passed}
    return found


def log_evaluation(
    run: RunDir, task: Task, metrics: Mapping[str, Any], key: Mapping[str, Any], *, tensorboard: bool
) -> None:
    """Append an evaluated step of the run to its log, and to TensorBoard if asked; no-op for a result already logged.

    Runs of the older layout and checkpoints under custom names are not logged.
    """
    step = int(metrics["step"])
    if not run.config_file.exists() or metrics["name"] != f"step_{step}":
        return
    scalars = scalars_of(task, metrics["dataset"], metrics)
    line = {"step": step, "time": utc_now(), **scalars, "n": metrics["n"], "key": digest(key)[:16]}
    path = run.logs / "eval_log.jsonl"
    if any({**row, "time": line["time"]} == line for _, row in read_jsonl(path)):
        return
    append_jsonl(path, line)
    if tensorboard:
        write_scalars(run.path / "tensorboard" / "eval", step, scalars, str(line["time"]))


def write_scalars(folder: Path, step: int, scalars: Mapping[str, float], time: str) -> None:
    """Write an event file with these scalars, without torch.

    ``folder`` must not be the training's: TensorBoard follows only the newest file of a directory, so a training in
    progress would no longer be updated.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    values = [Summary.Value(tag=tag, simple_value=to_float(value)) for tag, value in scalars.items()]
    writer.add_event(Event(wall_time=parse_time(time), step=step, summary=Summary(value=values)))
    writer.close()
