"""The common frame of the forms: fields, validation, the exact command, one button.

The command comes from the box (``dry_run``) after every change of a field. The button sends the request whose command
is on the screen.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Input, Label, Select, Static, TextArea

from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.errors import nearest
from grpo_tui.kit.dialog import Dialog, LineInput
from grpo_tui.kit.panel import Excerpt
from remote.protocol import RemoteError
from remote.protocol.backups import ArchiveRequest, BackUpRequest, RestoreRequest
from remote.protocol.jobs import EvaluateRequest, LaunchRequest, ResumeRequest

if TYPE_CHECKING:
    from grpo_train.config.schema import Config

RequestFunction = Callable[..., Awaitable[dict[str, Any]]]
"""``await request(op, reply_s=…, **params)``; raises RemoteError."""
NAMES_SHOWN = 8


class TaskNames:
    """Task names, requested from the box once. A box that cannot list them leaves the check to the engine."""

    def __init__(self, request: RequestFunction) -> None:
        self._request = request
        self._lock = asyncio.Lock()
        self._names: list[str] | None = None

    async def known(self) -> list[str]:
        """All names, sorted; empty if the box cannot list them."""
        async with self._lock:
            if self._names is None:
                try:
                    self._names = sorted((await self._request("list_tasks")).get("tasks") or {})
                except RemoteError:
                    self._names = []
        return self._names

    async def problem(self, name: str) -> str:
        """What is wrong with a task name and how to fix it; "" if it is known or only the engine can tell."""
        if ":" in name:  # a user's own task, module:function
            return ""
        known = await self.known()
        if not known or name in known:
            return ""
        near = nearest(name.lower(), known)
        some = ", ".join(known[:NAMES_SHOWN]) + (", …" if len(known) > NAMES_SHOWN else "")
        hint = f"did you mean {near}?" if near else f"known tasks: {some} (`grpo-train tasks` lists them all)"
        return f"unknown task '{name}' on this box; {hint}"


Request = LaunchRequest | EvaluateRequest | ResumeRequest | BackUpRequest | RestoreRequest | ArchiveRequest

DEBOUNCE_S = 0.25
"""Delay between the last change of a field and the check."""
SEND_S = 60.0
"""For the box's answer to a request or its dry run: its engine checks them."""
PROBLEMS_SHOWN = 6
"""Maximum lines of a problem; fewer on short terminals."""


class FieldError(Exception):
    """An invalid field: its label and what is wrong."""


class MissingField(FieldError):
    """A field that has to be filled in first."""


class Fields(VerticalScroll):
    """The fields of a form. The one that has the focus stays in sight when what is below them grows."""

    def on_resize(self) -> None:
        focused = self.screen.focused
        if focused is not None and self in focused.ancestors:
            self.scroll_to_widget(focused, animate=False)


class RequestScreen(Dialog[dict[str, Any]]):
    """A form that is dismissed with the box's reply to its request."""

    BINDINGS: ClassVar = [Binding("enter", "send_when_checked", show=False)]
    VERB: str
    OPERATION: str

    def __init__(self, request: RequestFunction, heading: str) -> None:
        super().__init__()
        self.heading = heading
        self.request = request
        self.ready: Request | None = None
        """The request whose command is on the screen."""
        self._sending = False
        self._sent: tuple[Request, str] | None = None
        """The last request that the box has not refused, and its idempotency key: sending it again is a no-op."""
        self._submitted = False
        """Enter was pressed in a field: focus the button once the request is ready."""
        self._refocus_button = False
        """Focus the button once it is enabled again, unless another field has the focus."""
        self._shown_reply: dict[str, Any] = {}
        """The box's reply to the dry run of ``ready``."""
        self._checking = False
        self._armed = False
        """Enter was pressed before the check was over: send the request once it has passed."""

    # for subclasses --------------------------------------------------------------------------------------

    def compose_fields(self) -> ComposeResult:
        """The fields of the form."""
        raise NotImplementedError

    def build_request(self) -> Request:
        """The request from the current fields. Raises FieldError."""
        raise NotImplementedError

    async def loaded(self) -> None:
        """Wait for fields that are still being filled."""

    async def check(self, request: Request) -> str:
        """Check a request before the box does; returns a summary of its effect. Raises FieldError."""
        return ""

    def as_shown(self, request: Request, reply: dict[str, Any]) -> Request:
        """The request with what the reply to its dry run shows and the box would otherwise choose anew."""
        return request

    def notes_of(self, reply: dict[str, Any]) -> list[str]:
        """Lines below the summary, from the reply to the dry run."""
        return []

    def value(self, field: str) -> str:
        """Text of an input field."""
        return self.query_one(f"#{field}", Input).value.strip()

    def count(self, field: str, label: str) -> int | None:
        """A positive integer, or None if the field is empty. Raises FieldError."""
        text = self.value(field)
        if text and (not text.isdecimal() or int(text) < 1):
            raise FieldError(f"{label}: must be an integer of 1 or more, not {text}")
        return int(text) if text else None

    def overrides(self) -> list[str]:
        """``KEY=VALUE`` words of the overrides field, split like a shell does. Raises FieldError."""
        try:
            words = shlex.split(self.value("overrides"))
        except ValueError as error:
            problem = str(error).lower()  # "No closing quotation", "No escaped character"
            raise FieldError(f"overrides: {problem}; quote a value with spaces: 'task.path=/my data'") from error
        for word in words:
            if secret := find_secret(word):
                raise FieldError(secret.explain("overrides"))
        return words

    def show_row(self, field: str, shown: bool) -> None:
        """Show or hide the row of an input; the input gets the focus when it appears."""
        widget = self.query_one(f"#{field}")
        row = widget.parent
        assert isinstance(row, Widget)
        if shown != row.display:
            row.display = shown
            if shown:
                widget.focus()

    def focus_button_when_ready(self) -> None:
        """Start with the focus on the button, so that Enter sends the defaults."""
        self._refocus_button = True
        self.set_focus(None)

    # -----------------------------------------------------------------------------------------------------

    def compose_body(self) -> ComposeResult:
        with Fields(classes="body fields", can_focus=False):
            yield from self.compose_fields()
        yield Excerpt("", id="problem")
        yield Excerpt("", id="command", classes="command")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button(self.VERB, id="go", variant="primary", compact=True, disabled=True)

    def on_mount(self) -> None:
        self.query_one("#command").border_title = "exact command"
        self.preview()
        self.call_after_refresh(self.app.release_keys)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.changed(event.input)

    def on_select_changed(self, event: Select.Changed) -> None:
        self.changed(event.select)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.changed(event.text_area)

    def changed(self, field: Widget) -> None:
        """A field changed: disable the button at once, and check again."""
        if not self._sending:
            self._submitted = False
            if field.has_focus or field.has_focus_within:  # the user changed it, not the program that fills it
                self._arm(False)
            self._set_ready(None)
            self.preview()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field focuses the button, now or after the check."""
        if self.ready is not None:
            self.query_one("#go").focus()
        else:
            self._submitted = True

    def action_send_when_checked(self) -> None:
        """Enter before the button has the focus: send the request after the check, unless the check finds a problem."""
        if self._sending:
            return
        if self.ready is not None and self.focused is None:  # just checked: the focus comes with the next refresh
            self.chosen("go")
        elif self.ready is None and self._checking:
            self._arm(True)

    def _arm(self, armed: bool) -> None:
        if armed != self._armed:
            self._armed = armed
            waiting = f"{self.VERB.removesuffix('e')}ing when checked …"
            button = self.query_one("#go", Button)
            button.label = waiting if armed else self.VERB
            button.refresh(layout=True)

    def action_cancel(self) -> None:
        """Escape first takes back an Enter."""
        if self._armed:
            self._arm(False)
        else:
            super().action_cancel()

    @work(exclusive=True, group="preview", exit_on_error=False, description="checking the form")
    async def preview(self) -> None:
        """Show the problem, or the command and enable the button."""
        self._checking = True
        self._set_ready(None)
        await asyncio.sleep(DEBOUNCE_S)
        try:
            await self.loaded()
            request = self.build_request()
            summary = await self.check(request)
            reply = await self.request(self.OPERATION, reply_s=SEND_S, **parameters(request, dry_run=True))
        except FieldError as error:
            self.show_problem(str(error), is_missing=isinstance(error, MissingField))
            return
        except RemoteError as error:
            self.show_problem(error.message, error.hint)
            return
        except Exception as error:  # a message instead of a traceback
            self.show_problem(f"{type(error).__name__}: {error}")
            return
        self._checking = False
        self._show_summary(summary, [*self.notes_of(reply), *str(reply.get("note") or "").splitlines()])
        self.query_one("#command", Static).update(command_text(reply))
        self._shown_reply = reply
        self._set_ready(request)
        if self._armed:
            self._arm(False)
            self.chosen("go")

    def show_problem(self, message: str, hint: str = "", *, is_missing: bool = False) -> None:
        """Show why the request cannot be sent; what is only missing is not an error."""
        self._checking = False
        self._arm(False)
        lines = message.splitlines() or [message]
        most = 3 if self.has_class("-short") or self.has_class("-tiny") else PROBLEMS_SHOWN
        if len(lines) > most:
            lines = [*lines[: most - 1], f"… and {len(lines) - most + 1} more"]
        sign = "[$primary]→" if is_missing else "[$error]✖"
        text = Content.from_markup(f"{sign} $message[/]", message="\n".join(lines))
        if hint:
            text += Content.from_markup("\n[$grpo-muted]→ $hint[/]", hint=hint)
        self.query_one("#problem", Static).update(text)
        self.query_one("#command", Static).update(Content.from_markup("[$grpo-muted]–[/]"))

    def _show_summary(self, summary: str, notes: list[str]) -> None:
        text = Content.from_markup("[$success]✔[/] $summary", summary=summary) if summary else Content()
        for note in notes:
            text += Content.from_markup("\n[$grpo-muted]$note[/]", note=note)
        self.query_one("#problem", Static).update(text)

    def _set_ready(self, request: Request | None) -> None:
        self.ready = request
        button = self.query_one("#go", Button)
        had_focus = button.has_focus
        button.disabled = request is None
        if request is None:
            self.query_one("#command", Static).update(Content.from_markup("[$grpo-muted]checking …[/]"))
            if had_focus:  # Enter is the screen's while the button is disabled
                self._refocus_button = True
                self.set_focus(None)
        elif self._submitted:
            button.focus()
        elif self._refocus_button and (self.focused is None or self.focused.disabled):
            button.focus()
            self._refocus_button = False

    def chosen(self, button: str) -> None:
        if self.ready is None or self._sending:
            return
        if not self._is_shown(self.ready):
            self.preview()
            return
        self._sending = True
        self.send(self.ready)

    def _is_shown(self, request: Request) -> bool:
        """Whether the fields still match the shown request: a key may arrive before the message of a change."""
        try:
            return self.build_request() == request
        except FieldError:
            return False

    @work(group="send", exit_on_error=False, description="sending the request")
    async def send(self, request: Request) -> None:
        """Send the request whose command is shown."""
        taken = False
        button = self.query_one("#go", Button)
        button.label, button.disabled = "Sending …", True
        try:
            reply = await self.deliver(request)
        except RemoteError as error:
            self.show_problem(error.message, error.hint)
            taken = error.code == "name_taken" and "run_name" not in parameters(request, dry_run=False)
        except Exception as error:  # a message instead of a traceback
            self.show_problem(f"{type(error).__name__}: {error}")
        else:
            if reply is not None:
                self.dismiss(reply)
                return
        self._sending = False
        button.label, button.disabled = self.VERB, False
        if taken:  # the name that the box had proposed: it proposes another
            self.preview()
            self._arm(True)

    async def deliver(self, request: Request) -> dict[str, Any] | None:
        """The box's reply to a request; None if the user took it back. Raises RemoteError."""
        if self._sent is None or self._sent[0] != request:
            self._sent = request, secrets.token_hex(12)
        shown = self.as_shown(request, self._shown_reply)
        params = {**parameters(shown, dry_run=False), "idempotency_key": self._sent[1]}
        try:
            return await self.request(self.OPERATION, reply_s=SEND_S, **params)
        except RemoteError as error:
            if error.code != "timeout":
                self._sent = None
            raise


def parameters(request: Request, dry_run: bool) -> dict[str, Any]:
    """The fields that were filled in; the box has defaults for the others."""
    given = {name: value for name, value in asdict(request).items() if value not in ("", None, [])}
    return {**given, "dry_run": dry_run}


def checked_config(text: str, overrides: list[str], source: str) -> Config:
    """A config with overrides, validated as the engine will. Raises FieldError."""
    from grpo_train.config import ConfigError, load_config

    try:
        return load_config(text, overrides, source)
    except ConfigError as error:
        raise FieldError(str(error)) from error


def command_text(reply: dict[str, Any]) -> Content:
    """Command of a dry run, and its shell equivalent if the reply has one."""
    argv, shell_argv = reply.get("argv"), reply.get("shell_argv")
    text = Content(shlex.join([str(word) for word in argv]) if isinstance(argv, list) else "")
    if isinstance(shell_argv, list) and shell_argv:
        equivalent = shlex.join([str(word) for word in shell_argv])
        text += Content.from_markup("\n[$grpo-muted]shell equivalent:[/] [$grpo-think]$command[/]", command=equivalent)
    return text


def field(label: str, *widgets: Widget) -> ComposeResult:
    """A labeled row of a form."""
    with Horizontal(classes="field"):
        yield Label(label, classes="label")
        yield from widgets


def text_field(label: str, id: str, placeholder: str, **options: Any) -> ComposeResult:
    """A labeled text input. Empty, it stands for the default, also where it has a type."""
    yield from field(label, LineInput(id=id, placeholder=placeholder, compact=True, valid_empty=True, **options))
