"""Everything that the history knows of one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Button, Static

from grpo_train.history.listing import lines_of
from grpo_train.history.record import Record
from grpo_tui.screens.dialog import TextDialog


class RecordScreen(TextDialog[None]):
    """As ``grpo-tui history show``; ``y`` copies it."""

    BINDINGS: ClassVar = [Binding("y", "copy", show=False)]

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.heading, self.record = f"{record.name} on {record.box}", record
        self.lines = lines_of(record)

    def compose_text(self) -> ComposeResult:
        yield Static(Content("\n").join(_toned(self.lines)), classes="message")

    def compose_below(self) -> ComposeResult:
        note = "as it was last heard; the box or a backup has the curves · y copies"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy", id="copy", compact=True)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()

    def chosen(self, button: str) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        """Copy all of it."""
        self.app.copy("\n".join(self.lines), f"what is known of {self.record.name}")


def _toned(lines: list[str]) -> Iterator[Content]:
    for line in lines:
        label, _, rest = line.partition(" ")
        yield Content.from_markup("[$grpo-muted]$label[/] $rest", label=label, rest=rest)
