"""The confirmation that a sync takes along what is not committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Static

from grpo_tui.model.formatting import one_line
from grpo_tui.screens.dialog import Question

if TYPE_CHECKING:
    from remote.code import Checkout

SHOWN = 12


class UncommittedScreen(Question):
    """The files that are not as committed. Cancel has the focus."""

    heading = "changes that are not committed"
    TONE = "-warning"

    def __init__(self, checkout: Checkout, box: str) -> None:
        super().__init__()
        self.checkout, self.box = checkout, box

    def compose_text(self) -> ComposeResult:
        changes = self.checkout.changes
        more = len(changes) - SHOWN
        head = f"{self.checkout.folder} is at {self.checkout.commit[:10]} with changes:"
        lines = [Content(head), Content(), *(Content(one_line(row)) for row in changes[:SHOWN])]
        if more > 0:
            lines.append(Content.from_markup("[$grpo-muted]… and $count more[/]", count=f"{more:,}"))
        yield Static(Content("\n").join(lines), classes="message")
        text = f"They go to {self.box} as a patch, which each run that trains with them keeps."
        yield Static(Content.from_markup("[$grpo-muted]$text[/]", text=text), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Sync with the changes", id="yes", variant="warning", compact=True)
