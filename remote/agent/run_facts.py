"""Configuration and last metrics of many runs, for the columns and the filter of the list of runs."""

from __future__ import annotations

from typing import Any

from grpo_train.run_dir import RunDir, open_run
from grpo_train.run_dir.config_values import Value, config_values
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes
from remote.agent.context import BoxContext
from remote.protocol.listed_runs import RunFactsReply, RunFactsRequest


def run_facts(box: BoxContext, request: RunFactsRequest) -> RunFactsReply:
    """One row per run that can be read; what is the same in the configuration of all of them is sent once."""
    rows: list[dict[str, Any]] = []
    for name in request.runs:
        try:
            run = open_run(box.root, name)
            rows.append(
                {
                    "run": name,
                    "config": _config(run) if request.config else {},
                    "metrics": _metrics(run, request.metrics) if request.metrics else {},
                }
            )
        except (UserError, OSError, Unreadable):
            continue  # the list says why
    same: dict[str, Value] = dict(rows[0]["config"]) if len(rows) > 1 else {}
    for row in rows:
        same = {key: value for key, value in same.items() if key in row["config"] and row["config"][key] == value}
    for row in rows:
        row["config"] = {key: value for key, value in row["config"].items() if key not in same}
    return {"facts": rows, "same": same}


def _config(run: RunDir) -> dict[str, Value]:
    written = read_bytes(run.config_file, MAX_RUN_FILE_BYTES)
    return config_values(written.decode(errors="replace")) if written else {}


def _metrics(run: RunDir, names: list[str]) -> dict[str, Any]:
    row = run.last_step_row()
    return {name: row[name] for name in names if to_float(row.get(name)) is not None}
