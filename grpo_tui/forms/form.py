"""What launch, evaluation and resume have in common: fields, what is wrong with them, the exact command, one button.

The command is asked of the box (``dry_run``) whenever a field has come to rest, so that it stands on the screen before
the button can be pressed; what is then sent is the order whose command was shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Input, Label, Select, Static, TextArea

from grpo_tui.model.formatting import command_line
from grpo_tui.model.requests import Order
from grpo_tui.screens.dialog import Dialog
from remote.protocol import RemoteError

Ask = Callable[..., Awaitable[dict[str, Any]]]
"""``await ask(op, timeout=…, **params)``; raises RemoteError."""
AT_REST_S = 0.25
PROBLEMS_SHOWN = 6
"""Of a config with many; fewer where the terminal is short."""


class FieldError(Exception):
    """A field that cannot be used, in words."""


class OrderScreen(Dialog[dict[str, Any]]):
    """A form that is dismissed with the box's answer to its order."""

    VERB = "Start"

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask
        self.ready: Order | None = None
        """The order whose command is on the screen."""
        self._sending = False
        self._go_when_ready = False

    # for a form to say -----------------------------------------------------------------------------------

    def compose_fields(self) -> ComposeResult:
        """The form's fields."""
        raise NotImplementedError

    def order(self) -> Order:
        """The order as the fields have it. Raises FieldError."""
        raise NotImplementedError

    async def check(self, order: Order) -> str:
        """Check it here before the box does; returns a summary in words. Raises FieldError."""
        return ""

    # ------------------------------------------------------------------------------------------------------

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="body fields", can_focus=False):
            yield from self.compose_fields()
        yield Static("", id="problem")
        yield Static("", id="command")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button(self.VERB, id="go", variant="primary", compact=True, disabled=True)

    def on_mount(self) -> None:
        self.query_one("#command").border_title = "the exact command"
        self.preview()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.changed()

    def on_select_changed(self, event: Select.Changed) -> None:
        self.changed()

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.changed()

    def changed(self) -> None:
        """A field is another now: from this moment on, and not only when the check begins, nothing can be sent."""
        if not self._sending:
            self._go_when_ready = False
            self._set_ready(None)
            self.preview()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in a field goes to the button, at once or when what was typed has been checked."""
        if self.ready is not None:
            self.query_one("#go").focus()
        else:
            self._go_when_ready = True

    @work(exclusive=True, group="preview", exit_on_error=False, description="the exact command of an order")
    async def preview(self) -> None:
        """Show what is wrong, or the command; only then can the button be pressed."""
        self._set_ready(None)
        await asyncio.sleep(AT_REST_S)
        try:
            order = self.order()
            summary = await self.check(order)
            answer = await self.ask(order.op, **order.params(dry_run=True))
        except FieldError as error:
            self.say_problem(str(error))
            return
        except RemoteError as error:
            self.say_problem(error.message, error.hint)
            return
        except Exception as error:  # no form ends in a traceback
            self.say_problem(f"{type(error).__name__}: {error}")
            return
        self.say_fine(summary)
        self.query_one("#command", Static).update(command_words(answer))
        self._set_ready(order)

    def say_problem(self, message: str, hint: str = "") -> None:
        """Show what keeps the order from being given."""
        lines = message.splitlines() or [message]
        most = 3 if self.has_class("-short") or self.has_class("-tiny") else PROBLEMS_SHOWN
        if len(lines) > most:
            lines = [*lines[: most - 1], f"… and {len(lines) - most + 1} more"]
        text = Content.from_markup("[$error]✖ $message[/]", message="\n".join(lines))
        if hint:
            text += Content.from_markup("\n[$grpo-muted]→ $hint[/]", hint=hint)
        self.query_one("#problem", Static).update(text)
        self.query_one("#command", Static).update(Content.from_markup("[$grpo-faint]–[/]"))

    def say_fine(self, summary: str) -> None:
        """Show what the order amounts to."""
        text = Content.from_markup("[$success]✔[/] $summary", summary=summary) if summary else Content()
        self.query_one("#problem", Static).update(text)

    def _set_ready(self, order: Order | None) -> None:
        self.ready = order
        button = self.query_one("#go", Button)
        had_focus = button.has_focus
        button.disabled = order is None
        if order is None:
            self.query_one("#command", Static).update(Content.from_markup("[$grpo-faint]checking …[/]"))
            self._focus_go_again = had_focus or getattr(self, "_focus_go_again", False)
        elif self._go_when_ready:
            button.focus()
        elif getattr(self, "_focus_go_again", False) and (self.focused is None or self.focused.disabled):
            button.focus()
            self._focus_go_again = False

    def chosen(self, button: str) -> None:
        if self.ready is None or self._sending:
            return
        if not self._is_as_shown(self.ready):
            self.preview()
            return
        self._sending = True
        self.send(self.ready)

    def _is_as_shown(self, shown: Order) -> bool:
        """Whether the fields still say what was shown: keys may be faster than the message of a change."""
        try:
            return self.order() == shown
        except FieldError:
            return False

    @work(group="send", exit_on_error=False, description="the order itself")
    async def send(self, order: Order) -> None:
        """Give the order whose command was shown."""
        button = self.query_one("#go", Button)
        button.label, button.disabled = "Sending …", True
        try:
            answer = await self.ask(order.op, timeout=60.0, **order.params(dry_run=False))
        except RemoteError as error:
            self.say_problem(error.message, error.hint)
        except Exception as error:  # no form ends in a traceback
            self.say_problem(f"{type(error).__name__}: {error}")
        else:
            self.dismiss({**answer, "order": order})
            return
        self._sending = False
        button.label, button.disabled = self.VERB, False


def command_words(answer: dict[str, Any]) -> Content:
    """The command of a dry run, and the one that does the same from a shell where that is another."""
    argv, shell_argv = answer.get("argv"), answer.get("shell_argv")
    words = Content(command_line([str(word) for word in argv]) if isinstance(argv, list) else str(argv or ""))
    if isinstance(shell_argv, list) and shell_argv:
        same = command_line([str(word) for word in shell_argv])
        words += Content.from_markup("\n[$grpo-muted]as by hand:[/] [$grpo-think]$same[/]", same=same)
    return words


def field(label: str, *widgets: Widget, under: str = "") -> ComposeResult:
    """A labelled row of a form."""
    with Horizontal(classes="field"):
        yield Label(label, classes="label")
        yield from widgets
    if under:
        yield Label(under, classes="under")
