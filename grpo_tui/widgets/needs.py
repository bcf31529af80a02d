"""What needs the user, newest first: two lines an entry."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.message import Message

from grpo_tui.model.needs import GLYPHS, Need, Needs
from grpo_tui.model.store import Store
from grpo_tui.widgets.list_panel import ListPanel
from grpo_tui.widgets.panel import from_markup

INDENT = 9
"""Cells before the text: mark and time."""


class NeedsPanel(ListPanel):
    """The cursor stays on its entry."""

    COMPONENT_CLASSES: ClassVar = {"needs--bad", "needs--warn", "needs--good"}

    class Opened(Message):
        """An entry was clicked."""

        def __init__(self, need: Need) -> None:
            super().__init__()
            self.need = need

    def __init__(self, store: Store, needs: Callable[[], Needs], *, id: str) -> None:
        super().__init__(store, id=id)
        self._needs = needs
        self._key = ""

    @property
    def entries(self) -> list[Need]:
        return self._needs().entries

    @property
    def current(self) -> Need | None:
        """The entry under the cursor."""
        at = self.cursor
        return self.entries[at // 2] if at >= 0 else None

    @property
    def lines_wanted(self) -> int:
        """Rows of content."""
        return 2 * len(self.entries)

    @property
    def count(self) -> int:
        return 2 * len(self.entries)

    @property
    def cursor(self) -> int:
        found = next((i for i, need in enumerate(self.entries) if need.key == self._key), 0)
        return 2 * found if self.entries else -1

    def move_to(self, index: int, by: int) -> None:
        entries = self.entries
        self._key = entries[min(len(entries) - 1, (index + (by > 0)) // 2)].key

    def clicked(self, index: int) -> None:
        self._key = self.entries[index // 2].key
        self.post_message(self.Opened(self.entries[index // 2]))

    def state(self) -> object:
        return (tuple(self.entries), self._key, self.size, self.app.theme, self.has_focus)

    def refresh_titles(self) -> None:
        count = len(self.entries)
        title = from_markup("needs you [$text-muted]$count[/]", count=str(count))
        keys = from_markup(
            "[$text-muted]$open opens · $dismiss dismisses[/]", open=self.key("open"), dismiss=self.key("dismiss")
        )
        self.set_titles(title, keys)

    def line(self, index: int, width: int) -> Text:
        need = self.entries[index // 2]
        muted = self.get_component_rich_style("list--muted", partial=True)
        if index % 2:
            then = f"; {need.then}" if need.then and need.detail else need.then
            text = Text(" " * INDENT + need.detail, style=muted, no_wrap=True)
            text.truncate(max(1, width - len(then)), overflow="ellipsis")
            return text.append(then)
        today = time.localtime(self.store.now())[:3] == time.localtime(need.at)[:3]
        at = time.strftime("%H:%M" if today else "%m-%d", time.localtime(need.at))
        tone = self.get_component_rich_style(f"needs--{need.tone}", partial=True)
        text = Text(no_wrap=True)
        text.append(f"{GLYPHS[need.tone]} ", style=tone)
        text.append(f"{at}  ", style=muted)
        text.append(need.text)
        return text
