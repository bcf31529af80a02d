"""All messages of this session, the newest first, each in full below the list."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from grpo_tui.box.messages import StatusMessage
from grpo_tui.kit.dialog import Dialog, LineInput
from grpo_tui.kit.panel import TONES

NEWS_S = 0.5


class MessagesScreen(Dialog[None]):
    """``y`` copies the message under the cursor, ``/`` searches. Whoever sees the list has read the warnings."""

    heading = "messages of this session"
    BINDINGS: ClassVar = [
        Binding("y", "copy", show=False),
        Binding("slash", "search", show=False),
        Binding("q", "cancel", show=False),
        Binding("pageup", "scroll_text(-1)", show=False),
        Binding("pagedown", "scroll_text(1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._listed: list[StatusMessage] = []
        self._made_of: object = None

    def compose_body(self) -> ComposeResult:
        yield LineInput(id="search", placeholder="part of a message, a run or a box", compact=True)
        yield OptionList(id="choices")
        with VerticalScroll(id="in-full", can_focus=False):
            yield Static(id="text-in-full")
        note = "y: copy · /: search · pgup pgdn: scroll the text · esc: close"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy", id="copy", compact=True)

    def on_mount(self) -> None:
        self.query_one("#search").display = False
        self._fill()
        self.query_one(OptionList).focus()
        self.set_interval(NEWS_S, self._fill)

    @property
    def _current(self) -> StatusMessage | None:
        at = self.query_one(OptionList).highlighted
        return self._listed[at] if at is not None and at < len(self._listed) else None

    def _fill(self) -> None:
        """List what was said until now, and keep the cursor on its message."""
        messages = self.app.messages
        word = self.query_one("#search", Input).value.strip()
        made_of = (word, messages.entries[-1:], len(messages.entries))
        if made_of == self._made_of:
            return
        self._made_of, current, was_first = made_of, self._current, self.query_one(OptionList).highlighted in (None, 0)
        messages.read_all()
        self._listed = [one for one in reversed(messages.entries) if one.says(word)]
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(Option(_entry(one)) for one in self._listed)
        if self._listed:
            choices.highlighted = self._listed.index(current) if current in self._listed and not was_first else 0
        self._show()

    def _show(self) -> None:
        """Show the message under the cursor in full."""
        found = self._current
        if found is None:
            said = "no message has it" if self.app.messages.entries else "nothing was said yet"
            self.query_one("#text-in-full", Static).update(Content.from_markup("[$grpo-muted]$said[/]", said=said))
            return
        title = " ".join(filter(None, [found.sign, found.title]))
        where = " · ".join(filter(None, [_at(found, "%Y-%m-%d %H:%M:%S"), found.box, found.run]))
        times = f" · {found.times} times" if found.times > 1 else ""
        self.query_one("#text-in-full", Static).update(
            Content("\n").join(
                [
                    Content.assemble((title, f"bold {TONES[found.tone]}"), "  ", (where + times, "$text-muted")),
                    Content(found.text),
                ]
            )
        )
        self.query_one("#in-full").scroll_home(animate=False)

    def on_option_list_option_highlighted(self) -> None:
        self._show()

    def on_input_changed(self) -> None:
        self._fill()

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).focus()

    def on_key(self, event: Key) -> None:
        search = self.query_one("#search", Input)
        if not search.has_focus:
            return
        if event.key == "down":
            event.stop()
            self.query_one(OptionList).focus()
        elif event.key == "escape":
            event.stop()
            event.prevent_default()
            search.value = ""
            search.display = False
            self.query_one(OptionList).focus()

    def action_search(self) -> None:
        """Search titles, texts, runs and boxes."""
        search = self.query_one("#search", Input)
        search.display = True
        search.focus()

    def action_copy(self) -> None:
        """Copy the message under the cursor."""
        if (found := self._current) is not None:
            self.app.copy("\n".join(filter(None, [found.title, found.text])), "the message")

    def action_scroll_text(self, by: int) -> None:
        body = self.query_one("#in-full")
        body.scroll_relative(y=by * max(1, body.size.height - 1), animate=False)

    def chosen(self, button: str) -> None:
        self.action_copy()


def _at(message: StatusMessage, form: str) -> str:
    return time.strftime(form, time.localtime(message.at))


def _entry(message: StatusMessage) -> Content:
    """A line of the list."""
    title, text = message.line()
    run = f"  {message.run}" if message.run and message.run not in title + text else ""
    return Content.assemble(
        (_at(message, "%H:%M:%S"), "$text-muted"),
        " ",
        (title, f"bold {TONES[message.tone]}"),
        text,
        (run, "$text-muted"),
    )
