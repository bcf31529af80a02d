"""The copy between this machine and a box that is at work: on a thread and a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.errors import UserError
from grpo_tui.model.copies import CopyProgress, Get, Put, Sync
from grpo_tui.model.formatting import byte_size
from remote.boxes import Box

if TYPE_CHECKING:
    from textual.screen import Screen

    from grpo_tui.app import GrpoApp
    from remote.code import Synced
    from remote.copying import Copied, Copier
    from remote.events import HostKeyAsked, QuestionAsked

LOOK_S = 0.2
"""Interval at which a copy that waits for an answer looks whether it was stopped."""


class BoxCopy:
    """One copy. Its thread writes what the app reads."""

    def __init__(self, app: GrpoApp, box: Box, request: Get | Put | Sync) -> None:
        self._app, self.box, self.request = app, box, request
        self.progress = CopyProgress(isinstance(request, Get))
        self.note = ""
        """Why it connects again."""
        self.copied: Copied | None = None
        self.synced: Synced | None = None
        """What a sync did; ``copied`` has its bytes."""
        self.problem = ""
        self.over = False
        self._copier: Copier | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Copy. Returns once it is done, failed or stopped."""
        from remote.code import sync
        from remote.copying import Copied, Copier

        request = self.request
        try:
            with Copier(
                self.box, ask_host_key=self._accept, ask=self._answer, progress=self._take, say=self._say,
                readonly=self._app.options.readonly,
            ) as self._copier:  # fmt: skip
                if self._stopped.is_set():
                    return
                if isinstance(request, Get):
                    self.copied = self._copier.get(request.what, request.folder, request.steps)
                elif isinstance(request, Sync):
                    self.synced = sync(self._copier, with_changes=request.with_changes, start=request.source)
                    self.copied = Copied(
                        [self.synced.path], 1, self.synced.size, self.synced.size, self.synced.left_out
                    )
                else:
                    self.copied = self._copier.put(request.source, request.to)
        except UserError as error:
            self.problem = str(error)
        except Exception as error:  # a message instead of a traceback
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.over = True

    def stop(self) -> None:
        """Stop it. What has arrived is kept. Any thread."""
        if self.over:
            return
        self._stopped.set()
        if self._copier is not None:
            self._copier.stop()

    @property
    def was_stopped(self) -> bool:
        return self._stopped.is_set() and self.copied is None

    def _take(self, done: int, total: int) -> None:
        self.note = ""
        self.progress.take(done, total)

    def _say(self, text: str) -> None:
        self.note = text

    # questions, on the copy's thread ---------------------------------------------------------------------

    def _accept(self, offered: HostKeyAsked) -> bool:
        from grpo_tui.screens.dialog import HostKeyScreen

        return bool(self._wait_for(HostKeyScreen(offered.host, offered.key_type, offered.fingerprint)))

    def _answer(self, question: QuestionAsked) -> str | None:
        from grpo_tui.screens.question import QuestionScreen

        if question.kind == "touch":
            self._app.call_from_thread(self._app.receipt, f"copy: log in to {self.box.name}", question.text)
            return None
        answer = self._wait_for(QuestionScreen(self.box.name, question))
        return None if answer is None else str(answer)

    def _wait_for(self, dialog: Screen[Any]) -> Any:
        answer: Future[Any] = Future()
        self._app.call_from_thread(self._app.push_screen, dialog, answer.set_result)
        while not self._stopped.is_set():
            try:
                return answer.result(LOOK_S)
            except NotYet:
                continue
        return None


class Copies:
    """Starts copies, one at a time, and says how they ended."""

    def __init__(self, app: GrpoApp) -> None:
        self._app = app
        self.last: BoxCopy | None = None

    @property
    def at_work(self) -> BoxCopy | None:
        return self.last if self.last is not None and not self.last.over else None

    def start(self, box: Box, request: Get | Put | Sync) -> BoxCopy:
        """Start a copy. Another one *must not* be at work."""
        copy = self.last = BoxCopy(self._app, box, request)
        self._app.work("copy", partial(self._run, copy))
        return copy

    async def _run(self, copy: BoxCopy) -> None:
        from grpo_tui.screens.copying import CopyScreen

        try:
            await asyncio.to_thread(copy.run)
        except asyncio.CancelledError:  # the app exits
            copy.stop()
            raise
        shown = self._app.screen
        if isinstance(shown, CopyScreen) and shown.copy is copy:
            return  # it says how the copy ended
        title = copy.request.title()
        if copy.copied is not None:
            what = f"{title} {copy.synced.code}" if copy.synced else f"{title}, {byte_size(copy.copied.size)}"
            left_out = f"; {len(copy.copied.left_out)} left out" if copy.copied.left_out else ""
            self._app.receipt(f"✔ copied: {what}{left_out}", copy.copied.paths[-1])
        elif copy.problem and not copy.was_stopped:
            self._app.notify(copy.problem, title=f"✖ not copied: {title}", severity="error", timeout=60, markup=False)
