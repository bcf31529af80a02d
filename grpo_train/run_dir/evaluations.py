"""The evaluations of a root: ``eval_runs/RUN_DATASET``, read. Standard library only."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.status import observe

TABLE = "consolidated_metrics.csv"


def eval_folder(root: Path, run: str, dataset: str) -> Path:
    """``eval_runs/RUN_DATASET``."""
    return root / "eval_runs" / f"{run}_{dataset}"


def list_evaluations(root: Path, run: str) -> list[dict[str, Any]]:
    """Each evaluation of a run: its folder's name, status, and one row a step of ``consolidated_metrics.csv``."""
    found = []
    for folder in sorted((root / "eval_runs").glob(f"{run}_*")):
        status = read_json(folder / "status.json")
        if status is None or status.get("training_run") != run:
            continue
        observed = observe(status)
        found.append({"name": folder.name, "state": observed.state, "status": status, "metrics": read_table(folder)})
    return found


def read_table(folder: Path) -> list[dict[str, str]]:
    """The rows of an evaluation's table; damaged ones are left out: the next evaluation or regrade writes it anew."""
    try:
        rows = list(csv.DictReader(io.StringIO((folder / TABLE).read_text(encoding="utf-8"), newline="")))
    except (FileNotFoundError, UnicodeDecodeError, csv.Error):
        return []
    whole = {"step", "name", "status", "accuracy"}
    return [row for row in rows if all(isinstance(row.get(key), str) for key in whole) and row["step"].isdecimal()]
