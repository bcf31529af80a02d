"""A step's result files: completions.jsonl, metrics.csv, summary.json, timing.json. Torch-free.

The first three are pure functions of the samples: an evaluation that was killed and rerun writes the same bytes as an
uninterrupted one. Clock times are only in timing.json.
"""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan, temperature_of
from grpo_train.evaluation.report.summary import COLUMNS, by_problem, metrics_of, summary_of, votes_of
from grpo_train.evaluation.results.stored import generated, key_at, set_aside
from grpo_train.evaluation.targets import Target
from grpo_train.run_dir.files import atomic_write, discarding, fsync_path, read_json, remove_tree, to_json
from grpo_train.run_dir.manifest import MANIFEST
from grpo_train.tasks import Problem, Task
from grpo_train.tasks.shared.base import same_value

VERDICT_FIELDS = ("answer", "correct", "flexible", "formatted", "reason", "score", "metrics", "facts")
MACHINE_KEYS = ("nproc", "timeout", "batch_size", "datasets")
"""Keys of ``eval`` that do not affect results (the batch size used is in the metrics)."""


def join_samples(
    step: int,
    problems: Sequence[Problem],
    samples: int,
    completions: Mapping[int, Mapping[str, Any]],
    verdicts: Mapping[int, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The lines of completions.jsonl, by problem and sample. Raises KeyError for a missing completion or verdict."""
    rows = []
    for item in range(len(problems) * samples):
        problem, completion, verdict = problems[item // samples], completions[item], verdicts[item]
        rows.append(
            {
                "step": step,
                "index": problem.index,
                "sample": item % samples,
                "question": problem.question,
                "gold": problem.answer,
                **generated(completion),
                **{name: verdict[name] for name in VERDICT_FIELDS},
            }
        )
    return rows


def step_settings(
    plan: EvalPlan, target: Target, config: Config, task: Task, layout: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings in a step's metrics, :data:`~grpo_train.evaluation.report.summary.SETTINGS`."""
    return {
        "step": target.step,
        "name": target.name,
        "dataset": plan.label,
        "subset_frac": config.eval.subset_frac,
        "temperature": temperature_of(config, task),
        "max_completion_length": config.eval.max_completion_length or config.rollout.max_completion_length,
        "batch_size": layout["batch_size"],
        "split": config.eval.split,
        "num_samples": config.eval.num_samples,
        "top_p": config.eval.top_p,
    }


def step_facts(plan: EvalPlan, target: Target, config: Config, task: Task, layout: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a step's summary about checkpoint, configuration and machine."""
    return {
        "checkpoint": layout["checkpoint"],
        "manifest": read_json(Path(target.path) / MANIFEST),
        "task": plan.config["task"],
        "eval": {name: value for name, value in plan.config["eval"].items() if name not in MACHINE_KEYS},
        "sandbox": plan.config["sandbox"],
        "seed": config.run.seed,
        "problems_in_split": task.size(config.eval.split),
        "run": {name: layout[name] for name in ("device", "torch", "transformers")},
    }


def write_step(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    key: Mapping[str, Any],
    facts: Mapping[str, Any],
    timing: Mapping[str, Any],
    same: Callable[[str, str], bool] = same_value,
) -> dict[str, Any]:
    """Replace a step's directory atomically; returns the metrics. ``same`` is the task's equality of answers.

    Earlier results of other samples (other settings, problems or weights) are set aside, see
    :mod:`grpo_train.evaluation.results.stored`.
    """
    votes = [votes_of(group, same) for group in by_problem(rows, settings["num_samples"])]
    metrics = metrics_of(rows, votes, settings)
    files = {
        "completions.jsonl": "".join(to_json(row) + "\n" for row in rows),
        "metrics.csv": metrics_csv([metrics]),
        "summary.json": to_json(summary_of(rows, votes, metrics, key, facts)) + "\n",
        "timing.json": to_json(timing) + "\n",
    }
    earlier = key_at(folder)
    _replace(folder, files, earlier if earlier and earlier.get("samples") != key["samples"] else None)
    return metrics


def metrics_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV: :data:`~grpo_train.evaluation.report.summary.COLUMNS`, then pass@k and maj@k."""
    curves = {name: None for row in rows for name in row if "@" in name}
    out = io.StringIO()
    writer = csv.DictWriter(out, [*COLUMNS, *curves], extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"done": row["n"], "total": row["n"], **row} if "n" in row else row for row in rows)
    return out.getvalue()


def _replace(folder: Path, files: Mapping[str, str], earlier: Mapping[str, Any] | None = None) -> None:
    """Write a directory with these files in place of the current one, which is set aside under the key ``earlier``."""
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    with discarding(staging):
        staging.mkdir(parents=True)
        for name, text in files.items():
            atomic_write(staging / name, text)
        if folder.exists() and earlier is not None:
            set_aside(folder, earlier)
        elif folder.exists():
            folder.rename(old)
        staging.rename(folder)
        fsync_path(folder.parent)
    remove_tree(old)
