"""A line for a tmux session: typed, then confirmed with box and session beside it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Input, Static

from grpo_tui.screens.dialog import ConfirmScreen, TextDialog
from grpo_tui.widgets.line_input import LineInput
from remote.protocol.shells import MAX_LINE


class LineScreen(TextDialog[str]):
    """Dismissed with a line, or with None."""

    def __init__(self, session: str) -> None:
        super().__init__()
        self.heading = f"send a line to {session}"

    def compose_text(self) -> ComposeResult:
        yield Static(Content("It is typed into the session, followed by Enter."), classes="message")

    def compose_below(self) -> ComposeResult:
        yield LineInput(id="answer", placeholder="a command", compact=True, max_length=MAX_LINE)

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Continue …", id="yes", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#answer").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.chosen("yes")

    def chosen(self, button: str) -> None:
        self.dismiss(self.query_one("#answer", Input).value)


def confirm_line(box: str, session: str, line: str) -> ConfirmScreen:
    """Shows box, session and line. Dismissed with whether it is sent."""
    shown = (("box", box), ("session", session), ("line", line))
    lines = [Content.from_markup("[$text-muted]$name[/]  $text", name=f"{name:<7}", text=text) for name, text in shown]
    return ConfirmScreen("send this line?", lines, "Send")
