"""The list of runs of a root, cheap to read again: a run whose files did not change is not read again.

One run that cannot be read *must* not affect the rows of the others. A root that cannot be read is an error, never an
empty list.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from grpo_train.run_dir import LIVE_STATES, RunDir, identity, list_older_runs
from grpo_train.run_dir.errors import code_of
from grpo_train.run_dir.notes import NOTE
from grpo_train.run_dir.owners import not_readable
from grpo_train.run_dir.root import is_run
from grpo_train.run_dir.rows import unreadable_row
from grpo_train.run_dir.workflow_file import NAME as WORKFLOW
from grpo_train.run_dir.workflow_file import is_workflow, workflow_state
from remote.agent.context import BoxContext
from remote.agent.ends import Ends
from remote.agent.held_out import HeldOutResults
from remote.agent.slurm.states import Jobs
from remote.agent.transfers import Transfers
from remote.protocol import RemoteError
from remote.protocol.rows import UNREADABLE

OLDER_RUNS_EVERY_S = 30.0
MAX_ROWS = 10_000
"""The client accepts no longer list."""
MAX_ERROR_CHARACTERS = 1 << 20
"""Of all errors of a list as JSON; of further ones only code and summary are sent, to bound the frame."""
MAX_SUMMARY = 1_000


_ANY = RunDir(Path("run"))
_FILES = [
    os.path.relpath(file, _ANY.path)
    for file in (
        _ANY.status_file,
        _ANY.logs / "train_log.jsonl",
        _ANY.stop_file,
        _ANY.launch_file,
        _ANY.events_file,
        _ANY.path / NOTE,
        _ANY.path / WORKFLOW,
        _ANY.path / identity.NOTE,
    )
]
"""What a summary is made of, as texts: to join paths takes five times as long as to stat them."""


class RunTable:
    """The rows of all runs."""

    def __init__(self, box: BoxContext) -> None:
        self._root, self._clock = box.root, box.clock
        self._known: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        """Run name to (signature of its files, row)."""
        self._directories: dict[str, RunDir] = {}
        self._older: tuple[float, list[dict[str, Any]]] = (0.0, [])
        self._ends = Ends(box)
        self._held_out = HeldOutResults(box.root, box.clock)
        self._transfers = Transfers(box.root, box.clock)
        self._jobs = Jobs(box) if box.settings.scheduler == "slurm" else None

    def rows(self) -> list[dict[str, Any]]:
        """``RunDir.summary()`` of every run, newest first, then the runs of the older layout.

        Each with ``held_out`` and ``transfer``.

        Raises RemoteError when the root cannot be read.
        """
        rows, known = [], {}
        if self._jobs is not None:
            self._jobs.refresh()
        for run in self._runs():
            name = run.path.name
            signature = _signature(run)
            entry = self._known.get(name)
            # a live state can change while no file does: its process may be gone, its last sign of life too old
            if entry is None or entry[0] != signature or entry[1]["state"] in (*LIVE_STATES, "unreadable"):
                entry = (signature, _summary(run))
            if self._ends.settle(run, entry[1]["state"]):
                entry = (_signature(run), _summary(run))
            known[name] = entry
            row = entry[1] if self._jobs is None else self._jobs.apply(run, entry[1])
            rows.append((row.get("launched_at") or "", name, row))
        self._known = known
        rows.sort(key=lambda row: row[:2], reverse=True)
        held_out, transfers = self._held_out.results(), self._transfers.results()
        listed = [row for _, _, row in rows] + self._older_rows()
        return _bounded([_with(_with(row, "held_out", held_out), "transfer", transfers) for row in listed])

    def _runs(self) -> list[RunDir]:
        """The runs of the root; those known before are the same objects."""
        folder = self._root / "training_runs"
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            _check_root(self._root)
            return []
        except NotADirectoryError as error:
            _check_root(self._root)
            raise _root_error(folder, error) from error
        except OSError as error:
            raise _root_error(folder, error) from error
        known = self._directories
        self._directories = {name: known.get(name) or RunDir(folder / name) for name in names}
        return [run for run in self._directories.values() if is_run(run.path)]

    def _older_rows(self) -> list[dict[str, Any]]:
        read_at, rows = self._older
        if not read_at or self._clock.monotonic() - read_at > OLDER_RUNS_EVERY_S:
            try:
                rows = list_older_runs(self._root)
            except OSError:
                rows = []
            self._older = (self._clock.monotonic(), rows)
        return rows


def _with(row: dict[str, Any], key: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {**row, key: found[row["run"]]} if row["run"] in found else row


def _summary(run: RunDir) -> dict[str, Any]:
    try:
        row = run.summary()
        if row["state"] != UNREADABLE and (workflow := workflow_state(run.path)) and is_workflow(workflow["stages"]):
            row["workflow"] = {"stages": len(workflow["stages"]), "done": workflow["done"]}
        return row
    except Exception as error:  # a defect of ours must not cost the other rows either
        return unreadable_row(run.name, f"{type(error).__name__}: {error}"[:MAX_SUMMARY])


def _check_root(root: Path) -> None:
    """Raise RemoteError for a root that exists and is not a directory; one that does not exist yet has no runs."""
    try:
        if not stat.S_ISDIR(os.stat(root).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _root_error(root, error) from error


def _root_error(folder: Path, error: OSError) -> RemoteError:
    hint = "mount it, or correct 'root' in boxes.yaml"
    if isinstance(error, PermissionError):
        return RemoteError("bad_root", not_readable(folder), hint)
    if isinstance(error, NotADirectoryError):
        return RemoteError("bad_root", f"{folder} is not a directory", hint)
    return RemoteError(code_of(error), f"{folder}: {error.strerror or error}", hint)


def _bounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MAX_ROWS rows, whose errors have MAX_ERROR_CHARACTERS in all; the newest keep theirs."""
    left, found = MAX_ERROR_CHARACTERS, []
    for row in rows[:MAX_ROWS]:
        error = row.get("error")
        if error:
            left -= len(json.dumps(error))
        if error and left < 0:
            short = {"code": str(error.get("code", ""))[:100], "summary": str(error["summary"])[:MAX_SUMMARY]}
            row = {**row, "error": short}
        found.append(row)
    return found


def _signature(run: RunDir) -> tuple[Any, ...]:
    """Inode, size and time of each file that the summary is made of."""
    found: list[Any] = []
    folder = os.fspath(run.path)
    for name in _FILES:
        try:
            facts = os.stat(f"{folder}/{name}")
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)
