"""Stored completions judged again by the graders of today: no model, no GPU, no torch.

What changed is said; where nothing did the files are the same, byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.evaluation.judging import Judges, attempt_of
from grpo_train.evaluation.plan import EvalError, find_run, task_of
from grpo_train.evaluation.report.files import COMPLETION, consolidate, join, without_result, write_step
from grpo_train.evaluation.report.summary import SETTINGS
from grpo_train.evaluation.results.keys import grading_key, problems_key
from grpo_train.evaluation.results.log import log_evaluation
from grpo_train.evaluation.results.stored import (
    AGAIN,
    DamagedError,
    name_and_step,
    read_rows,
    read_summary,
    restore_torn,
    steps_of,
)
from grpo_train.run_dir import RunDir, StatusWriter, list_evaluations
from grpo_train.run_dir.files import read_json
from grpo_train.sandbox import SandboxError
from grpo_train.tasks import TaskError

FACTS = ("checkpoint", "manifest", "task", "eval", "sandbox", "seed", "problems_in_split", "run")
WORDS_SHOWN = 5
"""Changed verdicts that are shown one by one."""


@dataclass(frozen=True)
class Regraded:
    """One step's verdicts, before and after."""

    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    """Metrics."""
    changed: Sequence[tuple[int, int, str, str]]
    """(problem index, sample, reason before, reason after) where the verdict is another."""

    def lines(self) -> Iterator[str]:
        """What changed, for people."""
        moved = f"accuracy {self.before['accuracy']:.4f} -> {self.after['accuracy']:.4f}"
        yield f"{self.after['dataset']} {self.name}: {len(self.changed)} of {self.after['n']} verdicts changed, {moved}"
        for index, sample, before, after in self.changed[:WORDS_SHOWN]:
            yield f"  problem {index}, sample {sample}: {before} -> {after}"
        if len(self.changed) > WORDS_SHOWN:
            yield f"  and {len(self.changed) - WORDS_SHOWN} more"


def regrade(root: Path, training_run: str, datasets: Sequence[str] = (), data: str | None = None) -> Iterator[Regraded]:
    """Judge every complete step of a run's evaluations again, or of those of some ``datasets`` (task names or labels).

    Each step is yielded once it is written. One that cannot be judged costs none of the others: it is told of at the
    end. ``data``: where the data set's file is by now. Raises EvalError, RunDirError, ConfigError, TaskError.
    """
    run, _, _ = find_run(root, training_run)
    found = False
    problems: list[str] = []
    for evaluation in list_evaluations(run.root, run.name):
        folder, label = run.root / "eval_runs" / evaluation["name"], str(evaluation["status"]["dataset"])
        if not (places := [place for place in steps_of(folder, label) if _is_of(place, label, datasets)]):
            continue
        status = StatusWriter(folder)  # nothing is being evaluated there
        try:
            restore_torn(folder)
            for place in places:
                found = True
                try:
                    yield _step(run, place, label, data)
                except DamagedError as error:
                    problems.append(f"{name_and_step(place, label)[0]}: {error}; {AGAIN}")
                except (EvalError, TaskError) as error:
                    problems.append(f"{name_and_step(place, label)[0]}: {error}")
        finally:
            consolidate(folder, label, without_result(folder))
            status.close()
    if problems:
        raise EvalError("\n".join(problems))
    if not found:
        what = f" of {', '.join(datasets)}" if datasets else ""
        raise EvalError(f"{run.name} has no complete evaluation{what} whose completions could be judged again")


def _step(run: RunDir, place: Path, label: str, data: str | None) -> Regraded:
    summary = read_summary(place) or {}
    if "key" not in summary:
        raise EvalError(f"{place} was evaluated by an earlier version, which kept too little; {AGAIN}")
    sections = {name: summary[name] for name in ("task", "eval", "sandbox")}
    if data is not None:
        sections["task"] = {**sections["task"], "path": data}
    config = Config.model_validate({**sections, "run": {"seed": summary["seed"]}})
    task = task_of(config)
    rows = read_rows(place)
    samples = summary["metrics"]["num_samples"]
    size = task.size(config.eval.split)
    problems = [task.problem(config.eval.split, row["index"]) for row in rows[::samples] if row["index"] < size]
    if problems_key(problems) != summary["key"]["samples"]["problems"]:
        raise EvalError(f"{place}: task {task.name} asks other problems than those that were answered (--eval-path)")
    completions = {item: {name: row[name] for name in COMPLETION} for item, row in enumerate(rows)}
    try:
        key = {**summary["key"], "grading": grading_key(task, config)}
    except SandboxError as error:
        raise TaskError(str(error)) from error
    with Judges(task, config.sandbox.workers or len(os.sched_getaffinity(0))) as judges:
        for item, completion in completions.items():
            problem, sample = divmod(item, samples)
            judges.submit(item, attempt_of(problems[problem], sample, label, completion))
        verdicts = {row["item"]: row for row in judges.done(wait=True)}
    settings = {name: summary["metrics"][name] for name in SETTINGS}
    facts = {name: summary[name] for name in FACTS}
    new = join(settings["step"], problems, samples, completions, verdicts)
    timing = read_json(place / "timing.json") or {}
    metrics = write_step(place, new, settings, key, facts, timing)
    log_evaluation(run, task, metrics, key, board=False)
    changed = [
        (old["index"], old["sample"], old["reason"], row["reason"])
        for old, row in zip(rows, new, strict=True)
        if (old["correct"], old["reason"], old["flexible"]) != (row["correct"], row["reason"], row["flexible"])
    ]
    return Regraded(settings["name"], summary["metrics"], metrics, changed)


def _is_of(place: Path, label: str, datasets: Sequence[str]) -> bool:
    if not datasets:
        return True
    summary = read_json(place / "summary.json") or {}
    return bool({label, summary.get("task", {}).get("name")} & set(datasets))
