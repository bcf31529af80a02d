"""Base of all panels: a frame with a title and the age of its data, repainted on change only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from textual import events, getters
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.widget import Widget

from grpo_tui.kit.desk import Desk
from grpo_tui.model.store import Freshness, Store

VI_KEYS = {"j": "down", "k": "up", "g": "home", "G": "end", "h": "left", "l": "right"}
TONES = {
    "live": "$success",
    "busy": "$secondary",
    "good": "$primary",
    "rest": "$text-muted",
    "warn": "$warning",
    "bad": "$error",
}
"""Theme color of each tone."""


@functools.lru_cache(512)
def from_markup(markup: str, **texts: str) -> Content:
    """``Content.from_markup``, kept: frames are set at every tick, and most say what they said."""
    return Content.from_markup(markup, **texts)


@functools.lru_cache(256)
def toned(freshness: Freshness) -> Content:
    """An age for a frame."""
    color = "$grpo-muted" if freshness.tone == "live" else TONES[freshness.tone]
    return from_markup(f"[{color}]$text[/]", text=freshness.text)


def link_age(store: Store) -> Freshness:
    """How long the link has been lost; nothing while the box is connected."""
    text, tone = store.link_label()
    return Freshness() if store.connected else Freshness(text.partition(",")[0], tone)


if TYPE_CHECKING:
    from typing_extensions import Self

    _Base = Widget
else:
    _Base = object


class StoreView(_Base):
    """A view of the store. ``tick`` is called four times a second after news, else once."""

    app = getters.app(Desk)
    _seen: object = None
    _titles: tuple[str | Content, str | Content] = ("", "")
    _sets_titles = False

    def __init__(self, store: Store, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.store = store

    async def on_event(self, event: events.Event) -> None:
        if not self.app.holds(event):  # it was forwarded before the form began to open
            await super().on_event(event)

    def state(self) -> object:
        """A value that differs whenever the view must be repainted."""
        raise NotImplementedError

    def tick(self) -> None:
        """Update the frame, and repaint if the state changed. A hidden view does nothing."""
        if not self.display or not self.is_attached:
            return
        self.refresh_titles()
        state = (self.state(), self.in_blocks)
        if state != self._seen:
            self._seen = state
            self.content_changed()

    def content_changed(self) -> None:
        """Called when :meth:`state` differs."""
        self.refresh()

    def refresh_titles(self) -> None:
        """Set the titles in the frame."""

    def age(self) -> Content:
        """Age of the data of the selected run."""
        return toned(self.store.freshness())

    @property
    def in_blocks(self) -> bool:
        """Whether charts are drawn in block characters instead of braille."""
        return self.app.preferences.in_blocks

    def key(self, action: str) -> str:
        """Text of the key of an action, as the user has set it."""
        return self.app.key(action)

    def set_titles(self, title: str | Content, subtitle: str | Content = "") -> None:
        """Set title and subtitle if they differ; markup, or Content for text from elsewhere.

        A zoomed panel also names the key that restores it.
        """
        if self.screen.maximized is self:
            restore = Content.from_markup("[$text-muted]$key: restore[/]  ", key=self.key("back"))
            subtitle = restore + (Content.from_markup(subtitle) if isinstance(subtitle, str) else subtitle)
        if not all(map(_same, (title, subtitle), self._titles)):
            self._titles = (title, subtitle)
            self._sets_titles = True
            self.border_title = title
            self.border_subtitle = subtitle
            self._sets_titles = False

    def refresh(self, *regions: Region, **options: bool) -> Self:
        """As usual, but a title repaints its line only: ages change every second."""
        if self._sets_titles:
            (left, top), (width, height) = self.content_offset, self.outer_size
            regions = (Region(-left, -top, width, 1), Region(-left, height - 1 - top, width, 1))
        return super().refresh(*regions, **options)


def _same(one: str | Content, other: str | Content) -> bool:
    if isinstance(one, Content) and isinstance(other, Content):
        return one.is_same(other)  # == ignores colors
    return type(one) is type(other) and one == other


class Line(StoreView, Widget):
    """A view without a frame."""


class Panel(StoreView, Widget, can_focus=True):
    """A panel that does not scroll."""

    ALLOW_MAXIMIZE = True
    DEFAULT_CLASSES = "panel"


class ScrollPanel(StoreView, ScrollView, can_focus=True):
    """A panel that scrolls: with the arrow keys, and with the keys of vi unless the user gave them to an action."""

    DEFAULT_CLASSES = "panel"
    BINDINGS: ClassVar = [(key, f"vi('{key}')") for key in "jkgG"]

    def set_lines(self, count: int) -> None:
        """Say how many lines there are, once per change.

        Setting ``virtual_size`` lays out the whole screen, on every new line of a log; that is needed only where the
        scrollbar appears or goes. A width of 1 prevents a horizontal one: lines are cut.
        """
        size, height = Size(1, count), self.scrollable_content_region.height
        if height < 1 or (count > height) != self.show_vertical_scrollbar:
            self.virtual_size = size
        elif size != self.virtual_size:
            self.set_reactive(Widget.virtual_size, size)
            if self.show_vertical_scrollbar:
                self.vertical_scrollbar.window_virtual_size = count

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "vi":
            return self.app.is_free(str(parameters[0]))
        return super().check_action(action, parameters)

    async def action_vi(self, key: str) -> None:
        """Do what the arrow key of a vi key does here."""
        bound = self.screen.active_bindings.get(VI_KEYS[key])
        if bound is not None and bound.node is self:
            await self.run_action(bound.binding.action)
