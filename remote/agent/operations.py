"""The requests that only read, one function each, and the table of all requests.

An operation takes the place and the request's parameters, returns plain JSON, and raises RemoteError, RunDirError or
OSError; the caller turns those into words.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_train.run_dir import (
    Checkpoint,
    RunDir,
    RunDirError,
    configs,
    list_checkpoints,
    list_evaluations,
    list_older_runs,
    open_run,
    utc_from,
)
from grpo_train.run_dir.files import read_jsonl
from remote.agent import doctor, jobs
from remote.agent.context import Place, find_engine
from remote.agent.sessions import Sessions
from remote.agent.watch import RunTable
from remote.protocol import RemoteError

EVENTS_SHOWN = 200
MAX_CAPTURED_LINES = 5_000
TASKS_WAIT_S = 20.0

Operation = Callable[[Place, dict[str, Any]], dict[str, Any]]


def list_runs(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """{"runs": rows} as the ``runs`` topic has them."""
    return {"runs": RunTable(place).rows()}


def show_run(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """All there is to know of one run: summary, launch, config_text, checkpoints, evaluations, events, superseded."""
    name = jobs.text(params, "run")
    older = place.root / "rl_runs" / name
    try:
        run = open_run(place.root, name)
    except RunDirError:
        if "/" in name or not older.is_dir():
            raise
        return _show_older(place, older)
    events = [row for _, row in read_jsonl(run.events_file)]
    return {
        "run": run.name,
        "layout": "run",
        "path": place.relative(run.path),
        "summary": run.summary(),
        "status": run.read_status() or {},
        "launch": run.read_launch(),
        "config_text": _config_text(run),
        "checkpoints": _checkpoints(place, run.checkpoints(), run.training_state),
        "evaluations": list_evaluations(place.root, run.name),
        "events": events[-EVENTS_SHOWN:],
        "superseded": {file: [list(pair) for pair in ranges] for file, ranges in run.superseded().items()},
    }


def _show_older(place: Place, folder: Path) -> dict[str, Any]:
    row = next((row for row in list_older_runs(place.root) if row["run"] == folder.name), {"run": folder.name})
    return {
        "run": folder.name,
        "layout": "rl_runs",
        "path": place.relative(folder),
        "summary": row,
        "status": {},
        "launch": {},
        "config_text": "",
        "checkpoints": _checkpoints(place, list_checkpoints(folder), folder),
        "evaluations": list_evaluations(place.root, folder.name),
        "events": [],
        "superseded": {},
    }


def _config_text(run: RunDir) -> str:
    """The resolved config where the engine wrote it, else the text that was asked for."""
    try:
        return run.config_file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return str(run.read_launch().get("config_text") or "")


def _checkpoints(place: Place, found: list[Checkpoint], folder: Path) -> list[dict[str, Any]]:
    aliases: dict[str, list[str]] = {}
    for alias in ("latest", "final"):
        link = folder / f"step_{alias}"
        if link.is_symlink():
            aliases.setdefault(os.path.basename(os.readlink(link)), []).append(alias)
    return [
        {
            "step": checkpoint.step,
            "complete": not checkpoint.problem,
            "problem": checkpoint.problem,
            "aliases": aliases.get(checkpoint.path.name, []),
            "path": place.relative(checkpoint.path),
            "saved_at": utc_from(checkpoint.path.stat().st_mtime),
        }
        for checkpoint in found
    ]


def list_configs(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """{"configs": [{"name", "size", "modified"}], "folder"} of the checkout's ``config/``."""
    folder = _config_folder(place)
    return {"configs": configs.list_configs(folder), "folder": str(folder)}


def read_config(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """{"name", "text"} of a config that ``list_configs`` lists."""
    name = jobs.text(params, "name")
    return {"name": name, "text": configs.read_config(_config_folder(place), name)}


def list_tasks(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """{"tasks": {name: what it asks}}: what the box's engine takes as a task's name. Only the engine knows."""
    argv = [*find_engine(place).argv, "tasks", "--json"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TASKS_WAIT_S, text=True, errors="replace",
            cwd=place.directory if place.directory.is_dir() else "/",
        )  # fmt: skip
        found = json.loads(done.stdout.strip().rpartition("\n")[2])["tasks"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise RemoteError("no_tasks", f"the engine did not list its tasks: {' '.join(argv)}") from error
    return {"tasks": {str(name): str(what) for name, what in dict(found).items()}}


def _config_folder(place: Place) -> Path:
    if place.repo is None:
        raise RemoteError("no_repo", "no checkout is set for this box", "set 'repo' in boxes.yaml")
    folder = place.repo / "config"
    if not folder.is_dir():
        raise RemoteError("no_repo", f"{folder} is no directory on this box", "correct 'repo' in boxes.yaml")
    return folder


def list_sessions(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """{"sessions": rows} of the box's tmux."""
    return {"sessions": Sessions(place).rows()}


def capture_pane(place: Place, params: dict[str, Any]) -> dict[str, Any]:
    """{"session", "text"}: the last ``lines`` (default 200) of a session."""
    name = jobs.text(params, "session")
    lines = max(1, min(int(params.get("lines") or 200), MAX_CAPTURED_LINES))
    return {"session": name, "text": Sessions(place).capture(name, lines)}


OPERATIONS: dict[str, Operation] = {
    "doctor": doctor.doctor,
    "list_runs": list_runs,
    "show_run": show_run,
    "list_configs": list_configs,
    "read_config": read_config,
    "list_tasks": list_tasks,
    "launch": jobs.launch,
    "stop": jobs.stop,
    "kill": jobs.kill,
    "evaluate": jobs.evaluate,
    "resume": jobs.resume,
    "list_sessions": list_sessions,
    "capture_pane": capture_pane,
}
