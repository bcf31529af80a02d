"""Dialogs of the list of runs: what it is sorted by, its columns, a note; and W&B of a run."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.events import Key
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from grpo_train.run_dir.identity import MAX_NOTE
from grpo_tui.box.events import TrackedRun
from grpo_tui.box.run_columns import column
from grpo_tui.box.run_list import Order
from grpo_tui.kit.dialog import Dialog, LineInput, TextDialog

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

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
        mark = "▪" if name in self.columns else " "
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
        self.call_after_refresh(self.app.release_keys)

    def on_input_submitted(self) -> None:
        self.chosen("keep")

    def chosen(self, button: str) -> None:
        self.dismiss(" ".join(self.query_one(Input).value.split()))


class TrackingScreen(TextDialog[None]):
    """``y`` copies the URL, or the command that sends the run; ``o`` opens the page in a browser."""

    BINDINGS: ClassVar = [Binding("y", "copy", show=False), Binding("o", "open", show=False)]

    def __init__(self, tracking: TrackedRun) -> None:
        super().__init__()
        self.tracking = tracking
        self.heading = f"W&B: {tracking.run}"

    def compose_text(self) -> ComposeResult:
        for line in _lines(self.tracking):
            yield Static(line, classes="message")
        yield Static(Content(self.tracking.url or self.tracking.command), classes="command")

    def compose_below(self) -> ComposeResult:
        keys = "y copies the URL · o opens it in a browser" if self.tracking.url else "y copies the command"
        yield Static(Content.from_markup("[$grpo-muted]$keys[/]", keys=keys), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy", id="copy", compact=True)
        if self.tracking.url:
            yield Button("Open in a browser", id="open", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()

    def chosen(self, button: str) -> None:
        if button == "open":
            self.action_open()
        else:
            self.action_copy()

    def action_copy(self) -> None:
        """Copy the URL, or the command that sends the run."""
        app = self.app
        if self.tracking.url:
            app.copy(self.tracking.url, f"W&B page of {self.tracking.run}")
        else:
            app.copy(self.tracking.command, "command that sends it")

    def action_open(self) -> None:
        """Open the page in a browser of this machine."""
        app = self.app
        if self.tracking.url:
            app.work("browser", partial(_browse, app, self.tracking.url))


async def _browse(app: Desk, url: str) -> None:
    """Open a page in a process of its own, whose output does not reach the screen."""
    if not has_browser():
        app.warn("no graphical browser on this machine; y copies the URL", title="not opened")
        return
    null = asyncio.subprocess.DEVNULL
    command = [sys.executable, "-m", "webbrowser", "-t", url]
    try:
        await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null, start_new_session=True)
    except OSError as error:
        app.warn(f"{error}; y copies the URL", title="not opened")
        return
    app.receipt("opened in the browser", url)


def has_browser() -> bool:
    """Whether this machine has a browser with a window: one in the terminal would take over the screen."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    is_generic = isinstance(browser, webbrowser.GenericBrowser)
    return not is_generic or isinstance(browser, webbrowser.BackgroundBrowser)


def _lines(tracking: TrackedRun) -> Iterator[Content]:
    if tracking.mode:
        yield Content.from_markup("sent [bold]$mode[/] since $at", mode=tracking.mode, at=tracking.at)
    elif tracking.asked in ("", "off"):
        yield Content("not tracked: tracking.wandb is off")
    else:
        yield Content.from_markup("nothing was sent (tracking.wandb is $asked)", asked=tracking.asked)
    if tracking.error:
        yield Content.from_markup("[$warning]▲ $at  $error[/]", at=tracking.failed_at, error=tracking.error)
    if not tracking.url:
        yield Content.from_markup("[$grpo-muted]send it at any time, on the box:[/]")
