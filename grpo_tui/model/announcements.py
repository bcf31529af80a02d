"""Which runs and evaluations ended between two reports of the box. No Textual."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from grpo_train.run_dir.display import state_label
from grpo_tui.model.app_time import monotonic
from grpo_tui.model.formatting import one_line, shortened
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store
from grpo_tui.model.transfers import NAME_IN_TOAST, command_of, done_notice, failure_title

ANNOUNCED = 4
ANNOUNCED_S = 10.0
TOAST_LENGTH = 400
"""Maximum characters of a run's error in a notification."""
End = TypeVar("End")


def end_notice(store: Store, row: RunRow, eval_key: str) -> tuple[str, str, bool]:
    """Title and message that announce the end of a run, and whether it ended badly."""
    glyph, word, tone = state_label(row.state)
    message = one_line(row.error.get("summary") or "")[:TOAST_LENGTH] or f"at step {row.step}"
    shown = row.name == store.selected
    if row.state == "finished" and shown and not any(view.evaluations for view in store.checkpoints()):
        message += f"; press {eval_key} to evaluate its checkpoints"
    return f"{glyph} {shortened(row.name, NAME_IN_TOAST)} {word}", message, tone == "bad"


class Pace:
    """At most ANNOUNCED notifications in ANNOUNCED_S seconds: a box may report the end of 10,000 runs at once."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=ANNOUNCED)

    def first(self, ends: list[End]) -> list[End]:
        """Those to announce now; the list of runs shows the others."""
        now, found = monotonic(), []
        for end in ends:
            if len(self._times) == ANNOUNCED and now - self._times[0] < ANNOUNCED_S:
                break
            self._times.append(now)
            found.append(end)
        return found


def job_done(session: str, run: str) -> tuple[str, str]:
    """Title and message for an evaluation, or a command on backups, that succeeded."""
    if command := command_of(session, run):
        return done_notice(command, run)
    return f"✔ {run} evaluated", "results are next to the checkpoints"


def job_failed(session: str, run: str, code: int) -> str:
    """Title for an evaluation, or a command on backups, that did not succeed."""
    command = command_of(session, run)
    return failure_title(command, run, code) if command else f"✖ evaluation of {run} failed"


class EndWatch:
    """Compares each report with the one before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: set[str] = set()
        self._working: set[str] = set()

    def ended_runs(self) -> list[RunRow]:
        """Runs that were live when last read and are over now. A run that cannot be read now is not over."""
        rows = self._store.runs or []
        ended = [row for row in rows if row.name in self._live and row.is_over]
        self._live = {row.name for row in rows if row.is_live or (row.name in self._live and not row.is_over)}
        return ended

    def ended_jobs(self) -> list[tuple[str, str, int]]:
        """Evaluations and commands on backups that ended since the previous report: session, run, exit status."""
        ended = []
        for session in self._store.sessions:
            name = session["name"]
            run = session.get("run") or name.removeprefix("eval_")
            if not name.startswith("eval_") and not command_of(name, run):
                continue
            if not session.get("dead"):
                self._working.add(name)
            elif name in self._working:
                self._working.discard(name)
                ended.append((name, run, int(session.get("exit_status") or 0)))
        return ended

    def ignore_evaluation(self, session: str) -> None:
        """Do not report the end of this evaluation: the user killed it."""
        self._working.discard(session)
