"""The agent's handlers: one function per operation of :data:`remote.protocol.OPERATIONS`; those that only read.

A handler takes the box and its validated request and returns plain JSON. It raises UserError or OSError; the caller
turns those into a refusal.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_train.run_dir import (
    Checkpoint,
    RunDir,
    RunDirError,
    configs,
    list_baselines,
    list_checkpoints,
    list_evaluations,
    list_older_runs,
    open_run,
    utc_from,
)
from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.rows import printable
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes
from grpo_train.run_dir.workflow_file import workflow_state
from remote.agent import asks, backups, checkpoints, doctor, index, jobs, sessions
from remote.agent.backups import safe_to_terminate
from remote.agent.box import BoxContext, box_facts
from remote.agent.checkpoints import check_weights, list_weights
from remote.agent.engine import ask_engine, report
from remote.agent.grants import show_grant
from remote.agent.jobs import note, open_tensorboard, place_env, plan_resume, resume, set_up
from remote.agent.once import RequestRecord, once
from remote.agent.sessions import Sessions
from remote.agent.topics import RunTable, run_facts
from remote.protocol import RemoteError
from remote.protocol.box import CapturePaneReply, CapturePaneRequest, ListSessionsReply
from remote.protocol.check import Row
from remote.protocol.jobs import ListConfigsReply, ListTasksReply, ReadConfigReply, ReadConfigRequest
from remote.protocol.operations import NoParameters
from remote.protocol.runs import (
    CompareEvaluationsReply,
    CompareEvaluationsRequest,
    ListRunsReply,
    ListRunsRequest,
    ShowRunReply,
    ShowRunRequest,
)

MAX_EVENTS = 200
MAX_CAPTURED_LINES = 5_000
TASKS_WAIT_S = 20.0
VERDICTS_S = 15.0
COMPARE_WAIT_S = 90.0


def list_runs(box: BoxContext, request: ListRunsRequest) -> ListRunsReply:
    """The rows of the ``runs`` topic; with verdicts, as many of them as are known within :data:`VERDICTS_S`."""
    table = RunTable(box)
    rows = table.rows()
    if request.verdicts:
        table.verdicts.join(VERDICTS_S)
        rows = table.rows()
    return {"runs": rows}


def show_run(box: BoxContext, request: ShowRunRequest) -> ShowRunReply:
    """Everything about one run, of the current or the older layout; of a damaged run, what can be read."""
    older = box.root / "rl_runs" / request.run
    try:
        run = open_run(box.root, request.run)
    except RunDirError:
        if "/" in request.run or not older.is_dir():
            raise
        return _show_older(box, older)
    summary = run.summary()
    if request.verdict:
        with suppress(RemoteError):  # its log cannot be indexed, or takes long: the other facts stay
            summary["verdict"] = index.request(box, "verdict", run.name, {"run": run.name})["verdict"]
    events = deque((row for _, row in run.events()), maxlen=MAX_EVENTS)
    evaluations = list_evaluations(box.root, run.name)
    config_text, config_problem = _config_text(run)
    return {
        "run": printable(run.name),
        "layout": "run",
        "path": box.relative(run.path),
        "summary": summary,
        "status": run.read_status() or {},
        "launch": run.read_launch(),
        "config_text": config_text,
        "config_problem": config_problem,
        "checkpoints": _checkpoints(box, run.checkpoints(), run.training_state),
        "evaluations": evaluations,
        "baselines": baselines_of(box.root, evaluations),
        "events": list(events),
        "workflow": _workflow(run),
        "superseded": {file: [list(pair) for pair in ranges] for file, ranges in run.superseded().items()},
    }


def baselines_of(root: Path, evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Models evaluated without a run on the datasets of some evaluations."""
    datasets = {evaluation.get("dataset") for evaluation in evaluations}
    if not datasets:
        return []
    return [
        {**evaluation, "model": baseline["model"]}
        for baseline in list_baselines(root)
        for evaluation in baseline["evaluations"]
        if evaluation.get("dataset") in datasets
    ]


def _show_older(box: BoxContext, folder: Path) -> ShowRunReply:
    row = next((row for row in list_older_runs(box.root) if row["run"] == folder.name), {"run": folder.name})
    return {
        "run": folder.name,
        "layout": "rl_runs",
        "path": box.relative(folder),
        "summary": row,
        "status": {},
        "launch": {},
        "config_text": "",
        "checkpoints": _checkpoints(box, list_checkpoints(folder), folder),
        "evaluations": list_evaluations(box.root, folder.name),
        "events": [],
        "workflow": {},
        "superseded": {},
    }


def _config_text(run: RunDir) -> tuple[str, str]:
    """The resolved config once the engine has written it, until then the launched text; and why it cannot be read."""
    try:
        written = read_bytes(run.config_file, MAX_RUN_FILE_BYTES)
        text = run.read_launch().get("config_text") or "" if written is None else written.decode()
    except Unreadable as error:
        return "", str(error)
    except UnicodeDecodeError as error:
        return "", f"{run.config_file.name}: not UTF-8 text: {error}"
    return str(text), ""


def _workflow(run: RunDir) -> Row:
    with suppress(Unreadable, OSError):
        return workflow_state(run.path) or {}
    return {}


def _checkpoints(box: BoxContext, found: list[Checkpoint], folder: Path) -> list[Row]:
    aliases: dict[str, list[str]] = {}
    for alias in ("latest", "final"):
        link = folder / f"step_{alias}"
        if link.is_symlink():
            aliases.setdefault(os.path.basename(os.readlink(link)), []).append(alias)
    rows = []
    for checkpoint in found:
        with suppress(FileNotFoundError):  # pruned in the meantime
            rows.append(
                {
                    "step": checkpoint.step,
                    "complete": not checkpoint.problem,
                    "problem": checkpoint.problem,
                    "aliases": aliases.get(checkpoint.path.name, []),
                    "path": box.relative(checkpoint.path),
                    "saved_at": utc_from(checkpoint.path.stat().st_mtime),
                }
            )
    return rows


def list_configs(box: BoxContext, request: NoParameters) -> ListConfigsReply:
    """The training configs of the checkout."""
    folder = _config_folder(box)
    return {"configs": configs.list_configs(folder), "folder": str(folder)}


def read_config(box: BoxContext, request: ReadConfigRequest) -> ReadConfigReply:
    """Text of a config. Raises RemoteError ``secret`` for one that no run could be launched with."""
    text = configs.read_config(_config_folder(box), request.name)
    if secret := find_secret(text):
        raise RemoteError("secret", secret.explain(f"{request.name}, line {secret.line}"))
    return {"name": request.name, "text": text}


def _config_folder(box: BoxContext) -> Path:
    if box.repo is None:
        raise RemoteError("no_repo", "no checkout is configured for this box", "set 'repo' in boxes.yaml")
    folder = box.repo / "config"
    if not folder.is_dir():
        raise RemoteError("no_repo", f"{folder} is not a directory on this box", "correct 'repo' in boxes.yaml")
    return folder


def list_tasks(box: BoxContext, request: NoParameters) -> ListTasksReply:
    """The tasks of this box's engine. Raises RemoteError, with the engine's code."""
    tasks = ask_engine(box, ["tasks"], TASKS_WAIT_S, root=False)
    if not isinstance(tasks, dict) or not isinstance(tasks.get("tasks"), dict):
        raise RemoteError("no_answer", "grpo-train tasks did not list its tasks")
    return {"tasks": {name: str(description) for name, description in tasks["tasks"].items()}}


def compare_evaluations(box: BoxContext, request: CompareEvaluationsRequest) -> CompareEvaluationsReply:
    """The engine compares: ``grpo-train compare --with``. Raises RemoteError, with the engine's code."""
    for run in (request.run, *request.others):
        open_run(box.root, run)
    arguments = ["compare", f"--training-run={request.run}", *(f"--with={run}" for run in request.others)]
    if request.steps:
        arguments.append(f"--steps={','.join(map(str, request.steps))}")
    found = ask_engine(box, arguments, COMPARE_WAIT_S)
    try:
        problems = [str(each["error"]) for each in found["errors"]]
        return {"comparisons": [dict(each) for each in found["comparisons"]], "problems": problems}
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteError("no_answer", "grpo-train compare did not print a comparison") from error


def list_sessions(box: BoxContext, request: NoParameters) -> ListSessionsReply:
    return {"sessions": Sessions(box).rows()}


def capture_pane(box: BoxContext, request: CapturePaneRequest) -> CapturePaneReply:
    lines = min(request.lines, MAX_CAPTURED_LINES)
    return {"session": request.session, "text": Sessions(box).capture(request.session, lines)}


INDEXED = (
    "series", "metrics", "show_step", "level_changes", "verdict", "rollout_steps", "rollout_step", "problem_changes",
    "samples", "search_rollouts", "log_files", "read_log", "search_log", "log_bytes", "gpu_history",
)  # fmt: skip
"""The operations that the process of indexes answers."""
READS: dict[str, Callable[[BoxContext, Any], Any]] = {
    "doctor": doctor.doctor,
    "list_runs": list_runs,
    "show_run": show_run,
    "compare_evaluations": compare_evaluations,
    "report": report,
    "run_facts": run_facts,
    "list_configs": list_configs,
    "read_config": read_config,
    "list_tasks": list_tasks,
    "list_weights": list_weights,
    "check_weights": check_weights,
    "list_sessions": list_sessions,
    "capture_pane": capture_pane,
    "box_facts": box_facts,
    "checkpoint_sizes": checkpoints.checkpoint_sizes,
    "spare_checkpoints": checkpoints.spare_checkpoints,
    "list_destinations": backups.list_destinations,
    "list_backups": backups.list_backups,
    "stored_history": backups.stored_history,
    "plan_resume": plan_resume,
    "plan_back_up_all": backups.plan_back_up_all,
    "plan_cleanup": backups.plan_cleanup,
    "safe_to_terminate": safe_to_terminate,
    "show_grant": show_grant,
    **{op: index.handler(op) for op in INDEXED},
}
"""Handlers of the operations that only read."""
CHANGES: dict[str, Callable[[BoxContext, Any, RequestRecord], Any]] = {
    "launch": jobs.launch,
    "resume": resume,
    "evaluate": jobs.evaluate,
    "back_up": backups.back_up,
    "back_up_all": backups.back_up_all,
    "restore": backups.restore,
    "archive": backups.archive,
    "clean_up": backups.clean_up,
    "verify_backup": backups.verify_backup,
    "stop": jobs.stop,
    "kill": jobs.kill,
    "open_ask": asks.open_ask,
    "ask": asks.ask,
    "cancel_answer": asks.cancel_answer,
    "close_ask": asks.close_ask,
    "note": note,
    "place_env": place_env,
    "set_up": set_up,
    "open_tensorboard": open_tensorboard,
    "open_shell": sessions.open_shell,
    "send_line": sessions.send_line,
}
"""Handlers of the operations that change something; each request is carried out once."""
HANDLERS = {**READS, **{op: once(op, handler) for op, handler in CHANGES.items()}}
