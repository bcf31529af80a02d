"""The table of an evaluation tree, ``consolidated_metrics.csv``. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_train.evaluation.report.compare import Summary, update_comparisons
from grpo_train.evaluation.report.step import metrics_csv
from grpo_train.evaluation.targets import Unfinished
from grpo_train.run_dir import TABLE, read_table
from grpo_train.run_dir.files import atomic_write


def consolidate(folder: Path, label: str, unfinished: Sequence[Unfinished]) -> list[Summary]:
    """Update all comparisons of a tree and write its table; returns the summaries of the intact steps.

    ``unfinished`` steps are listed unless they have results. A failed one is listed beside the results of an earlier
    evaluation. A damaged step is listed without metrics; a missing or damaged metrics.csv is written again.
    """
    summaries, damaged = update_comparisons(folder, label)
    rows: list[dict[str, Any]] = [summary["metrics"] for summary in summaries]
    for row in rows:
        file, text = folder / f"{row['name']}_{label}" / "metrics.csv", metrics_csv([row])
        if not file.exists() or file.read_bytes() != text.encode():
            atomic_write(file, text)
    finished = {row["name"] for row in rows}
    listed = [each for each in [*unfinished, *damaged] if each.status == "failed" or each.name not in finished]
    others = {each.name: each for each in listed}
    rows += [{**asdict(each), "dataset": label} for each in others.values()]
    rows.sort(key=lambda row: (row["step"], row["name"]))
    atomic_write(folder / TABLE, metrics_csv(rows))
    return summaries


def unfinished_steps(folder: Path) -> list[Unfinished]:
    """The steps that a tree's table lists without a result."""
    return [Unfinished.from_row(row) for row in read_table(folder) if row["status"] != "ok"]
