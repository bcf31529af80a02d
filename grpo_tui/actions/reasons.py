"""Why an action is not available now, as text for the user; "" if it is available. No Textual."""

from __future__ import annotations

from grpo_tui.actions.action import Situation
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store

READONLY = "started with --readonly: the box is not changed"
DISCONNECTED = "not connected to the box; runs continue"
NO_RUN = "no run selected"
OLDER = "runs of the older layout can only be evaluated"


def disconnected(situation: Situation) -> str:
    return "" if situation.store.connected else DISCONNECTED


def not_writable(situation: Situation) -> str:
    return readonly(situation) or disconnected(situation)


def _not_writable_run(situation: Situation) -> str:
    return not_writable(situation) or ("" if situation.run else NO_RUN)


def why_not_stoppable(store: Store, run: RunRow) -> str:
    if not run.is_live:
        return f"{run.name} is not running ({run.state})"
    return "stop already requested; a kill does not wait for the step" if run.stop_requested else ""


def why_not_killable(store: Store, run: RunRow) -> str:
    return "" if run.is_live else f"{run.name} is not running ({run.state})"


def not_stoppable(situation: Situation) -> str:
    if situation.marked:
        return not_writable(situation)  # the dialog says which of them
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    return why_not_stoppable(situation.store, run)


def not_killable(situation: Situation) -> str:
    if situation.marked:
        return not_writable(situation)
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    return "" if situation.store.evaluation_sessions(run.name) else why_not_killable(situation.store, run)


def not_notable(situation: Situation) -> str:
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    return "" if run.layout == "run" else OLDER


def not_evaluable(situation: Situation) -> str:
    return not_writable(situation) if situation.marked else _not_evaluable_run(situation)


def _not_evaluable_run(situation: Situation) -> str:
    if (reason := _not_writable_run(situation)) or (run := situation.run) is None:
        return reason
    known_empty = situation.store.shown_at is not None and not situation.store.complete_steps()
    return f"{run.name} has no complete checkpoint" if known_empty else ""


def not_resumable(situation: Situation) -> str:
    if (reason := _not_evaluable_run(situation)) or (run := situation.run) is None:
        return reason
    if run.layout != "run":
        return OLDER
    return f"{run.name} is {run.state}; stop it first" if run.is_live else ""


def not_askable(situation: Situation) -> str:
    if (reason := _not_evaluable_run(situation)) or (run := situation.run) is None:
        return reason
    return OLDER if run.layout != "run" else situation.store.engine.mismatch()


def not_backupable(situation: Situation) -> str:
    if (reason := not_notable(situation)) or (run := situation.run) is None:
        return reason
    if run.is_unreadable:
        return f"{run.name} cannot be read"
    work = situation.store.backup_work(run)
    return f"{run.name} is {work}" if work else ""


def not_copyable(situation: Situation) -> str:
    if (run := situation.run) is None:
        return NO_RUN
    return "" if run.layout == "run" else OLDER


def readonly(situation: Situation) -> str:
    return READONLY if situation.readonly else ""


def not_verifiable(situation: Situation) -> str:
    if (reason := not_backupable(situation)) or (run := situation.run) is None:
        return reason
    return "" if run.backup else f"{run.name} has no backup"


def not_cleanable(situation: Situation) -> str:
    if (reason := not_verifiable(situation)) or (run := situation.run) is None:
        return reason
    if run.is_live:
        return f"{run.name} is {run.state}; stop it first"
    assert run.backup is not None
    return f"the backup of {run.name} is on the same disk: no second copy" if run.backup.same_disk else ""


def not_attachable(situation: Situation) -> str:
    run = situation.run
    if run is None:
        return NO_RUN
    if not situation.store.connected:
        return DISCONNECTED
    if run.job is not None:
        return f"{run.name} is pending: its job has no node yet" if run.state == "pending" else ""
    if situation.store.sessions_of(run.name):
        return ""
    if run.is_live:
        return f"{run.name} has no tmux session: it was started from a shell on the box"
    return f"the tmux session of {run.name} is closed"


def not_checkable(situation: Situation) -> str:
    if situation.readonly:
        return "started with --readonly: the check writes a marker to the store"
    return disconnected(situation)


def no_runs(situation: Situation) -> str:
    return "" if situation.store.runs else "no runs to filter"


def no_run(situation: Situation) -> str:
    return "" if situation.run else NO_RUN


def no_marks(situation: Situation) -> str:
    return "" if situation.store.marks else "no run is marked"


def no_list(situation: Situation) -> str:
    return "" if situation.store.runs else "the box has no runs yet"


def connected(situation: Situation) -> str:
    return "already connected" if situation.store.connected and not situation.store.failed_check() else ""


def no_history(situation: Situation) -> str:
    return "" if situation.has_history else "started with --no-cache: the history is neither read nor written"


def no_tracked_run(situation: Situation) -> str:
    return no_history(situation) if situation.view == "history" else no_run(situation)
