"""What is heard of a run: from its directory, or from what a box's agent says about it."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_train.history.database import Database, News
from grpo_train.history.record import RunRecord, events_of, kept_evaluations, kept_summary, metric_ends
from grpo_train.history.spans import Span, run_spans
from grpo_train.run_dir import LIVE_STATES, RunDir, list_evaluations, list_older_runs, list_runs
from grpo_train.run_dir.configs import config_values
from grpo_train.run_dir.files import stat_of, time_of, to_float
from grpo_train.run_dir.identity import NOTE
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, leave_out, read_bytes
from grpo_train.run_dir.verdict import RunVerdict
from grpo_train.run_dir.verdict_rules import CurvesRead, judge_run

BATCH = 100
"""Runs that are written at once."""


def news_of(
    box: str,
    root: str,
    row: Mapping[str, Any],
    *,
    config_text: str | None = None,
    evaluations: Iterable[Mapping[str, Any]] | None = None,
    events: Iterable[Mapping[str, Any]] | None = None,
    metrics: Iterable[Mapping[str, Any]] | None = None,
    verdict: RunVerdict | None = None,
    signature: str | None = None,
) -> News | None:
    """News from a row of a list of runs, and what else is known; None for a row without an identity."""
    identity, name = row.get("identity"), str(row.get("run", ""))
    if not isinstance(identity, str) or not identity or row.get("state") == "unreadable":
        return None
    heard = None if events is None else list(events)
    found = None if evaluations is None else kept_evaluations(name, evaluations)
    parent = row.get("parent")
    return News(
        identity,
        box,
        root,
        name,
        summary=kept_summary(row if verdict is None else {**row, "verdict": verdict.to_json()}),
        config=None if config_text is None else config_values(config_text),
        metrics=None if metrics is None else metric_ends(metrics),
        evaluations=found,
        events=None if heard is None else events_of(heard),
        backup=_backup_word(row["backup"]) if "backup" in row else None,
        parent=parent if isinstance(parent, str) else None,
        spans=None if heard is None else run_spans(heard, row.get("updated_at"), to_float(row.get("run_seconds"))),
        signature=signature,
        evaluated={one["dataset"]: span for one in found or () if (span := _evaluated(one)) is not None},
    )


def plain_news(record: RunRecord) -> dict[str, Any]:
    """Everything that is kept of a run, as JSON, for a program with a history of its own."""
    return {
        "identity": record.identity, "root": record.root, "name": record.name,
        "summary": dict(record.summary), "config": record.config,
        "metrics": record.metrics, "evaluations": record.evaluations, "events": record.events,
        "backup": record.backup, "parent": record.parent,
    }  # fmt: skip


def news_from(row: Mapping[str, Any], box: str, root: str) -> News:
    """News from :func:`plain_news`. Raises KeyError, TypeError, ValueError for anything else."""
    return News(
        str(row["identity"]), box, root, str(row["name"]),
        summary=kept_summary(row["summary"]),
        config={str(key): value for key, value in row["config"].items()},
        metrics={str(name): [_number(value) for value in values] for name, values in row["metrics"].items()},
        evaluations=[dict(one) for one in row["evaluations"]],
        events=events_of(row["events"]),
        backup=str(row["backup"]),
        parent=str(row["parent"] or "") or None,
    )  # fmt: skip


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def refresh(database: Database, root: Path, box: str) -> list[str]:
    """Make a database the mirror of a root: what changed is read, and what is gone is forgotten.

    Returns the runs that cannot be read, with the reason.
    """
    problems = read_root(database, root, box)
    names = {run.name for run in list_runs(root)} | {row["run"] for row in list_older_runs(root)}
    identities = database.identities(box, str(root))
    database.forget_missing(box, str(root), [identity for name, identity in identities.items() if name in names])
    return problems


def read_root(database: Database, root: Path, box: str) -> list[str]:
    """Bring a database up to date with the runs of a root; returns as :func:`refresh`."""
    known, problems = database.signatures(box, str(root)), []
    evaluations = _evaluation_signatures(root)
    batch: list[News] = []
    for run in list_runs(root):
        signature = _signature(run, evaluations)
        if known.get(run.name) == signature:
            continue
        row = run.summary()
        one = _read(box, root, run, row, "" if row["state"] in LIVE_STATES else signature)
        if isinstance(one, str):
            problems.append(f"{row['run']}: {one}")
            continue
        batch.append(one)
        if len(batch) == BATCH:
            database.write(batch)
            batch = []
    for row in list_older_runs(root):
        if known.get(row["run"]) != (signature := _older_signature(row, evaluations)):
            one = _read_older(box, root, row, signature)
            batch.append(one) if isinstance(one, News) else problems.append(f"{row['run']}: {one}")
    database.write(batch)
    return problems


def _read(box: str, root: Path, run: RunDir, row: Mapping[str, Any], signature: str) -> News | str:
    """The news of a run, or why it cannot be read. ``signature``: "" = it is read again next time."""
    try:
        data = read_bytes(run.config_file, MAX_RUN_FILE_BYTES)
        text = None if data is None else data.decode()
    except UnicodeDecodeError:  # written by another program
        leave_out(run.config_file, "not UTF-8 text")
        text = None
    except (OSError, Unreadable) as error:  # another account's
        return str(error)
    try:
        metrics, verdict = read_curves(run)
        found = news_of(
            box,
            str(root),
            row,
            config_text=text,
            evaluations=list_evaluations(run.root, run.name),
            events=[event for _, event in run.events()],
            metrics=metrics,
            verdict=verdict,
            signature=signature,
        )
    except (OSError, Unreadable) as error:  # another account's; removed in the meantime
        return str(error)
    return found or str((row.get("error") or {}).get("summary") or "no launch.json")


def _read_older(box: str, root: Path, row: Mapping[str, Any], signature: str) -> News | str:
    """The news of a run of the older layout: its last checkpoint and its evaluations; or why it cannot be read."""
    found = news_of(
        box, str(root), row, evaluations=list_evaluations(root, str(row["run"])), signature=signature
    )  # fmt: skip
    return found or str((row.get("error") or {}).get("summary") or "unreadable")


def read_curves(run: RunDir) -> tuple[list[dict[str, Any]], RunVerdict | None]:
    """Last, lowest and highest value of each metric of a run, as rows of a ``metrics`` reply have them; its verdict."""
    found: dict[str, dict[str, Any]] = {}
    read = CurvesRead()
    for row in run.read_log("train_log.jsonl"):
        read.add(row)
        for name, value in row.items():
            if name in ("step", "time") or (number := to_float(value)) is None:
                continue
            known = found.setdefault(name, {"name": name, "min": None, "max": None})
            known["last"] = value
            if math.isfinite(number):
                known["min"] = number if known["min"] is None else min(known["min"], number)
                known["max"] = number if known["max"] is None else max(known["max"], number)
    return list(found.values()), judge_run(run, read.steps, read.columns.__getitem__)


def _backup_word(state: Any) -> str:
    """State of a backup as the filters of the app know it."""
    if not isinstance(state, Mapping):
        return "none"
    return "same disk" if state.get("same_disk") else "behind" if state.get("behind") else "complete"


def _evaluated(one: Mapping[str, Any]) -> Span | None:
    start, end = time_of(one.get("started_at")), time_of(one.get("updated_at"))
    return (start, end) if start is not None and end is not None and end > start else None


def _signature(run: RunDir, evaluations: Sequence[tuple[str, int]]) -> str:
    """What the files of a run are like: one whose files are as they were is not read again."""
    parts = []
    for path in (
        run.status_file,
        run.launch_file,
        run.config_file,
        run.events_file,
        run.path / NOTE,
        run.logs / "train_log.jsonl",
    ):
        facts = stat_of(path)
        parts.append(f"{facts.st_ino}.{facts.st_size}.{facts.st_mtime_ns}" if facts else "-")
    return " ".join([*parts, *_changes(run.name, evaluations)])


def _older_signature(row: Mapping[str, Any], evaluations: Sequence[tuple[str, int]]) -> str:
    """The same of a run of the older layout."""
    return " ".join([str(row.get("logged_at")), str(row.get("step")), *_changes(str(row["run"]), evaluations)])


def _changes(run: str, evaluations: Sequence[tuple[str, int]]) -> Iterator[str]:
    """When the evaluations of a run changed; ``evaluations`` are sorted."""
    prefix = f"{run}_"
    for name, changed in evaluations[bisect_left(evaluations, (prefix, 0)) :]:
        if not name.startswith(prefix):
            break
        yield str(changed)


def _evaluation_signatures(root: Path) -> list[tuple[str, int]]:
    """Name of each evaluation and when its status changed, sorted."""
    found = []
    with suppress(OSError):  # none yet
        for folder in os.scandir(root / "eval_runs"):
            if facts := stat_of(f"{folder.path}/status.json"):
                found.append((folder.name, facts.st_mtime_ns))
    return sorted(found)
