"""Actions on the selected run: stop, kill, attach."""

from __future__ import annotations

import asyncio

from grpo_tui import attach as tmux
from grpo_tui.actions.action import Face
from grpo_tui.model.formatting import command_line
from remote.protocol import RemoteError


async def stop(face: Face) -> None:
    """Request a stop after the current step."""
    run = face.store.selected
    if run is None:
        return
    try:
        await face.ask("stop", run=run)
    except RemoteError as error:
        face.show_error(f"cannot stop {run}", error)
        return
    face.receipt(f"{run}: stop requested", f"it stops after step {face.store.step + 1} and saves a checkpoint")


async def kill(face: Face) -> None:
    """Kill the run, or its evaluation if the run itself is over."""
    from textual.content import Content

    from grpo_tui.screens.dialog import ConfirmScreen

    store, row = face.store, face.store.run
    if row is None:
        return
    evaluations = [name for name in store.sessions_of(row.name) if name.startswith("eval_")]
    if not row.is_live and evaluations:
        await _kill_evaluation(face, row.name, evaluations[0])
        return
    last = max((view.step for view in store.checkpoints() if view.is_complete), default=0)
    lost = max(0, store.step - last)
    steps = "1 step" if lost == 1 else f"{lost} steps"
    since = f"since the last checkpoint (step_{last})" if last else "(no checkpoint saved yet)"
    lines = [
        Content.from_markup(
            "Kill [bold]$run[/] on [bold]$box[/] at step [bold]$step[/] without saving?",
            run=row.name, box=store.box, step=str(store.step),
        ),
        Content.from_markup("You lose [$warning]$steps[/] $since.", steps=steps, since=since)
        if lost
        else Content("No steps are lost."),
        Content.from_markup("[$grpo-muted]Press s instead to stop after this step and save.[/]"),
    ]  # fmt: skip
    if not await face.show_dialog(ConfirmScreen("kill run", lines, f"Kill {row.name}")):
        return
    await _send_kill(face, row.name, run=row.name)


async def _kill_evaluation(face: Face, run: str, session: str) -> None:
    from textual.content import Content

    from grpo_tui.screens.dialog import ConfirmScreen

    lines = [
        Content.from_markup("Kill the evaluation of [bold]$run[/] on [bold]$box[/]?", run=run, box=face.store.box),
        Content.from_markup("[$grpo-muted]Results of finished checkpoints are kept.[/]"),
    ]
    if not await face.show_dialog(ConfirmScreen("kill evaluation", lines, "Kill evaluation")):
        return
    face.ignore_evaluation_end(session)
    await _send_kill(face, f"evaluation of {run}", session=session)


async def _send_kill(face: Face, target: str, **params: str) -> None:
    try:
        reply = await face.ask("kill", timeout=60.0, **params)
    except RemoteError as error:
        face.show_error(f"cannot kill {target}", error)
        return
    if left := reply.get("left"):
        message = f"These processes did not end: {', '.join(map(str, left))}"
        face.show_error(f"{target} is still running", RemoteError("internal", message, "inspect them on the box"))
    else:
        face.receipt(f"{target} killed", "no processes are left")


async def attach(face: Face) -> None:
    """Hand the terminal to the run's tmux session."""
    from grpo_tui.screens.dialog import AttachScreen

    row = face.store.run
    sessions = face.store.sessions_of(row.name) if row else []
    if not sessions:
        return
    try:
        handover = await asyncio.to_thread(tmux.plan, face.connection.box, sessions[0])
    except Exception as error:  # no OpenSSH, an alias that does not resolve, …
        face.show_error("cannot attach", RemoteError("no_session", str(error)))
        return
    screen = AttachScreen(sessions[0], face.store.box, command_line(handover.argv), handover.detach, handover.note)
    if await face.show_dialog(screen):
        code, problem = face.run_in_terminal(handover.argv, f"to return: {handover.detach}")
        if problem:
            face.show_error("cannot attach", RemoteError("no_session", problem))
        elif code:
            face.warn(f"tmux exited with code {code}", title=f"attach to {sessions[0]}")
