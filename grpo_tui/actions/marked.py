"""Stop, kill or evaluate all marked runs, after one confirmation that lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grpo_tui.actions import reasons
from grpo_tui.model import progress
from grpo_tui.model.checkpoints import checkpoint_views
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from textual.content import Content

    from grpo_tui.kit.desk import Desk

MOST_LISTED = 20
"""Runs in a dialog; further ones are counted."""
Why = Callable[[Store, RunRow], str]
"""Why an action leaves a run out; "" if it does not."""


async def stop(app: Desk) -> None:
    """Ask the marked runs to stop after their current step."""
    rows = _able(app, reasons.why_not_stoppable)
    lines = [_line(app, row, f"at step {progress.step_of(app.store, row)}") for row in rows]
    note = "Each stops after its current step and saves a checkpoint."
    if await _confirmed(app, "stop marked runs", "Stop", rows, lines, reasons.why_not_stoppable, note):
        await _send(app, "stop", rows, "stop requested", {})


async def kill(app: Desk) -> None:
    """Kill the marked runs."""
    rows = _able(app, reasons.why_not_killable)
    lines = [_line(app, row, await _loss(app, row)) for row in rows]
    note = f"To save first: cancel, then press {app.key('stop')}."
    if await _confirmed(app, "kill marked runs", "Kill", rows, lines, reasons.why_not_killable, note, "without saving"):
        await _send(app, "kill", rows, "killed", {}, timeout=60.0)


async def evaluate(app: Desk) -> None:
    """Evaluate the last checkpoint of the marked runs, with the settings of their configuration."""
    app.release_keys()  # this is not the form that they would belong to
    rows = _able(app, _why_not_evaluable)
    lines = [_line(app, row, f"at step {progress.step_of(app.store, row)}") for row in rows]
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
    from textual.content import Content

    return Content.from_markup("[bold]$run[/]  [$grpo-muted]$what[/]", run=row.name, what=what)


async def _loss(app: Desk, row: RunRow) -> str:
    """What a kill costs, as far as the box says."""
    step = progress.step_of(app.store, row)
    try:
        views = checkpoint_views(row.name, await app.request("show_run", timeout=10.0, run=row.name))
    except RemoteError:
        return f"at step {step}: the steps since its last checkpoint are lost"
    last = max((view.step or 0 for view in views if view.is_complete), default=0)
    lost = max(0, step - last)
    if not lost:
        return f"at step {step}: no steps are lost"
    return f"at step {step}: {lost} {'step is' if lost == 1 else 'steps are'} lost" + (
        f" (step_{last})" if last else ""
    )


async def _confirmed(
    app: Desk, title: str, verb: str, rows: list[RunRow], lines: list[Content], why: Why, note: str, how: str = ""
) -> bool:
    """Whether the user confirms. Without a run to act on, says why."""
    from textual.content import Content

    from grpo_tui.screens.dialog import ConfirmScreen

    others = [row for row in _marked(app) if row not in rows]
    if not rows:
        reason = why(app.store, others[0]) if others else "no run is marked"
        app.warn(f"{others[0].name}: {reason}" if others else reason, title=f"{title}: none of them")
        return False
    count = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
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
            reply = await app.request(op, timeout=timeout, run=row.name, **params)
            if left := reply.get("left"):
                failed.append(f"{row.name}: these processes did not end: {', '.join(map(str, left))}")
            else:
                count += 1
        except RemoteError as error:
            failed.append(f"{row.name}: {error.message}")
    if count:
        app.receipt(f"{count} {'run' if count == 1 else 'runs'}: {done}")
    if failed:
        app.show_error(f"not {done}", "\n".join(failed[:MOST_LISTED]))
