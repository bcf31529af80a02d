"""Dialogs of the list of runs: what it is sorted by, its columns, a note."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.events import Key
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from grpo_train.run_dir.notes import MAX_NOTE
from grpo_tui.model.run_columns import column
from grpo_tui.model.run_list import Order
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.line_input import LineInput

CHOICES_SHOWN = 400


class OrderScreen(Dialog[str]):
    """Dismissed with the column to sort by. The present one again means the other direction."""

    heading = "sort the runs"
    BINDINGS: ClassVar = [Binding("o", "again", show=False)]

    def __init__(self, columns: Sequence[str], order: Order) -> None:
        super().__init__()
        self.columns, self.order = columns, order

    def compose_body(self) -> ComposeResult:
        yield OptionList(*(Option(self._line(name), id=name) for name in self.columns), id="choices")
        note = "enter: sort · on the column with the arrow: the other direction"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def _line(self, name: str) -> Content:
        arrow = self.order.arrow if name == self.order.column else " "
        return Content.from_markup("[$primary]$arrow[/] $title", arrow=arrow, title=column(name).title)

    def on_mount(self) -> None:
        choices = self.query_one(OptionList)
        choices.highlighted = self.columns.index(self.order.column) if self.order.column in self.columns else 0
        choices.focus()

    def action_again(self) -> None:
        """The key that opened it chooses, too: pressed twice, it turns the direction."""
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(str(event.option.id))


class ColumnsScreen(Dialog[tuple[str, ...]]):
    """Dismissed with the columns, in order."""

    heading = "columns of the list of runs"
    BINDINGS: ClassVar = [
        Binding("space", "choose", show=False),
        Binding("less_than_sign", "place(-1)", show=False),
        Binding("greater_than_sign", "place(1)", show=False),
        Binding("slash", "search", show=False),
    ]

    def __init__(self, chosen: Sequence[str], others: Sequence[str]) -> None:
        super().__init__()
        self.columns, self.others = list(chosen), [name for name in others if name not in chosen]

    def compose_body(self) -> ComposeResult:
        yield LineInput(id="search", placeholder="part of a name", compact=True)
        yield OptionList(id="choices")
        note = "space: show or hide · < >: move · /: search metrics and config keys · enter: save"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Save", id="save", variant="primary", compact=True)

    def on_mount(self) -> None:
        self._fill()
        self.query_one(OptionList).focus()

    @property
    def _current(self) -> str:
        choices = self.query_one(OptionList)
        at = choices.highlighted
        return str(choices.get_option_at_index(at).id) if at is not None else ""

    def _fill(self, current: str = "") -> None:
        """List the chosen columns, then the others that match."""
        word = self.query_one("#search", Input).value.strip().lower()
        names = [name for name in [*self.columns, *self.others] if word in f"{name} {column(name).title}".lower()]
        names = names[:CHOICES_SHOWN]
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(Option(self._line(name), id=name) for name in names)
        if names:
            choices.highlighted = names.index(current) if current in names else 0

    def _line(self, name: str) -> Content:
        mark = "★" if name in self.columns else " "
        return Content.from_markup("[$primary]$mark[/] $name", mark=mark, name=name)

    def action_choose(self) -> None:
        """Show or hide the column under the cursor."""
        if not (name := self._current):
            return
        if name in self.columns:
            self.columns.remove(name)
            self.others.insert(0, name)
        else:
            self.others.remove(name)
            self.columns.append(name)
        self._fill(name)

    def action_place(self, by: int) -> None:
        """Move the column under the cursor."""
        if (name := self._current) in self.columns:
            at = self.columns.index(name)
            self.columns.insert(min(len(self.columns) - 1, max(0, at + by)), self.columns.pop(at))
            self._fill(name)

    def action_search(self) -> None:
        self.query_one("#search", Input).focus()

    def on_input_changed(self) -> None:
        self._fill()

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).focus()

    def on_key(self, event: Key) -> None:
        if event.key == "down" and self.query_one("#search", Input).has_focus:
            event.stop()
            self.query_one(OptionList).focus()

    def on_option_list_option_selected(self) -> None:
        self.chosen("save")

    def chosen(self, button: str) -> None:
        if self.columns:
            self.dismiss(tuple(self.columns))


class NoteScreen(Dialog[str]):
    """Dismissed with the note."""

    def __init__(self, run: str, note: str) -> None:
        super().__init__()
        self.heading, self.note = f"note on {run}", note

    def compose_body(self) -> ComposeResult:
        yield LineInput(self.note, id="note", max_length=MAX_NOTE, compact=True)
        text = "stored in the run's directory; the filter searches it · enter: save · empty: remove"
        yield Static(Content.from_markup("[$grpo-muted]$text[/]", text=text), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Save", id="keep", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self) -> None:
        self.chosen("keep")

    def chosen(self, button: str) -> None:
        self.dismiss(" ".join(self.query_one(Input).value.split()))
