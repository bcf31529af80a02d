"""A checkpoint's results on disk: its samples put together, its three files, the table of all checkpoints. Torch-free.

completions.jsonl, metrics.csv and summary.json are pure functions of what was generated: an evaluation that was killed
and run again writes the same bytes as one that was not. What a clock said is in timing.json.
"""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.evaluation.judging import GRADER_ERROR
from grpo_train.evaluation.plan import EvalPlan, Target, temperature_of
from grpo_train.evaluation.report.compare import compared
from grpo_train.evaluation.report.summary import COLUMNS, metrics_of, summary_of
from grpo_train.evaluation.results.stored import DamagedError, problem_of, read_summary, set_aside
from grpo_train.run_dir import TABLE, read_table
from grpo_train.run_dir.files import atomic_write, fsync_directory, read_json, remove_tree, to_json
from grpo_train.run_dir.manifest import MANIFEST
from grpo_train.tasks import Problem, Task

VERDICT = ("answer", "correct", "flexible", "formatted", "reason", "score")
OF_THE_MACHINE = ("nproc", "timeout", "batch_size", "datasets")
"""Keys of ``eval`` that no result depends on (the batch size in use is in the metrics)."""
COMPLETION = ("seed", "completion", "length", "truncated")


def join(
    step: int,
    problems: Sequence[Problem],
    samples: int,
    completions: Mapping[int, Mapping[str, Any]],
    verdicts: Mapping[int, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The lines of completions.jsonl, by problem and sample. Raises KeyError where a sample or a verdict is missing."""
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
                **{name: completion[name] for name in COMPLETION},
                **{name: verdict[name] for name in VERDICT},
                "metrics": verdict["metrics"],
                "facts": verdict["facts"],
            }
        )
    return rows


def settings_of(
    plan: EvalPlan, target: Target, config: Config, task: Task, layout: Mapping[str, Any]
) -> dict[str, Any]:
    """What a step's metrics say that is not measured."""
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


def facts_of(plan: EvalPlan, target: Target, config: Config, task: Task, layout: Mapping[str, Any]) -> dict[str, Any]:
    """What a step's summary says of the checkpoint, the configuration and the machine."""
    return {
        "checkpoint": layout["checkpoint"],
        "manifest": read_json(Path(target.path) / MANIFEST),
        "task": plan.config["task"],
        "eval": {name: value for name, value in plan.config["eval"].items() if name not in OF_THE_MACHINE},
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
) -> dict[str, Any]:
    """Write a step's directory, complete or not at all, in place of an earlier one; returns the metrics.

    Earlier results of other samples (other settings, problems, weights) are kept, see :mod:`.stored`.
    """
    metrics = metrics_of(rows, settings)
    files = {
        "completions.jsonl": "".join(to_json(row) + "\n" for row in rows),
        "metrics.csv": metrics_csv([metrics]),
        "summary.json": to_json(summary_of(rows, metrics, key, facts)) + "\n",
        "timing.json": to_json(timing) + "\n",
    }
    earlier = key_at(folder)
    _replace(folder, files, earlier if earlier and earlier.get("samples") != key["samples"] else None)
    return metrics


def key_at(folder: Path) -> dict[str, Any] | None:
    """The key of the results in a directory, {} where they do not say it; None where there are no results."""
    if not folder.exists():
        return None
    try:
        return dict((read_summary(folder) or {}).get("key") or {})
    except DamagedError:
        return {}


def _replace(folder: Path, files: Mapping[str, str], earlier: Mapping[str, Any] | None = None) -> None:
    """A directory with these files, complete or not at all; one that was there before is replaced.

    ``earlier``: its key, where it is to be set aside.
    """
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    try:
        staging.mkdir(parents=True)
        for name, text in files.items():
            atomic_write(staging / name, text)
        if folder.exists() and earlier is not None:
            set_aside(folder, earlier)
        elif folder.exists():
            folder.rename(old)
        staging.rename(folder)
        fsync_directory(folder.parent)
    except BaseException:
        remove_tree(staging)
        raise
    remove_tree(old)


def is_complete(folder: Path, key: Mapping[str, Any]) -> bool:
    """Whether a step's results are there, whole, of this very key, and no grader failed on the way."""
    if problem_of(folder):
        return False
    summary = read_json(folder / "summary.json") or {}
    return summary.get("key") == key and GRADER_ERROR not in summary.get("reasons", {})


def metrics_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV under :data:`~grpo_train.evaluation.report.summary.COLUMNS`, pass@k and maj@k behind them."""
    curves = {name: None for row in rows for name in row if "@" in name}
    out = io.StringIO()
    writer = csv.DictWriter(out, [*COLUMNS, *curves], extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def consolidate(folder: Path, label: str, without: Mapping[str, tuple[int, str]]) -> None:
    """Compare every step in the tree with those before it, and write ``consolidated_metrics.csv``.

    ``without``: step and status of names that may have no result. A damaged result has none, and its row says so; a
    step's metrics.csv that is missing or damaged is written again.
    """
    summaries, damaged = compared(folder, label)
    rows = [summary["metrics"] for summary in summaries]
    have = {row["name"] for row in rows}
    for row in rows:
        file, text = folder / f"{row['name']}_{label}" / "metrics.csv", metrics_csv([row])
        if not file.exists() or file.read_bytes() != text.encode():
            atomic_write(file, text)
    for name, (step, status) in {**without, **damaged}.items():
        if name not in have:
            rows.append({"step": step, "name": name, "dataset": label, "status": status})
    rows.sort(key=lambda row: (row["step"], row["name"]))
    atomic_write(folder / TABLE, metrics_csv(rows))


def without_result(folder: Path) -> dict[str, tuple[int, str]]:
    """The names that the table lists without a result: step and status."""
    return {row["name"]: (int(row["step"]), row["status"]) for row in read_table(folder) if row["status"] != "ok"}
