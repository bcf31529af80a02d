"""The copy between this machine and a box: on a thread and a connection of its own, with its questions as dialogs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_tui.model.copies import BoxCopy, Get, Put, Sync
from grpo_tui.model.formatting import byte_size
from remote.boxes import Box

if TYPE_CHECKING:
    from textual.screen import Screen

    from grpo_tui.kit.desk import Desk
    from remote.events import HostKeyAsked, QuestionAsked

LOOK_S = 0.2
"""Interval at which a copy that waits for an answer looks whether it was stopped."""


def start(app: Desk, box: Box, request: Get | Put | Sync) -> BoxCopy:
    """Start a copy. Another one *must not* be at work."""
    copy = app.last_copy = BoxCopy(box, request)
    app.work("copy", partial(_run, app, copy))
    return copy


async def _run(app: Desk, copy: BoxCopy) -> None:
    from grpo_tui.screens.copying import CopyScreen

    try:
        await asyncio.to_thread(
            copy.run, partial(_accept, app, copy), partial(_answer, app, copy), app.options.readonly
        )
    except asyncio.CancelledError:  # the app exits
        copy.stop()
        raise
    shown = app.screen
    if isinstance(shown, CopyScreen) and shown.copy is copy:
        return  # it says how the copy ended
    title = copy.request.title()
    if copy.copied is not None:
        what = f"{title} {copy.synced.code}" if copy.synced else f"{title}, {byte_size(copy.copied.size)}"
        left_out = f"; {len(copy.copied.left_out)} left out" if copy.copied.left_out else ""
        app.receipt(f"✔ copied: {what}{left_out}", copy.copied.paths[-1])
    elif copy.problem and not copy.was_stopped:
        app.notify(copy.problem, title=f"✖ not copied: {title}", severity="error", timeout=60, markup=False)


# questions, on the copy's thread -------------------------------------------------------------------------


def _accept(app: Desk, copy: BoxCopy, offered: HostKeyAsked) -> bool:
    from grpo_tui.screens.dialog import HostKeyScreen

    return bool(_wait_for(app, copy, HostKeyScreen(offered.host, offered.key_type, offered.fingerprint)))


def _answer(app: Desk, copy: BoxCopy, question: QuestionAsked) -> str | None:
    from grpo_tui.screens.question import QuestionScreen

    if question.kind == "touch":
        app.call_from_thread(app.receipt, f"copy: log in to {copy.box.name}", question.text)
        return None
    answer = _wait_for(app, copy, QuestionScreen(copy.box.name, question))
    return None if answer is None else str(answer)


def _wait_for(app: Desk, copy: BoxCopy, dialog: Screen[Any]) -> Any:
    answer: Future[Any] = Future()
    app.call_from_thread(app.push_screen, dialog, answer.set_result)
    while not copy.stopped.is_set():
        try:
            return answer.result(LOOK_S)
        except NotYet:
            continue
    return None
