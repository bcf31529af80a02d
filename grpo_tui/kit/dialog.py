"""The frame of every dialog, and the dialogs without fields: a message, questions."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual import events, getters
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from grpo_tui.kit.bars import StatusLine
from grpo_tui.kit.desk import Desk
from grpo_tui.kit.panel import Excerpt
from remote.events import QuestionAsked


class LineInput(Input):
    """Line breaks of a pasted text become spaces: Textual takes the first line and drops the others."""

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = " ".join(event.text.splitlines())
        if self.selection.is_empty:
            self.insert_text_at_cursor(text)
        else:
            self.replace(text, *self.selection)


Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """A framed box in the middle of the screen. Escape cancels it (result None)."""

    app = getters.app(Desk)
    BINDINGS: ClassVar = [
        Binding("escape", "cancel", "cancel", show=False),
        Binding("left,h", "app.focus_previous", show=False),
        Binding("right,l", "app.focus_next", show=False),
        Binding("j", "move('cursor_down', 'scroll_down')", show=False),
        Binding("k", "move('cursor_up', 'scroll_up')", show=False),
        Binding("g", "move('first', 'scroll_home')", show=False),
        Binding("G", "move('last', 'scroll_end')", show=False),
        Binding("colon", "app.show_messages", show=False),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-short"), (32, "-tall"), (50, "-high")]  # noqa: RUF012
    heading = ""
    """Title in the frame."""
    keys = ""
    """The keys of a list, in the frame."""
    TONE = ""
    """CSS class of the frame: ``-danger``, ``-warning`` or none."""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes=self.TONE) as frame:
            frame.border_title = Content(self.heading)
            frame.border_subtitle = Content(self.keys)
            yield from self.compose_body()
            with Horizontal(id="buttons"):
                yield from self.compose_buttons()
        yield StatusLine(self.app.store)

    def compose_body(self) -> ComposeResult:
        """Widgets above the buttons."""
        raise NotImplementedError

    def compose_buttons(self) -> ComposeResult:
        """The buttons, the safe one first."""
        yield Button("Close", id="cancel", compact=True)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_move(self, cursor: str, scroll: str) -> None:
        """Move the cursor of the focused list, else scroll the text."""
        if move := getattr(self.focused, f"action_{cursor}", None):
            move()
        else:
            for body in self.query(".body"):
                if body.allow_vertical_scroll:
                    getattr(body, f"action_{scroll}")()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        # Not to be overridden: Textual also calls the handlers of base classes, and a screen is dismissed only once.
        event.stop()
        if event.button.id == "cancel":
            self.action_cancel()
        else:
            self.chosen(str(event.button.id))

    def chosen(self, button: str) -> None:
        """Called for any button other than ``cancel``."""


class TextDialog(Dialog[Result]):
    """A dialog whose text scrolls if it does not fit; the button or the input keeps the focus."""

    BINDINGS: ClassVar = [
        Binding("up", "scroll_text(-1)", show=False),
        Binding("down", "scroll_text(1)", show=False),
        Binding("pageup", "scroll_text(-10)", show=False),
        Binding("pagedown", "scroll_text(10)", show=False),
    ]

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="body text", can_focus=False):
            yield from self.compose_text()
        yield from self.compose_below()

    def compose_text(self) -> ComposeResult:
        """Widgets that scroll."""
        raise NotImplementedError

    def compose_below(self) -> ComposeResult:
        """Widgets below them that are always visible."""
        yield from ()

    def action_scroll_text(self, by: int) -> None:
        self.query_one(".body").scroll_relative(y=by, animate=False)


class MessageScreen(TextDialog[None]):
    """An error and its hint."""

    TONE = "-warning"

    def __init__(self, title: str, message: str, hint: str = "") -> None:
        super().__init__()
        self.heading, self.message, self.hint = title, message, hint

    def compose_text(self) -> ComposeResult:
        yield Static(Content(self.message), classes="message")

    def compose_below(self) -> ComposeResult:
        if self.hint:
            yield Excerpt(Content.from_markup("[$grpo-muted]→[/] $hint", hint=self.hint), classes="hint")

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()


class ConfirmDialog(TextDialog[bool]):
    """Two buttons, ``cancel`` and ``yes``."""

    FOCUS = "#cancel"

    def on_mount(self) -> None:
        self.query_one(self.FOCUS).focus()

    def chosen(self, button: str) -> None:
        self.dismiss(True)

    def action_cancel(self) -> None:
        self.dismiss(False)


class ConfirmScreen(ConfirmDialog):
    """Confirmation of an irreversible action. Cancel has the focus."""

    TONE = "-danger"

    def __init__(self, title: str, lines: list[Content], yes: str) -> None:
        super().__init__()
        self.heading, self.lines, self.yes = title, lines, yes

    def compose_text(self) -> ComposeResult:
        for line in self.lines:
            yield Static(line, classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button(Content(self.yes), id="yes", variant="error", compact=True)


class StopScreen(ConfirmScreen):
    """Confirmation of what loses nothing: enter does it."""

    TONE, FOCUS = "-warning", "#yes"


class HostKeyScreen(ConfirmDialog):
    """The key of an unknown box, for the user to compare."""

    heading = "unknown host key"
    TONE = "-warning"

    def __init__(self, host: str, key_type: str, fingerprint: str) -> None:
        super().__init__()
        self.host, self.key_type, self.fingerprint = host, key_type, fingerprint

    def compose_text(self) -> ComposeResult:
        yield Static(
            Content.from_markup(
                "First connection to [bold]$host[/]. Its $type key:",
                host=self.host, type=self.key_type,
            ),
            classes="message",
        )  # fmt: skip
        yield Static(Content(self.fingerprint), classes="command")
        yield Static(
            Content.from_markup(
                "[$grpo-muted]Compare it with the fingerprint from your provider, or run on the box:\n"
                "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub[/]"
            ),
            classes="message",
        )

    def compose_buttons(self) -> ComposeResult:
        yield Button("Reject", id="cancel", compact=True)
        yield Button("Accept and remember", id="yes", variant="warning", compact=True)


class AttachScreen(ConfirmDialog):
    """The command that takes over the terminal, and how to return."""

    heading = "attach"
    FOCUS = "#yes"

    def __init__(self, session: str, box: str, command: str, detach: str, note: str = "") -> None:
        super().__init__()
        self.session, self.box, self.command, self.detach, self.note = session, box, command, detach, note

    def compose_text(self) -> ComposeResult:
        yield Static(
            Content.from_markup("Terminal of [bold]$session[/] on $box.", session=self.session, box=self.box),
            classes="message",
        )
        yield Static(Content(self.command), classes="command")

    def compose_below(self) -> ComposeResult:
        yield Static(Content.from_markup("To return: [bold $accent]$detach[/]", detach=self.detach), classes="message")
        if self.detach != "exit":  # a shell of one's own
            warning = "[$grpo-muted]Ctrl+C there stops the run after the current step.[/]"
            yield Static(Content.from_markup(warning), classes="message")
        if self.note:
            yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=self.note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Attach", id="yes", variant="primary", compact=True)


_NOTES = {
    "passphrase": "kept in memory until grpo-tui exits",
    "confirm": "ssh asks before it uses the key",
    "touch": "waiting for the key; this closes by itself",
}


class QuestionScreen(TextDialog[str]):
    """Dismissed with the answer, or with None. The answer is not kept."""

    TONE = "-warning"

    def __init__(self, box: str, question: QuestionAsked) -> None:
        super().__init__()
        self.heading = f"log in to {box}"
        self.question = question
        self.typed = question.kind not in ("touch", "confirm")

    def compose_text(self) -> ComposeResult:
        yield Static(Content(self.question.text), classes="message")

    def compose_below(self) -> ComposeResult:
        note = _NOTES.get(self.question.kind, "asked once; not stored")
        if self.typed:
            yield LineInput(password=not self.question.echo, id="answer", compact=True)
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close" if self.question.kind == "touch" else "Cancel", id="cancel", compact=True)
        if self.question.kind != "touch":
            yield Button("Answer" if self.typed else "Allow", id="yes", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#answer" if self.typed else "#cancel").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)

    def chosen(self, button: str) -> None:
        self.dismiss(self.query_one("#answer", Input).value if self.typed else "yes")
