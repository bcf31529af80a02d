"""The frame of every dialog, and the three plain ones: a message, a question, the receipt of nothing else."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """A framed box in the middle; escape gives it up (its result is None)."""

    BINDINGS: ClassVar = [
        Binding("escape", "cancel", "cancel", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-short"), (32, "-tall")]  # noqa: RUF012
    HEADING = ""
    TONE = ""
    """A class of the frame: ``-danger``, ``-warning`` or none."""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes=self.TONE) as frame:
            frame.border_title = Content(self.heading())
            yield from self.compose_body()
            with Horizontal(id="buttons"):
                yield from self.compose_buttons()

    def heading(self) -> str:
        """The words in the frame."""
        return self.HEADING

    def compose_body(self) -> ComposeResult:
        """What is between the frame and the buttons."""
        raise NotImplementedError

    def compose_buttons(self) -> ComposeResult:
        """The buttons, the harmless one first."""
        yield Button("Close", id="cancel", compact=True)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        # The one handler: Textual calls those of the base classes too, and a screen must be dismissed once.
        event.stop()
        if event.button.id == "cancel":
            self.action_cancel()
        else:
            self.chosen(str(event.button.id))

    def chosen(self, button: str) -> None:
        """Another button than ``cancel`` was pressed."""


class MessageScreen(Dialog[None]):
    """Something went wrong: what, and the way out."""

    TONE = "-warning"
    BINDINGS: ClassVar = [
        Binding("up", "scroll_words(-1)", show=False),
        Binding("down", "scroll_words(1)", show=False),
        Binding("pageup", "scroll_words(-10)", show=False),
        Binding("pagedown", "scroll_words(10)", show=False),
    ]

    def __init__(self, title: str, message: str, hint: str = "") -> None:
        super().__init__()
        self.title_words, self.message, self.hint = title, message, hint

    def heading(self) -> str:
        return self.title_words

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="body", can_focus=False):
            yield Static(Content(self.message), classes="message")
            if self.hint:
                yield Static(Content.from_markup("[$grpo-muted]→[/] $hint", hint=self.hint), classes="hint")

    def action_scroll_words(self, by: int) -> None:
        """A long message is read by the keys; the button keeps the focus."""
        self.query_one(".body").scroll_relative(y=by, animate=False)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()


class Question(Dialog[bool]):
    """Two buttons, ``cancel`` and ``yes``."""

    FOCUS = "#cancel"

    def on_mount(self) -> None:
        self.query_one(self.FOCUS).focus()

    def chosen(self, button: str) -> None:
        self.dismiss(True)

    def action_cancel(self) -> None:
        self.dismiss(False)


class ConfirmScreen(Question):
    """A question whose answer cannot be taken back. Cancel has the focus."""

    TONE = "-danger"

    def __init__(self, title: str, lines: list[str], yes: str, command: str = "") -> None:
        super().__init__()
        self.title_words, self.lines, self.yes, self.command = title, lines, yes, command

    def heading(self) -> str:
        return self.title_words

    def compose_body(self) -> ComposeResult:
        for line in self.lines:
            yield Static(Content.from_markup(line), classes="message")
        if self.command:
            yield Static(Content(self.command), id="command")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button(self.yes, id="yes", variant="error", compact=True)


class HostKeyScreen(Question):
    """An unknown box shows its key; the user compares the fingerprint."""

    HEADING = "unknown host key"
    TONE = "-warning"

    def __init__(self, host: str, key_type: str, fingerprint: str) -> None:
        super().__init__()
        self.host, self.key_type, self.fingerprint = host, key_type, fingerprint

    def compose_body(self) -> ComposeResult:
        yield Static(
            Content.from_markup(
                "[bold]$host[/] has never been seen from here. It shows this $type key:",
                host=self.host, type=self.key_type,
            ),
            classes="message",
        )  # fmt: skip
        yield Static(Content(self.fingerprint), id="command")
        yield Static(
            Content.from_markup(
                "[$grpo-muted]Compare it with what the provider shows, or on the box itself:\n"
                "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub[/]"
            ),
            classes="message",
        )

    def compose_buttons(self) -> ComposeResult:
        yield Button("Reject", id="cancel", compact=True)
        yield Button("Accept and remember", id="yes", variant="warning", compact=True)


class AttachScreen(Question):
    """Before the terminal is handed over: what will run, and how to come back."""

    HEADING = "attach"
    FOCUS = "#yes"

    def __init__(self, session: str, box: str, command: str, detach: str, note: str = "") -> None:
        super().__init__()
        self.session, self.box, self.command, self.detach, self.note = session, box, command, detach, note

    def compose_body(self) -> ComposeResult:
        yield Static(
            Content.from_markup("The live terminal of [bold]$session[/] on $box.", session=self.session, box=self.box),
            classes="message",
        )
        yield Static(Content(self.command), id="command")
        yield Static(
            Content.from_markup("To come back here: [bold $accent]$detach[/]", detach=self.detach), classes="message"
        )
        yield Static(
            Content.from_markup("[$grpo-muted]ctrl+c in there asks the run to stop after its step.[/]"),
            classes="message",
        )
        if self.note:
            yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=self.note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Attach", id="yes", variant="primary", compact=True)
