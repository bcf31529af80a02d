"""Actions on the selected run: stop, kill, attach, mark."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from grpo_tui import attach as tmux
from grpo_tui import background
from grpo_tui.actions import marked
from remote.boxes import Box
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from textual.content import Content

    from grpo_tui.kit.desk import Desk
    from grpo_tui.model.run_row import RunRow
    from grpo_tui.model.store import Store


def mark(app: Desk) -> None:
    """Mark the run, or remove its mark."""
    if (run := app.store.selected) is not None:
        app.store.marks.toggle(run)
        app.tick_view()


def unmark_all(app: Desk) -> None:
    """Remove all marks."""
    app.store.marks.clear()
    app.tick_view()


async def stop(app: Desk) -> None:
    """Stop the run, or all marked ones, after the current step and save."""
    if app.situation().marked:
        await marked.stop(app)
        return
    run = app.store.selected
    if run is None:
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
        await marked.kill(app)
        return
    from textual.content import Content

    from grpo_tui.screens.dialog import ConfirmScreen

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
    from textual.content import Content

    if store.shown_at is None:
        return Content("You lose the steps since the last checkpoint.")
    last = max(store.complete_steps(), default=0)
    lost = max(0, store.step - last)
    if not lost:
        return Content("No steps are lost.")
    steps = "1 step" if lost == 1 else f"{lost} steps"
    since = f"since the last checkpoint (step_{last})" if last else "(no checkpoint saved yet)"
    return Content.from_markup("You lose [$warning]$steps[/] $since.", steps=steps, since=since)


def _instead(app: Desk, row: RunRow) -> str:
    """How to end the run without a loss."""
    if row.stop_requested:
        return "A stop is already requested: the run saves after the current step and ends."
    return f"To save first: cancel, then press {app.key('stop')} to stop after this step."


async def _kill_evaluation(app: Desk, run: str, session: str) -> None:
    from textual.content import Content

    from grpo_tui.screens.dialog import ConfirmScreen

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
        reply = await app.request("kill", timeout=60.0, **params)
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
        await attach_to(app, f"job {row.job.id}", tmux.plan_job)
    elif sessions := app.store.sessions_of(row.name) if row else []:
        await attach_to(app, sessions[0])


async def attach_to(app: Desk, session: str, plan: Callable[[Box, str], tmux.Handover] = tmux.plan) -> None:
    """Attach to a tmux session, or to what else ``plan`` makes of a name; detach to return here."""
    from grpo_tui.screens.dialog import AttachScreen

    try:
        handover = await asyncio.to_thread(plan, app.connection.box, session)
    except Exception as error:  # no OpenSSH, an alias that does not resolve, …
        app.show_error("cannot attach", str(error))
        return
    screen = AttachScreen(session, app.store.box, shlex.join(handover.argv), handover.detach, handover.note)
    if await app.show_dialog(screen):
        code, problem = run_in_terminal(app, handover.argv, f"to return: {handover.detach}")
        if problem:
            app.show_error("cannot attach", problem)
        elif code:
            app.warn(f"the command exited with code {code}", title=f"attach to {session}")


def run_in_terminal(app: Desk, argv: list[str], note: str) -> tuple[int, str]:
    """Hand the terminal to a command: (exit status, why it could not be started).

    Synchronous, and no exception leaves the ``with`` block: either would leave the terminal broken.
    """
    from textual.app import SuspendNotSupported

    problem, code = "", 0
    try:
        with app.suspend():
            try:
                print(f"\n{' '.join(argv)}\n{note}\n", file=sys.__stdout__, flush=True)
                code = app.run_foreground(argv)
            except BaseException as error:
                problem = str(error) or type(error).__name__
    except SuspendNotSupported:
        problem = "this terminal cannot be suspended"
    app.refresh(layout=True)
    return code, problem
