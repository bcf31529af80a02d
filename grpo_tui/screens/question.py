"""A question of ssh: a password, a passphrase, a code, or a key to touch."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Input, Static

from grpo_tui.screens.dialog import TextDialog
from grpo_tui.widgets.line_input import LineInput
from remote.events import QuestionAsked

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
