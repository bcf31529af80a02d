"""Base of all panels: a frame with a title and the age of its data, repainted on change only."""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from textual import events, getters
from textual.content import Content
from textual.geometry import Region, Size
from textual.widget import Widget
from textual.widgets import Static

from grpo_tui.box.asking import Asking, seconds_waited
from grpo_tui.box.formatting import one_line
from grpo_tui.box.store import Freshness, Store
from grpo_tui.kit.desk import Desk
from remote.protocol import RemoteError


class Excerpt(Static):
    """Grows with its text up to ``max-height``."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.visual.get_height({}, max(width, 1))  # less than nothing is left in a tiny terminal

    def render(self) -> Content:
        text, (width, height) = self.visual, self.size
        assert isinstance(text, Content)
        if width < 1 or height < 1:
            return text
        lines = text.wrap(width)
        if len(lines) <= height:
            return text
        last = lines[height - 1].rstrip()
        last = last.truncate(width - 1) if last.cell_length >= width else last
        return Content("\n").join([*lines[: height - 1], last + "…"])

    def on_resize(self, event: events.Resize) -> None:
        self.refresh()


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
        """Age of the data of the selected run; of one that is over, its summary says it once."""
        row = self.store.run
        return Content() if row is not None and row.is_over else toned(self.store.freshness())

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


Reply = TypeVar("Reply")


def waiting(asking: Asking) -> Content | None:
    """Why the last request failed, or ``asking the box 3 s``; None if there is nothing to say."""
    if asking.problem:
        return Content.from_markup("[$warning]$text[/]", text=asking.problem)
    return _muted(asking) if seconds_waited(asking.waited) else None


def _muted(asking: Asking) -> Content:
    return Content.from_markup("[$text-muted]$text[/]", text=asking.words())


class WaitingLine(Static):
    """Says how long the box is asked, then why it did not answer, or what :meth:`update` is given."""

    def __init__(self, *, id: str) -> None:
        super().__init__("", id=id, classes="message")
        self._asking = Asking()

    def on_mount(self) -> None:
        self.set_interval(0.5, self._tick)

    def _tick(self) -> None:
        if self._asking.is_waiting:
            self.update(_muted(self._asking))

    async def wait(self, reply: Awaitable[Reply], failed: str = "") -> Reply | None:
        """The reply; None if the box did not answer, which is said then after ``failed``."""
        self._asking.start(reply)
        self._tick()
        try:
            return await reply
        except RemoteError as error:
            if self._asking.end(reply, error.message):
                self.update(Content.from_markup("[$error]✖ $text[/]", text=failed + one_line(error.message)))
            return None
        finally:
            self._asking.cancel(reply)
