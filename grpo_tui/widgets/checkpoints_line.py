"""The checkpoints of the selected run in one line, with a cursor while its panel has the keys."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.message import Message

from grpo_tui.model.checkpoints import CheckpointView
from grpo_tui.model.store import Store
from grpo_tui.widgets.health import LABEL
from grpo_tui.widgets.panel import Line

GAP = 2


class CheckpointsLine(Line):
    """``checkpoints  step_30 .830  step_20 .710 (2 more)``, the newest first. A click opens one."""

    class Opened(Message):
        """A checkpoint was clicked."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.has_cursor = False
        """Whether its panel has the keys."""
        self._cursor: tuple[str, int] | None = None
        """Run and step under the cursor; None: the newest."""
        self._spans: list[tuple[int, int, int]] = []
        """Where each step is."""

    @property
    def views(self) -> list[CheckpointView]:
        return [view for view in self.store.checkpoints() if view.step is not None]

    @property
    def current(self) -> CheckpointView | None:
        """The checkpoint under the cursor."""
        views = self.views
        return views[self._place(views)] if views else None

    def _place(self, views: list[CheckpointView]) -> int:
        wanted = self._cursor[1] if self._cursor is not None and self._cursor[0] == self.store.selected else None
        return next((index for index, view in enumerate(views) if view.step == wanted), 0)

    def move(self, by: int) -> None:
        """Move the cursor: to the right are the older ones."""
        views = self.views
        if views and self.store.selected is not None:
            view = views[min(len(views) - 1, max(0, self._place(views) + by))]
            assert view.step is not None
            self._cursor = (self.store.selected, view.step)
            self.tick()

    def state(self) -> object:
        store = self.store
        return (
            store.versions["shown"], store.versions["sessions"], store.selected, self.size, self.has_cursor,
            self._cursor, self.app.theme,
        )  # fmt: skip

    def render(self) -> Content:
        views = self.views
        label = Content.from_markup("[$text-muted]$label[/]", label=f"{'checkpoints':<{LABEL}}")
        if not views:
            unknown = "" if self.store.shown_at is None else "none saved yet"
            self._spans = []
            return label + Content.from_markup("[$text-muted]$text[/]", text=unknown)
        place = self._place(views) if self.has_cursor else 0
        parts = [self._part(view, self.has_cursor and index == place) for index, view in enumerate(views)]
        first = 0
        while (shown := self._fitting(parts[first:])) <= place - first and first < place:
            first += 1
        text = label + Content("… " if first else "")
        self._spans = []
        for view, part in zip(views[first:], parts[first : first + shown], strict=False):
            text += Content(" " * GAP) if self._spans else Content()
            self._spans.append((text.cell_length, text.cell_length + part.cell_length, view.step or 0))
            text += part
        if self.store.evaluating():
            text += Content.from_markup("  [$secondary]◆ evaluating …[/]")
        if left := len(views) - first - shown:
            text += Content.from_markup(" [$text-muted]($left more)[/]", left=str(left))
        return text

    def _fitting(self, parts: list[Content]) -> int:
        """How many of the parts fit."""
        room = self.size.width - LABEL - (28 if self.store.evaluating() else 11)
        count = used = 0
        for part in parts:
            used += part.cell_length + 3
            if used > room:
                break
            count += 1
        return count

    @staticmethod
    def _part(view: CheckpointView, is_current: bool) -> Content:
        figure = next((result.figure for result in view.evaluations if result.spread), "")
        tone = "[reverse]" if is_current else "[$warning]" if view.problem else "[$foreground]"
        name = Content.from_markup(f"{tone}$name[/]", name=view.name)
        return name + Content.from_markup("[bold]$figure[/]", figure=f" {figure}" if figure else "")

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset_capture(self).x
        for start, end, step in self._spans:
            if start <= at < end:
                self.post_message(self.Opened(step))
