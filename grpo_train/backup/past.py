"""The history of the runs of a store: what its backups say of each, read without checkpoints."""

from __future__ import annotations

import math
from typing import Any

from grpo_train.backup.layout import Home
from grpo_train.backup.peek import look, newest_manifest, runs_in
from grpo_train.backup.snapshot import Snapshot
from grpo_train.backup.snapshots import homes
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.history.database import Database, News
from grpo_train.history.news import news_of, scan_metrics
from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.identity import OLDER_LAYOUT, older_identity
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes

BATCH = 20
"""Runs that are written at once."""


def read_store(
    database: Database, store: ObjectStore, destination: str, until: float = math.inf, clock: Clock = CLOCK
) -> tuple[list[str], bool]:
    """Bring a database up to date with the runs of a store.

    A run that a box has, too, stays with the box. Returns the runs that cannot be read, with the reason, and whether
    all were looked at: after ``until`` (``clock.monotonic()``), no further run is read; the next call continues. Raises
    StoreError, HistoryError.
    """
    root, has_read, complete = root_of(store), False, True
    known, problems, batch = database.signatures(destination, root), [], []
    for home in [*runs_in(store), *homes(store, OLDER_LAYOUT)]:
        snapshot = newest_manifest(store, home)
        signature = _signature(snapshot)
        if snapshot is None or known.get(home.name) == signature:
            continue
        if has_read and clock.monotonic() > until:
            complete = False
            break
        has_read = True
        try:
            news, found = _news(store, home, snapshot, destination, root, signature)
        except (StoreError, Unreadable, OSError) as error:  # removed or damaged since it was listed
            if isinstance(error, StoreError) and error.code not in ("missing", "damaged"):
                raise
            problems.append(f"{home.name}: {error}")
            continue
        problems += [f"{home.name}: {problem}" for problem in found]
        batch.append(news)
        if len(batch) == BATCH:
            database.write(batch)
            batch = []
    database.write(batch)
    return problems, complete


def root_of(store: ObjectStore) -> str:
    """A store as the root of a record: always a URL, which tells it from the root of a box."""
    return store.url if "://" in store.url else f"file://{store.url}"


def _signature(snapshot: Snapshot | None) -> str:
    return f"{snapshot.identity} {snapshot.number}" if snapshot else ""


def _news(
    store: ObjectStore, home: Home, snapshot: Snapshot, box: str, root: str, signature: str
) -> tuple[News, tuple[str, ...]]:
    """What a snapshot says of a run, and which of its files are damaged. Raises StoreError, Unreadable, OSError."""
    with look(store, home, snapshot) as found:
        run = found.run
        row = _older_row(home, snapshot) if home.kind == OLDER_LAYOUT else _row(run, snapshot, found.state)
        text = read_bytes(run.config_file, MAX_RUN_FILE_BYTES)
        news = news_of(
            box, root, row,
            config_text=None if text is None else text.decode(errors="replace"),
            evaluations=list_evaluations(run.root, run.name),
            events=[event for _, event in run.events()],
            metrics=scan_metrics(run),
            signature=signature,
        )  # fmt: skip
    assert news is not None
    # Where it ran is not known: these spans must not take the place of the box's.
    news.spans, news.evaluated, news.backup = None, {}, "complete"
    return news, found.problems


def _row(run: RunDir, snapshot: Snapshot, state: str) -> dict[str, Any]:
    row = {**run.summary(), "state": state, "host": snapshot.host or None, "backup": None}
    if not row.get("identity"):
        reason = (row.get("error") or {}).get("summary") or "no launch.json"
        raise Unreadable(f"snapshot {snapshot.number}: {reason}")
    return row


def _older_row(home: Home, snapshot: Snapshot) -> dict[str, Any]:
    steps = [step.step for step in snapshot.steps]
    return {
        "run": home.name, "identity": older_identity(home.name, steps), "state": "old layout", "layout": OLDER_LAYOUT,
        "step": max(steps, default=0), "logged_at": snapshot.time,
    }  # fmt: skip
