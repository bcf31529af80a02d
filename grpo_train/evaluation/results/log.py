"""Evaluations beside the training: a line in the run's logs/eval_log.jsonl and TensorBoard scalars. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_train.evaluation.results.keys import digest
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import append_jsonl, parse_time, read_jsonl, to_float, utc_now
from grpo_train.tasks import Task

SCALARS = (
    "accuracy", "ci_low", "ci_high", "flexible_accuracy", "format_rate", "truncated_rate", "mean_length",
    "grader_error_rate", "timeout_rate",
)  # fmt: skip


def scalars_of(task: Task, label: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """``LABEL_eval/NAME`` for each number; mbpp's ``pass_rate`` and ``problems_passed`` are the field's own names."""
    names = [*SCALARS, *(name for name in metrics if "@" in name)]
    found = {f"{label}_eval/{name}": metrics[name] for name in names if metrics.get(name) is not None}
    if task.name == "mbpp":
        # With several samples a problem the number of problems that one sample of each is expected to solve.
        passed = metrics["correct"] if metrics["num_samples"] == 1 else metrics["accuracy"] * metrics["problems"]
        found |= {f"{label}_eval/pass_rate": metrics["accuracy"], f"{label}_eval/problems_passed": passed}
    return found


def log_evaluation(run: RunDir, task: Task, metrics: Mapping[str, Any], key: Mapping[str, Any], *, board: bool) -> None:
    """Append one evaluated step of a run, once per content: a rerun that made nothing new adds no line.

    ``board``: write TensorBoard scalars as well.
    """
    step = int(metrics["step"])
    if not run.config_file.exists() or metrics["name"] != f"step_{step}":
        return  # an older run, or somebody else's checkpoint under a name of its own
    scalars = scalars_of(task, metrics["dataset"], metrics)
    line = {"step": step, "time": utc_now(), **scalars, "n": metrics["n"], "key": digest(key)[:16]}
    path = run.logs / "eval_log.jsonl"
    made = {name: value for name, value in line.items() if name != "time"}
    for _, row in read_jsonl(path):
        if {name: value for name, value in row.items() if name != "time"} == made:
            return
    append_jsonl(path, line)
    if board:
        write_scalars(run.path / "tensorboard" / "eval", step, scalars, str(line["time"]))


def write_scalars(folder: Path, step: int, scalars: Mapping[str, float], time: str) -> None:
    """An event file with these scalars, without torch.

    A directory of its own: where one directory has several files TensorBoard goes on to the newest, and a training
    under way would be lost from sight.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    values = [Summary.Value(tag=tag, simple_value=to_float(value)) for tag, value in scalars.items()]
    writer.add_event(Event(wall_time=parse_time(time), step=step, summary=Summary(value=values)))
    writer.close()
