"""The evaluations of a root: ``eval_runs/RUN_DATASET``, read. Standard library only."""

from __future__ import annotations

import csv
import glob
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_train.run_dir.configs import config_values
from grpo_train.run_dir.fields import MAX_TEXT
from grpo_train.run_dir.formats import current_table_row
from grpo_train.run_dir.safe_json import (
    MAX_FILE_BYTES,
    MAX_RUN_FILE_BYTES,
    Unreadable,
    leave_out,
    read_bytes,
    read_object,
)
from grpo_train.run_dir.status import ObservedState, read_state

TABLE = "consolidated_metrics.csv"
MARK = "@"
"""First character of a baseline's name (a model evaluated without a run); a run's starts with a letter or digit."""
_TEXTS = ("dataset", "started_at", "updated_at")


def eval_folder(root: Path, run: str, dataset: str) -> Path:
    """``eval_runs/RUN_DATASET``."""
    return root / "eval_runs" / f"{run}_{dataset}"


def list_evaluations(root: Path, run: str) -> list[dict[str, Any]]:
    """Each evaluation of a run: its folder's name, status, one row a step of ``consolidated_metrics.csv``, and of its
    status ``dataset``, ``started_at`` and ``updated_at``; of one at work also ``target``, with ``done`` of ``total``
    samples. ``problem``: why its status cannot be read."""
    found = []
    for folder in sorted((root / "eval_runs").glob(f"{glob.escape(run)}_*")):
        try:
            status, observed, problem = read_evaluation(folder)
        except PermissionError:  # another account's
            continue
        if status.get("training_run") != run:
            continue
        row = {"name": folder.name, "state": observed.state, "status": status, "metrics": read_table(folder)}
        row["dataset"] = folder.name.removeprefix(f"{run}_")
        texts = {key: value for key in _TEXTS if isinstance(value := status.get(key), str) and len(value) <= MAX_TEXT}
        work = _progress(status) if observed.is_live else {}
        found.append({**row, **texts, **work, **({"problem": problem} if problem else {})})
    return found


def _progress(status: Mapping[str, Any]) -> dict[str, Any]:
    """What is evaluated now, and how many of its samples are done; {} until the first are."""
    found = status.get("progress")
    known = found if isinstance(found, dict) else {}
    target, done, total = (known.get(key) for key in ("name", "done", "total"))
    if not isinstance(target, str) or type(done) is not int or type(total) is not int or not 0 <= done <= total:
        return {}
    return {"target": target[:MAX_TEXT], "done": done, "total": total}


def read_evaluation(folder: Path) -> tuple[dict[str, Any], ObservedState, str]:
    """The status of an evaluation, its state, and why its status cannot be read; ``training_run`` and ``dataset`` are
    then those of ``eval_config.yaml``."""
    status, observed = read_state(folder)
    if status is not None:
        return status, observed, ""
    try:
        read_object(folder / "status.json", MAX_RUN_FILE_BYTES)
        problem = "status.json is missing"
    except Unreadable as error:
        problem = str(error)
    try:
        config = (read_bytes(folder / "eval_config.yaml", MAX_RUN_FILE_BYTES) or b"").decode()
    except (Unreadable, UnicodeDecodeError):
        config = ""
    names = {key: value for key, value in config_values(config).items() if key in ("training_run", "dataset")}
    return names, ObservedState("unreadable"), problem


def trouble_of(evaluation: Mapping[str, Any]) -> str:
    """Of a row of :func:`list_evaluations`: why its state is unknown; "" where it is known."""
    problem = evaluation.get("problem")
    return f"{evaluation['name']}: its state is unknown: {problem}; evaluate again to write it" if problem else ""


def list_baselines(root: Path) -> list[dict[str, Any]]:
    """Every baseline of a root: ``run`` (its name), ``model`` and ``evaluations``, those of ``list_evaluations``."""
    names: dict[str, str] = {}
    for folder in sorted((root / "eval_runs").glob(f"{MARK}*")):
        try:
            status = read_evaluation(folder)[0]
        except PermissionError:  # another account's
            continue
        name = status.get("training_run")
        if isinstance(name, str) and name.startswith(MARK):
            names.setdefault(name, str(status.get("model") or ""))
    return [{"run": name, "model": model, "evaluations": list_evaluations(root, name)} for name, model in names.items()]


def read_table(folder: Path) -> list[dict[str, str]]:
    """Rows of an evaluation's table, as text; a damaged table or row is left out.

    ``status`` is ok, partial, failed, skipped or damaged; ``done`` of ``total`` samples are finished; ``error`` and
    ``code`` say why there is no result. The next evaluation or regrade rewrites a damaged table.
    """
    try:
        data = read_bytes(folder / TABLE, MAX_FILE_BYTES) or b""
        rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    except (Unreadable, UnicodeDecodeError, csv.Error) as error:
        leave_out(folder / TABLE, "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error)
        return []
    texts = {"step", "name", "status", "accuracy"}
    whole = [row for row in rows if None not in row and all(isinstance(row.get(key), str) for key in texts)]
    whole = [row for row in whole if row["step"].isascii() and row["step"].isdecimal()]
    if len(whole) < len(rows):
        leave_out(folder / TABLE, f"{len(rows) - len(whole)} of {len(rows)} rows are damaged")
    return [current_table_row(row) for row in whole]
