"""What every panel shares: a frame with a title, the age of its data in the frame, and repaint on change only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.scroll_view import ScrollView
from textual.widget import Widget

from grpo_tui.model.formatting import Freshness
from grpo_tui.model.store import Store

TONES = {
    "live": "$success",
    "busy": "$secondary",
    "good": "$primary",
    "rest": "$text-muted",
    "warn": "$warning",
    "bad": "$error",
}
"""The theme colour of each tone."""


def toned(freshness: Freshness) -> str:
    """An age as markup for a frame."""
    if not freshness.text:
        return ""
    colour = "$grpo-faint" if freshness.tone == "live" else TONES[freshness.tone]
    return f"[{colour}]{freshness.text}[/]"


if TYPE_CHECKING:
    _Base = Widget
else:
    _Base = object


class PanelBehaviour(_Base):
    """A framed view of the store. ``tick`` is called four times a second."""

    store: Store
    _seen: object = None
    _titles: tuple[str | Content, str] = ("", "")

    def state(self) -> object:
        """Whatever this panel's content depends on; when it differs, the panel repaints."""
        raise NotImplementedError

    def tick(self) -> None:
        """Repaint if something changed; the age in the frame moves by itself. A hidden panel does nothing."""
        if not self.display or not self.is_attached:
            return
        self.refresh_titles()
        state = self.state()
        if state != self._seen:
            self._seen = state
            self.content_changed()

    def content_changed(self) -> None:
        """What to do when :meth:`state` differs."""
        self.refresh()

    def refresh_titles(self) -> None:
        """Set the frame's words."""

    def age_markup(self) -> str:
        """The age of the selected run's data."""
        return toned(self.store.freshness())

    def set_titles(self, title: str | Content, subtitle: str = "") -> None:
        """Title above (markup, or content where it holds foreign words), age below; touched only when they differ."""
        if (title, subtitle) != self._titles:
            self._titles = (title, subtitle)
            self.border_title = title
            self.border_subtitle = subtitle


class Panel(PanelBehaviour, Widget, can_focus=True):
    """A panel that shows everything at once."""

    ALLOW_MAXIMIZE = True

    def __init__(self, store: Store, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=f"panel {classes or ''}".strip())
        self.store = store


class ScrollPanel(PanelBehaviour, ScrollView, can_focus=True):
    """A panel whose lines may be more than fit."""

    def __init__(self, store: Store, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=f"panel {classes or ''}".strip())
        self.store = store
