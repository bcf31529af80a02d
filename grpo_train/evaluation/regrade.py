"""Judging stored completions again with the current graders: no model, no GPU, no torch.

If no verdict changes, the files stay the same, byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.evaluation.baselines import find_evaluated
from grpo_train.evaluation.judging import Judges
from grpo_train.evaluation.plan import task_of
from grpo_train.evaluation.report.step import join_samples, write_step
from grpo_train.evaluation.report.summary import SETTINGS
from grpo_train.evaluation.report.table import consolidate, unfinished_steps
from grpo_train.evaluation.request import EvalError
from grpo_train.evaluation.results.keys import grading_key, problems_key
from grpo_train.evaluation.results.log import log_evaluation
from grpo_train.evaluation.results.stored import (
    RERUN_HINT,
    DamagedError,
    generated,
    name_and_step,
    read_completion_rows,
    read_summary,
    restore_torn,
    steps_of,
)
from grpo_train.evaluation.targets import Unfinished
from grpo_train.run_dir import RunDir, StatusWriter, list_evaluations
from grpo_train.run_dir.display import fraction
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json
from grpo_train.tasks.shared.base import equality_of

FACTS = ("checkpoint", "manifest", "task", "eval", "sandbox", "seed", "problems_in_split", "run")
"""Entries of summary.json that are copied."""
CHANGES_SHOWN = 5


@dataclass(frozen=True)
class ChangedVerdict:
    """A verdict that changed."""

    index: int
    """Problem."""
    sample: int
    before: str
    """Verdict reason."""
    after: str


@dataclass(frozen=True)
class Regraded:
    """The verdicts of one step, before and after."""

    dataset: str
    name: str
    step: int
    n: int
    accuracy_before: float
    accuracy: float
    changed: list[ChangedVerdict]

    def lines(self) -> Iterator[str]:
        """Summary and the first changes as text."""
        moved = f"accuracy {fraction(self.accuracy_before)} -> {fraction(self.accuracy)}"
        yield f"{self.dataset} {self.name}: {len(self.changed)} of {self.n} verdicts changed, {moved}"
        for change in self.changed[:CHANGES_SHOWN]:
            yield f"  problem {change.index}, sample {change.sample}: {change.before} -> {change.after}"
        if len(self.changed) > CHANGES_SHOWN:
            yield f"  and {len(self.changed) - CHANGES_SHOWN} more"


def regrade_evaluations(
    root: Path, training_run: str, datasets: Sequence[str] = (), data: str | None = None
) -> Iterator[Regraded | Unfinished]:
    """Judge every complete step of a run's evaluations again; ``datasets`` limits them by task name or label.

    Each step is yielded once its files are written, or as :class:`Unfinished` if it cannot be judged. ``data`` is the
    current path of the dataset. Raises EvalError if the run has no complete step, RunDirError, ConfigError.
    """
    run = find_evaluated(root, training_run)
    found = False
    for evaluation in list_evaluations(run.root, run.name):
        tree, label = run.root / "eval_runs" / evaluation["name"], evaluation["dataset"]
        folders = [folder for folder in steps_of(tree, label) if _matches(folder, label, datasets)]
        if not folders:
            continue
        status = StatusWriter(tree)  # holds the lock: no evaluation writes to this tree meanwhile
        try:
            restore_torn(tree)
            for folder in folders:
                found = True
                try:
                    yield _regrade_step(run, folder, label, data)
                except UserError as error:
                    hint = f"; {RERUN_HINT}" if isinstance(error, DamagedError) else ""
                    yield Unfinished(*name_and_step(folder, label), "failed", f"{error}{hint}", error.code)
        finally:
            consolidate(tree, label, unfinished_steps(tree))
            status.close()
    if not found:
        of = f" of {', '.join(datasets)}" if datasets else ""
        raise EvalError(f"{run.name} has no complete evaluation{of}")


def _regrade_step(run: RunDir, folder: Path, label: str, data: str | None) -> Regraded:
    summary = read_summary(folder) or {}
    if "key" not in summary:
        raise EvalError(f"{folder} was written by an earlier version and cannot be judged again; {RERUN_HINT}")
    sections = {name: summary[name] for name in ("task", "eval", "sandbox")}
    if data is not None:
        sections["task"] = {**sections["task"], "path": data}
    config = Config.model_validate({**sections, "run": {"seed": summary["seed"]}})
    task = task_of(config)
    rows = read_completion_rows(folder)
    samples = summary["metrics"]["num_samples"]
    size = task.size(config.eval.split)
    problems = [task.problem(config.eval.split, row["index"]) for row in rows[::samples] if row["index"] < size]
    if problems_key(problems) != summary["key"]["samples"]["problems"]:
        raise EvalError(
            f"{folder}: the problems of task {task.name} have changed since the evaluation (see --eval-path)"
        )
    completions = {item: generated(row) for item, row in enumerate(rows)}
    key = {**summary["key"], "grading": grading_key(task, config)}
    threads = config.sandbox.workers or len(os.sched_getaffinity(0))
    with Judges(task, threads, problems, samples, label) as judges:
        for item, completion in completions.items():
            judges.submit(item, completion)
        verdicts = {row["item"]: row for row in judges.done(wait=True)}
    settings = {name: summary["metrics"][name] for name in SETTINGS}
    new_rows = join_samples(settings["step"], problems, samples, completions, verdicts)
    timing = read_json(folder / "timing.json") or {}
    facts = {name: summary[name] for name in FACTS}
    metrics = write_step(folder, new_rows, settings, key, facts, timing, equality_of(task))
    log_evaluation(run, task, metrics, key, tensorboard=False)
    return Regraded(
        dataset=metrics["dataset"],
        name=metrics["name"],
        step=metrics["step"],
        n=metrics["n"],
        accuracy_before=summary["metrics"]["accuracy"],
        accuracy=metrics["accuracy"],
        changed=[
            ChangedVerdict(old["index"], old["sample"], old["reason"], new["reason"])
            for old, new in zip(rows, new_rows, strict=True)
            if _verdict(old) != _verdict(new)
        ],
    )


def _verdict(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["correct"], row["reason"], row["flexible"]


def _matches(folder: Path, label: str, datasets: Sequence[str]) -> bool:
    if not datasets:
        return True
    summary = read_json(folder / "summary.json") or {}
    return bool({label, summary.get("task", {}).get("name")} & set(datasets))
