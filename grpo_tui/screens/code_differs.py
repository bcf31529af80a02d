"""The choice between the code of a run and what was synced since, before it is resumed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Static

from grpo_tui.model.formatting import one_line
from grpo_tui.screens.dialog import TextDialog
from remote.protocol.code import NOW, THEN


class CodeDiffersScreen(TextDialog[str]):
    """Dismissed with ``then``, ``now``, or None. The code of the run has the focus."""

    heading = "the code differs"
    TONE = "-warning"

    def __init__(self, message: str, box: str) -> None:
        super().__init__()
        self.message, self.box = message, box

    def compose_text(self) -> ComposeResult:
        yield Static(Content(one_line(self.message)), classes="message")
        text = f"A resume can take either. The other one stays on {self.box or 'the box'}."
        yield Static(Content.from_markup("[$grpo-muted]$text[/]", text=text), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Code of the run", id=THEN, variant="primary", compact=True)
        yield Button("Synced code", id=NOW, variant="warning", compact=True)

    def on_mount(self) -> None:
        self.query_one(f"#{THEN}").focus()

    def chosen(self, button: str) -> None:
        self.dismiss(button)
