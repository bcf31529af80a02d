"""``grpo-train runs``, ``show``, ``tasks`` and ``device``: inspect without changing anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from grpo_train.cli.options import AsJson, Root, RunArgument
from grpo_train.cli.output import on_terminal, state_cell, styled, table
from grpo_train.policy.device import training_device
from grpo_train.policy.locate import hub_id
from grpo_train.run_dir import list_baselines, list_evaluations, list_older_runs, list_runs, open_run, resolve_root
from grpo_train.run_dir.backup_note import steps_in_backup
from grpo_train.run_dir.display import fraction, metric_value
from grpo_train.run_dir.errors import exiting_on_error
from grpo_train.run_dir.evaluations import trouble_of
from grpo_train.run_dir.files import number_in
from grpo_train.run_dir.verdict import VERDICTS
from grpo_train.run_dir.verdict_rules import verdict_of
from grpo_train.tasks import task_kinds
from grpo_train.tracking.wandb.process import failure_of


def runs(as_json: AsJson = False, root: Root = None) -> None:
    """List all runs, newest first, and the models evaluated without a run."""
    folder = resolve_root(root)
    rows = [run.summary() for run in list_runs(folder)] + list_older_runs(folder)
    baselines = list_baselines(folder)
    if as_json:
        rows += [{**each, "state": "baseline", "layout": "eval_runs"} for each in baselines]
        print(json.dumps(rows, indent=1))
        return
    if not rows and not baselines:
        print(f"no runs under {folder}; start one with  grpo-train train --cfg config/testconfig.yaml")
        return
    cells = [
        [
            row["run"],
            state_cell(row["state"], row.get("host") or ""),
            _progress(row),
            _reward(row.get("reward")),
            str(row.get("device") or ""),
        ]
        for row in rows
    ]
    if rows:
        table(("run", "state", "step", "reward", "device"), cells, plain=map(_plain_line, rows))
    if baselines:
        columns = ("model without a run", "name", "dataset", "accuracy", "95 % interval", "samples")
        table(columns, [line for each in baselines for line in _baseline_lines(each)])


def show(run: RunArgument, as_json: AsJson = False, root: Root = None) -> None:
    """Show one run: its state, error, checkpoints and evaluations."""
    found = open_run(resolve_root(root), run)
    facts: dict[str, Any] = {
        **found.summary(),
        "path": str(found.path),
        "verdict": None if (verdict := verdict_of(found)) is None else verdict.to_json(),
        "health": found.last_step_row().get("health", []),
        "launch": found.read_launch(),
        "checkpoints": [
            {"step": c.step, "path": str(c.path), "complete": not c.problem, "problem": c.problem}
            for c in found.checkpoints()
        ],
        "backup": (found.read_status() or {}).get("backup"),
        "tracking_failed": failure_of(found),
        "in_backup": [
            {"step": step, "destination": name} for step, name in sorted(steps_in_backup(found.path).items())
        ],
        "evaluations": list_evaluations(found.root, found.name),
    }
    if as_json:
        print(json.dumps(facts, indent=1))
    elif on_terminal():
        _show_tables(facts)
    else:
        print("\n".join(_plain_facts(facts)))


def tasks(as_json: AsJson = False) -> None:
    """List the tasks that can be trained and evaluated."""
    kinds = task_kinds()
    if as_json:  # every accepted task.name, aliases included
        print(json.dumps({"tasks": {name: kind.summary for kind in kinds for name in kind.names}}))
        return
    rows = [[kind.name, kind.summary] for kind in kinds]
    table(("task", "description"), rows, plain=(f"{name:<17} {summary}" for name, summary in rows))


def device() -> None:
    """Show the device that training uses, or why torch cannot use the GPUs."""
    with exiting_on_error():
        print(training_device())


def _show_tables(facts: dict[str, Any]) -> None:
    """Print a run as tables for a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    state = state_cell(facts["state"], facts.get("host") or "")
    numbers = f"  step {_progress(facts)}  reward {_reward(facts.get('reward'))}  {facts.get('device') or ''}"
    console.print(Text.assemble((facts["run"], "bold"), "  ", state, numbers))
    console.print(Text(facts["path"], style="dim"))
    if verdict := facts["verdict"]:
        console.print(styled(_verdict_line(verdict), VERDICTS[verdict["word"]][1]))
    for record in facts["health"]:
        console.print(styled(f"{record['level']}: {record['message']}", record["level"]))
    if facts.get("reason"):
        console.print(Text(f"reason: {facts['reason']}"))
    if trouble := _backup_trouble(facts["backup"]):
        console.print(Text(trouble, style="yellow"))
    if trouble := _tracking_trouble(facts["tracking_failed"]):
        console.print(Text(trouble, style="yellow"))
    for line in _error_lines(facts.get("error")):
        console.print(Text(line, style="red"))
    checkpoints = [[f"step_{c['step']}", c["problem"] or "complete"] for c in facts["checkpoints"]]
    checkpoints += [[f"step_{each['step']}", f"in backup ({each['destination']})"] for each in facts["in_backup"]]
    if checkpoints:
        table(("checkpoint", "status"), checkpoints)
    evaluated = [
        [evaluation["name"], row["step"], row["accuracy"], row["status"]]
        for evaluation in facts["evaluations"]
        for row in evaluation["metrics"]
    ]
    for trouble in filter(None, map(trouble_of, facts["evaluations"])):
        console.print(Text(trouble, style="yellow"))
    if evaluated:
        table(("evaluation", "step", "accuracy", "status"), evaluated)


def _plain_facts(facts: dict[str, Any]) -> Iterator[str]:
    yield f"{facts['run']}: {facts['state']}, step {_progress(facts)}, reward {_reward(facts.get('reward'))}"
    yield f"  {facts['path']}"
    if verdict := facts["verdict"]:
        yield f"  {_verdict_line(verdict)}"
    for record in facts["health"]:
        yield f"  {record['level']}: {record['message']}"
    if facts.get("reason"):
        yield f"  reason: {facts['reason']}"
    if trouble := _backup_trouble(facts["backup"]):
        yield f"  {trouble}"
    if trouble := _tracking_trouble(facts["tracking_failed"]):
        yield f"  {trouble}"
    for line in _error_lines(facts.get("error")):
        yield f"  {line}"
    for checkpoint in facts["checkpoints"]:
        yield f"  step_{checkpoint['step']:<6} {checkpoint['problem'] or 'complete'}"
    for each in facts["in_backup"]:
        yield f"  step_{each['step']:<6} in backup ({each['destination']})"
    for evaluation in facts["evaluations"]:
        if trouble := trouble_of(evaluation):
            yield f"  {trouble}"
        for row in evaluation["metrics"]:
            yield f"  {evaluation['name']}: step {row['step']} accuracy {row['accuracy']}"


def _verdict_line(verdict: dict[str, Any]) -> str:
    return f"{VERDICTS[verdict['word']][0]} {verdict['word']}: {verdict['text']}"


def _backup_trouble(facts: Any) -> str:
    """Why the backups of ``backup.every_save`` fail; "" where they do not."""
    if not isinstance(facts, dict) or facts.get("state") != "failed":
        return ""
    return f"backup of step {facts.get('step')} failed: {facts.get('error')}"


def _tracking_trouble(event: dict[str, Any] | None) -> str:
    """What W&B lacks of a run, and how it gets it; "" where it lacks nothing."""
    return f"W&B: {event.get('error')}; {event.get('hint')}" if event else ""


def _baseline_lines(baseline: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each dataset that a model was evaluated on."""
    name, commit = hub_id(baseline["model"])
    model = f"{name}@{commit[:7]}" if commit else name
    for evaluation in baseline["evaluations"]:
        for row in evaluation["metrics"]:
            interval = f"[{_share(row.get('ci_low'))}, {_share(row.get('ci_high'))}]"
            result = [_share(row["accuracy"]), interval] if row["status"] == "ok" else [row["status"], "-"]
            yield [model, baseline["run"], evaluation.get("dataset", ""), *result, row.get("n") or "-"]


def _share(text: str | None) -> str:
    share = number_in(text)
    return "?" if share is None else fraction(share)  # of a damaged table


def _error_lines(error: dict[str, Any] | None) -> Iterator[str]:
    """A run's last error with its traceback, or the last console lines."""
    if not error:
        return
    yield f"error: {error['summary']}"
    details = error.get("traceback") or "\n".join(error.get("console_tail") or [])
    for line in details.splitlines():
        yield f"  | {line}"


def _plain_line(row: dict[str, Any]) -> str:
    state = f"{row['state']} on {row['host']}" if row.get("host") else row["state"]
    total = row.get("total_steps") or "?"
    return f"{row['run']:<32} {state:<12} {row['step']:>6}/{total:<6} reward {_reward(row.get('reward'))}"


def _progress(row: dict[str, Any]) -> str:
    return f"{row['step']}/{row.get('total_steps') or '?'}"


def _reward(value: Any) -> str:
    return metric_value(value) if isinstance(value, float) else str(value or "-")
