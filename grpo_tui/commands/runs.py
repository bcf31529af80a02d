"""Commands on the selected run, or on all marked ones: stop, kill, evaluate, attach, mark, note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.content import Content

from grpo_tui import background
from grpo_tui.actions import why_not_killable, why_not_stoppable
from grpo_tui.box.formatting import counted
from grpo_tui.box.rows import RunRow, checkpoint_views
from grpo_tui.box.store import Store, step_of
from grpo_tui.kit.attach import attach_to, plan_job
from grpo_tui.kit.desk import Desk
from grpo_tui.kit.dialog import ConfirmScreen, StopScreen
from remote.protocol import RemoteError

MOST_LISTED = 20
"""Runs in a dialog; further ones are counted."""
Why = Callable[[Store, RunRow], str]
"""Why an action leaves a run out; "" if it does not."""


def mark(app: Desk) -> None:
    """Mark the run, or remove its mark."""
    if (run := app.store.selected) is not None:
        app.store.marks.toggle(run)
        app.tick_view()


def mark_all(app: Desk) -> None:
    """Mark all runs in the list: those that pass the filter."""
    for row in app.runs.rows:
        if row.name not in app.store.marks:
            app.store.marks.toggle(row.name)
    app.tick_view()


def unmark_all(app: Desk) -> None:
    """Remove all marks."""
    app.store.marks.clear()
    app.tick_view()


async def stop(app: Desk) -> None:
    """Stop the run, or all marked ones, after the current step and save (asks first)."""
    if app.situation().marked:
        await _stop_marked(app)
        return
    run = app.store.selected
    if run is None:
        return
    lines = [
        Content.from_markup(
            "Stop [bold]$run[/] on [bold]$box[/] after step [bold]$step[/]?",
            run=run, box=app.store.box, step=str(app.store.step + 1),
        ),
        Content.from_markup(
            "[$grpo-muted]It saves a checkpoint and ends; $key resumes it later.[/]", key=app.key("resume")
        ),
    ]  # fmt: skip
    if not await app.show_dialog(StopScreen("stop run", lines, "Stop run")):
        return
    try:
        reply = await app.request("stop", run=run)
    except RemoteError as error:
        app.show_error(f"cannot stop {run}", error.message, error.hint)
        return
    expected = f"it stops after step {app.store.step + 1} and saves a checkpoint"
    app.receipt(f"{run}: stop requested", str(reply.get("note") or expected))


async def kill(app: Desk) -> None:
    """Kill the run, or all marked ones, without saving (asks first).

    If the run itself is over, its evaluation is killed.
    """
    if app.situation().marked:
        await _kill_marked(app)
        return
    store, row = app.store, app.store.run
    if row is None:
        return
    if not row.is_live and (evaluations := store.evaluation_sessions(row.name)):
        await _kill_evaluation(app, row.name, evaluations[0])
        return
    if store.shown_at is None:  # checkpoints are not known yet
        await background.refresh_shown(app, row.name)
    lines = [
        Content.from_markup(
            "Kill [bold]$run[/] on [bold]$box[/] at step [bold]$step[/] without saving?",
            run=row.name, box=store.box, step=str(store.step),
        ),
        _loss(store),
        Content.from_markup("[$grpo-muted]$instead[/]", instead=_instead(app, row)),
    ]  # fmt: skip
    if not await app.show_dialog(ConfirmScreen("kill run", lines, "Kill run")):
        return
    await _send_kill(app, row.name, run=row.name)


def _loss(store: Store) -> Content:
    """What a kill costs."""
    if store.shown_at is None:
        return Content("You lose the steps since the last checkpoint.")
    last = max(store.complete_steps(), default=0)
    lost = max(0, store.step - last)
    if not lost:
        return Content("No steps are lost.")
    steps = counted(lost, "step")
    since = f"since the last checkpoint (step_{last})" if last else "(no checkpoint saved yet)"
    return Content.from_markup("You lose [$warning]$steps[/] $since.", steps=steps, since=since)


def _instead(app: Desk, row: RunRow) -> str:
    """How to end the run without a loss."""
    if row.stop_requested:
        return "A stop is already requested: the run saves after the current step and ends."
    return f"To save first: cancel, then press {app.key('stop')} to stop after this step."


async def _kill_evaluation(app: Desk, run: str, session: str) -> None:
    lines = [
        Content.from_markup("Kill the evaluation of [bold]$run[/] on [bold]$box[/]?", run=run, box=app.store.box),
        Content.from_markup("[$grpo-muted]Results of finished checkpoints are kept.[/]"),
    ]
    if not await app.show_dialog(ConfirmScreen("kill evaluation", lines, "Kill evaluation")):
        return
    app.ends.ignore_evaluation(session)
    await _send_kill(app, f"evaluation of {run}", session=session)


async def _send_kill(app: Desk, target: str, **params: str) -> None:
    try:
        reply = await app.request("kill", reply_s=60.0, **params)
    except RemoteError as error:
        app.show_error(f"cannot kill {target}", error.message, error.hint)
        return
    if left := reply.get("left"):
        message = f"These processes did not end: {', '.join(map(str, left))}"
        app.show_error(f"{target} is still running", message, "inspect them on the box")
    else:
        app.receipt(f"{target} killed", str(reply.get("note") or "no processes are left"))


async def attach(app: Desk) -> None:
    """Attach to the run's tmux session, or open a shell in its job; detach to return."""
    row = app.store.run
    if row is not None and row.job is not None:
        await attach_to(app, f"job {row.job.id}", plan_job)
    elif sessions := app.store.sessions_of(row.name) if row else []:
        await attach_to(app, sessions[0])


async def note(app: Desk) -> None:
    """Put a note on the run; an empty one removes it."""
    from grpo_tui.dialogs.runs import NoteScreen

    if (row := app.store.run) is None:
        return
    text = await app.show_dialog(NoteScreen(row.name, row.note))
    if text is None or text == row.note:
        return
    try:
        reply = await app.request("note", run=row.name, text=text)
    except RemoteError as error:
        app.show_error(f"cannot save the note on {row.name}", error.message, error.hint)
        return
    app.receipt(f"{row.name}: note {'kept' if reply.get('note') else 'removed'}")


# all marked runs, after one confirmation that lists them


async def _stop_marked(app: Desk) -> None:
    """Ask the marked runs to stop after their current step."""
    rows = _able(app, why_not_stoppable)
    lines = [_line(app, row, f"at step {step_of(app.store, row)}") for row in rows]
    note = "Each stops after its current step and saves a checkpoint."
    if await _confirmed(app, "stop marked runs", "Stop", rows, lines, why_not_stoppable, note):
        await _send(app, "stop", rows, "stop requested", {})


async def _kill_marked(app: Desk) -> None:
    """Kill the marked runs."""
    rows = _able(app, why_not_killable)
    lines = [_line(app, row, await _loss_of(app, row)) for row in rows]
    note = f"To save first: cancel, then press {app.key('stop')}."
    if await _confirmed(app, "kill marked runs", "Kill", rows, lines, why_not_killable, note, "without saving"):
        await _send(app, "kill", rows, "killed", {}, timeout=60.0)


async def evaluate_marked(app: Desk) -> None:
    """Evaluate the last checkpoint of the marked runs, with the settings of their configuration."""
    app.release_keys()  # this is not the form that they would belong to
    rows = _able(app, _why_not_evaluable)
    lines = [_line(app, row, f"at step {step_of(app.store, row)}") for row in rows]
    note = "The last checkpoint of each, on its own held-out problems, all at the same time."
    if await _confirmed(app, "evaluate marked runs", "Evaluate", rows, lines, _why_not_evaluable, note):
        await _send(app, "evaluate", rows, "evaluation started", {"steps": "latest"}, timeout=60.0)


def _why_not_evaluable(store: Store, row: RunRow) -> str:
    if row.is_unreadable:
        return "it cannot be read"
    return "it is being evaluated" if store.evaluation_sessions(row.name) else ""


def _marked(app: Desk) -> list[RunRow]:
    marks = app.store.marks
    return [row for row in app.store.runs or () if row.name in marks]


def _able(app: Desk, why: Why) -> list[RunRow]:
    return [row for row in _marked(app) if not why(app.store, row)]


def _line(app: Desk, row: RunRow, what: str) -> Content:
    return Content.from_markup("[bold]$run[/]  [$grpo-muted]$what[/]", run=row.name, what=what)


async def _loss_of(app: Desk, row: RunRow) -> str:
    """What a kill costs, as far as the box says."""
    step = step_of(app.store, row)
    try:
        views = checkpoint_views(row.name, await app.request("show_run", reply_s=10.0, run=row.name))
    except RemoteError:
        return f"at step {step}: the steps since its last checkpoint are lost"
    last = max((view.step or 0 for view in views if view.is_complete), default=0)
    lost = max(0, step - last)
    if not lost:
        return f"at step {step}: no steps are lost"
    return f"at step {step}: {counted(lost, 'step is', 'steps are')} lost" + (f" (step_{last})" if last else "")


async def _confirmed(
    app: Desk, title: str, verb: str, rows: list[RunRow], lines: list[Content], why: Why, note: str, how: str = ""
) -> bool:
    """Whether the user confirms. Without a run to act on, says why."""
    others = [row for row in _marked(app) if row not in rows]
    if not rows:
        reason = why(app.store, others[0]) if others else "no run is marked"
        app.warn(f"{others[0].name}: {reason}" if others else reason, title=f"{title}: none of them")
        return False
    count = counted(len(rows), "run")
    head = Content.from_markup(
        f"{verb} [bold]$count[/] on [bold]$box[/]$how?", count=count, box=app.store.box, how=f" {how}" if how else ""
    )
    shown = Content("\n").join(lines[:MOST_LISTED])
    if len(lines) > MOST_LISTED:
        shown += Content(f"\nand {len(lines) - MOST_LISTED} more")
    body = [head, shown]
    if others:
        left_out = Content("\n").join([_line(app, row, why(app.store, row)) for row in others[:MOST_LISTED]])
        body += [Content.from_markup("[$grpo-muted]Marked, but left out:[/]"), left_out]
    body.append(Content.from_markup("[$grpo-muted]$note[/]", note=note))
    return bool(await app.show_dialog(ConfirmScreen(title, body, f"{verb} {count}")))


async def _send(
    app: Desk, op: str, rows: list[RunRow], done: str, params: dict[str, Any], timeout: float = 30.0
) -> None:
    """One request after the other; a refusal does not prevent the others."""
    failed, count = [], 0
    for row in rows:
        try:
            reply = await app.request(op, reply_s=timeout, run=row.name, **params)
            if left := reply.get("left"):
                failed.append(f"{row.name}: these processes did not end: {', '.join(map(str, left))}")
            else:
                count += 1
        except RemoteError as error:
            failed.append(f"{row.name}: {error.message}")
    if count:
        app.receipt(f"{counted(count, 'run')}: {done}")
    if failed:
        app.show_error(f"not {done}", "\n".join(failed[:MOST_LISTED]))
