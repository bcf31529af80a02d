"""Ask checkpoints of a run: a question or a held-out problem, answers as they are drawn. A dialog that covers the view.

The process on the box is started by the first question and ended with the screen.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from textual import getters
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Button, Input, Label, Static

from grpo_train.run_dir.sessions import session_name
from grpo_tui.box.formatting import one_line, shortened
from grpo_tui.kit.desk import Desk
from grpo_tui.kit.dialog import ConfirmDialog, ConfirmScreen, Dialog, LineInput
from grpo_tui.kit.lists import ALL, PAGE
from grpo_tui.views.ask.model import AskLog, Form, listed, read_form
from grpo_tui.views.ask.page import AskPanel, AskSource
from remote.protocol import RemoteError

TICK_S = 0.2
OPEN_S = 60.0
CLOSE_S = 40.0
QUIT_S = 4.0
LAST_LINES = 12
"""Of a process that crashed."""
USAGE_ERROR = 2
"""Exit status of an engine that does not know a command or an option."""


class AskScreen(Dialog[None]):
    """Page of answers, question line, and how it is asked."""

    BINDINGS: ClassVar = [
        Binding("enter", "ask", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", f"scroll({-PAGE})", show=False),
        Binding("pagedown", f"scroll({PAGE})", show=False),
        Binding("ctrl+home", f"scroll({-ALL})", show=False),
        Binding("ctrl+end", f"scroll({ALL})", show=False),
    ]
    FIELDS = ("prompt", "checkpoints", "count", "temperature", "seed")

    def __init__(self, run: str, steps: Sequence[int], step: int) -> None:
        super().__init__()
        self.run_name, self.steps = run, steps
        self.heading = f"ask {shortened(run, 60)}"
        self._step = step
        self.answers = AskLog()
        self._ask = self._session = ""
        """Id of the process, and its tmux session."""
        self._asked_of: list[int] = []
        self._device = ""
        self._subscription: int | None = None
        self._was_listed = False
        """Whether the box has listed the session while it was alive."""
        self._before: object = None
        """When the session of the previous process was created: its row may still be in the list."""
        self._form: Form | None = None
        """The last question."""
        self._is_sending = False
        self._stopping = ""
        """Id of the question whose answer was asked to stop."""
        self._problem = ""
        self._said: list[tuple[str, str]] = []
        """Lines below the answers, with their tones."""
        self._looked_at_end = False

    app = getters.app(Desk)

    # compose ---------------------------------------------------------------------------------------------

    def compose_body(self) -> ComposeResult:
        store = self.app.store
        yield AskPanel(store, AskSource(store, lambda: self.answers, lambda: self._said), self._status, id="answers")
        yield LineInput(placeholder="question, or #12 for a held-out problem", id="prompt")
        with Horizontal(id="how"):
            for name, label, value, hint in (
                ("checkpoints", "checkpoints", str(self._step), "40,0"),
                ("count", "n", "1", ""),
                ("temperature", "temperature", "", "eval's"),
                ("seed", "seed", "0", ""),
            ):
                yield Label(label)
                yield LineInput(value, placeholder=hint, id=name, select_on_focus=name != "checkpoints")
        yield Static("", id="problem")

    def compose_buttons(self) -> ComposeResult:
        yield Static("", id="keys-here")
        yield Button("Close", id="cancel", compact=True)
        yield Button("Ask", id="ask", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#prompt").focus()
        keys = f"enter asks · esc stops, then ends · two checkpoints: {self._step},0 · ↑ ↓ scroll"
        self.query_one("#keys-here", Static).update(Content.from_markup("[$grpo-muted]$keys[/]", keys=keys))
        self._tick()
        self.set_interval(TICK_S, self._tick)
        self.call_after_refresh(self.app.release_keys)

    def _status(self) -> Content:
        """What the process does."""
        log = self.answers
        if not self._ask:
            known = f"answers · checkpoints {listed([0, *self.steps])}"
            return Content("answers · starting the process" if self._is_sending else known)
        seconds = f"{max(0.0, log.now() - log.since):.0f} s"
        names = " beside ".join(f"step_{step}" for step in self._asked_of)
        state = {
            "starting": f"starting {seconds}",
            "loading": f"loading {seconds}",
            "ready": f"{log.device} · {self._work()}",
            "failed": "✖ failed",
            "ended": "■ ended",
        }[log.state]
        link = "" if self.app.store.connected else " · link lost: it reads on when it is back"
        return Content(f"{names} · {state} · {self._session}{link}")

    def _work(self) -> str:
        answering = self.answers.answering
        if answering is None:
            return "ready"
        return "stopping the answer" if answering.id == self._stopping else "answering"

    # tick ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.is_attached:
            return
        self._watch_session()
        if self.answers.is_over and not self._looked_at_end:
            self._looked_at_end = True
            self._show_end()
        self.query_one(AskPanel).tick()

    def _watch_session(self) -> None:
        """Notice a process that ended without a word."""
        if not self._session or self.answers.is_over:
            return
        row = self._row()
        if row is not None and row.get("dead"):
            if self._was_listed or row.get("created") != self._before:
                self.answers.end("ended", "", "crashed" if self.answers.state != "starting" else "silent")
        elif row is not None:
            self._was_listed = True
        elif self._was_listed and self.app.store.connected:
            self.answers.end("ended", f"the tmux session {self._session} is closed", "closed")

    def _row(self) -> dict[str, Any] | None:
        """The session in the list of the box."""
        name = session_name(f"ask_{self.run_name}")
        return next((row for row in self.app.store.sessions if row["name"] == name), None)

    def _show_end(self) -> None:
        log = self.answers
        if log.code == "gpu_busy" and log.state == "failed":
            self.app.work("ask: which device", self._choose_device)
        if log.code in ("crashed", "silent"):
            self.app.work("ask: last lines", self._show_last_lines)
            return
        again = "; enter starts it again" if log.state == "ended" else ""
        self._said = [(f"■ {log.message}{again}" if log.state == "ended" else f"✖ {log.message}", "warn")]

    async def _show_last_lines(self) -> None:
        """Show what a process that ended without a word printed last."""
        log, session = self.answers, self._session
        row = self._row() or {}
        status = row.get("signal") or f"exit status {row.get('exit_status', 'unknown')}"
        if log.code == "silent" and row.get("exit_status") == USAGE_ERROR:
            engine = self.app.store.engine
            hint = engine.upgrade_hint(str((self.app.store.host or {}).get("repo") or ""))
            self._said = [(f"✖ box engine {engine.version} cannot answer questions: upgrade it ({hint})", "bad")]
        else:
            self._said = [(f"✖ the process ended ({status}), tmux session {session}; enter starts it again", "bad")]
        try:
            reply = await self.app.request("capture_pane", session=session, lines=50)
        except RemoteError as error:
            self._said += [(error.message, "muted")]
            return
        lines = [line for line in str(reply.get("text") or "").splitlines() if line.strip()]
        if lines and lines[-1].startswith("Pane is dead"):  # printed by tmux itself
            lines.pop()
        if log is self.answers:
            self._said += [(one_line(line)[:500], "muted") for line in lines[-LAST_LINES:]]

    async def _choose_device(self) -> None:
        """A run is training: ask where to answer."""
        choice = await self.app.show_dialog(DeviceScreen(self.answers.message))
        if choice and self._form is not None and self.is_attached:
            self._device = choice
            await self._send(self._form)

    # ask -------------------------------------------------------------------------------------------------

    def chosen(self, button: str) -> None:
        self.action_ask()

    def on_input_submitted(self) -> None:
        self.action_ask()

    def action_ask(self) -> None:
        """Ask what the fields say."""
        if self._is_sending:
            return
        try:
            form = read_form({name: self.query_one(f"#{name}", Input).value for name in self.FIELDS}, self.steps)
        except ValueError as error:
            self._show_problem(str(error))
            return
        self._is_sending = True
        self._show_problem("")
        self.app.work("ask", partial(self._send, form))

    def _show_problem(self, text: str) -> None:
        self._problem = text
        if self.is_attached:
            self.query_one("#problem", Static).update(Content.from_markup("[$error]$text[/]", text=text))

    async def _send(self, form: Form) -> None:
        self._is_sending, self._form, key = True, form, secrets.token_hex(12)
        try:
            if not self._ask or self.answers.is_over or form.steps != self._asked_of:
                await self._open(form.steps)
            try:
                reply = await self._request_answer(form, key)
            except RemoteError as error:
                if error.code != "ask_ended":
                    raise
                await self._open(form.steps)
                reply = await self._request_answer(form, key)
            self.answers.expect(str(reply["question"]), form.prompt, form.count, form.index)
            if self.is_attached:
                self.query_one("#prompt", Input).clear()
        except Cancelled:
            pass
        except RemoteError as error:
            self._show_problem(" · ".join(filter(None, (error.message, error.hint))))
        finally:
            self._is_sending = False

    async def _request_answer(self, form: Form, key: str) -> dict[str, Any]:
        return await self.app.request("ask", ask=self._ask, idempotency_key=key, **form.params)

    async def _open(self, steps: list[int]) -> None:
        """Start a process for these checkpoints, in place of the one for others. Raises RemoteError, Cancelled."""
        app = self.app
        await self._close(CLOSE_S)
        params = {"run": self.run_name, "steps": steps, "device": self._device}
        key, self._before = secrets.token_hex(12), (self._row() or {}).get("created")
        try:
            reply = await app.request("open_ask", reply_s=OPEN_S, idempotency_key=key, **params)
        except RemoteError as error:
            if error.code != "session_live":
                raise
            if not await app.show_dialog(ConfirmScreen("already asked", _taken(self.run_name, app), "End it")):
                raise Cancelled from None
            await app.request("kill", reply_s=CLOSE_S, session=session_name(f"ask_{self.run_name}"))
            reply = await app.request("open_ask", reply_s=OPEN_S, idempotency_key=key, **params)
        self._ask, self._session, self._asked_of = str(reply["ask"]), str(reply["session"]), steps
        self._was_listed = self._looked_at_end = False
        self._said = []
        self.answers.drop_unanswered()
        self.answers = self.answers.go_on()
        if not self.is_attached:  # closed meanwhile
            await self._close(CLOSE_S)
            raise Cancelled
        self._subscription = app.connection.follow(str(reply["answers"]), self.answers.take)

    # end -------------------------------------------------------------------------------------------------

    async def _close(self, timeout: float) -> None:
        """End the process. Without a link, it ends after ten minutes."""
        ask, self._ask, self._session = self._ask, "", ""
        if self._subscription is not None:
            self.app.connection.unfollow(self._subscription)
            self._subscription = None
        if ask:
            try:
                await self.app.request("close_ask", reply_s=timeout, ask=ask)
            except RemoteError:
                pass

    def action_cancel(self) -> None:
        """Stop the answer that is being drawn; without one, or pressed again, end the process."""
        answering = self.answers.answering if self.answers.state == "ready" else None
        if self._ask and answering is not None and answering.id != self._stopping:
            self._stopping = answering.id
            self.app.work("ask: stop the answer", partial(self._stop_answer, answering.id))
            return
        if self._ask:
            self.app.work(f"close {self._ask}", partial(self._close, CLOSE_S))
        self.dismiss(None)

    async def _stop_answer(self, question: str) -> None:
        try:
            await self.app.request("cancel_answer", ask=self._ask, question=question)
        except RemoteError as error:
            self._show_problem(error.message)

    async def before_quit(self) -> None:
        """End the process before the program quits."""
        await self._close(QUIT_S)

    def action_scroll(self, by: int) -> None:
        self.query_one(AskPanel).action_move(by)


class Cancelled(Exception):
    """The user does not want it any more."""


class DeviceScreen(ConfirmDialog):
    """Where to answer while a run is training."""

    heading = "the GPU is in use"
    TONE = "-warning"

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message.partition(";")[0]

    def compose_text(self) -> ComposeResult:
        yield Static(Content(f"{self.message}."), classes="message")
        yield Static(Content("Sharing its GPU takes memory and time from the run; the CPU is slow."), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Use the CPU", id="cpu", variant="primary", compact=True)
        yield Button("Share the GPU", id="cuda", variant="warning", compact=True)

    def chosen(self, button: str) -> None:
        self.dismiss(button)  # type: ignore[arg-type]


def _taken(run: str, app: Desk) -> list[Content]:
    return [
        Content.from_markup(
            "[bold]$run[/] on [bold]$box[/] is being asked already, by another program or by one that was killed.",
            run=run, box=app.store.box,
        ),
        Content.from_markup("[$grpo-muted]End that process, and start one for this screen?[/]"),
    ]  # fmt: skip
