"""The last lines: the keys of a view and their actions, and the views. A click does what the key does.

A terminal of few rows has one line: the views are digits at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual import events
from textual.content import Content

from grpo_tui.actions.action import Action, Situation, key_label
from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import Line

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp

MARK = "▸"
"""Before the view that is shown."""


class KeyBar(Line):
    """Made from the action registry. An unavailable action is dim; its key shows why."""

    def __init__(self, store: Store, actions: tuple[Action, ...], readonly: bool, *, view: str, id: str) -> None:
        super().__init__(store, id=id)
        self.readonly, self.view = readonly, view
        shown = [action for action in actions if action.in_bar and action.is_in(view) and action.group != "Views"]
        # what only this view has, first; on Home, where runs are chosen, what can be done with them
        first = [one for one in shown if one.group == "Runs"] if view == "home" else []
        self.actions = first + sorted((one for one in shown if one not in first), key=lambda one: one.scope != view)
        self.views = [action for action in actions if action.group == "Views" and action.in_bar]
        self._spans: list[tuple[int, int, str]] = []

    def state(self) -> object:
        return (tuple(bool(reason) for _, reason in self._reasons()), self.size.width, self.has_views)

    @property
    def has_views(self) -> bool:
        """Whether it also shows the views, because the terminal is too short for a line of their own."""
        return self.screen.has_class("-short")

    def _reasons(self) -> list[tuple[Action, str]]:
        app = cast("GrpoApp", self.app)
        situation = Situation(self.store, self.readonly, self.view, app.options.history is not None)
        return [(action, action.reason(situation)) for action in self.actions]

    def render(self) -> Content:
        views = self._digits() if self.has_views else []
        width = self.size.width - sum(part.cell_length for part, _ in views)
        reasons = self._reasons()
        gap = 2 if width >= 100 else 1
        needed = sum(len(key_label(a.keys[0])) + 1 + len(a.label) + gap for a in self.actions) + 1
        # If not all fit, unavailable actions are dropped first, then from the end; these always stay.
        if needed > width:
            always = {"help", "quit", "palette", "launch"}
            for drop in [a for a, reason in reasons if reason] + [a for a, _ in reversed(reasons)]:
                if needed <= width:
                    break
                if drop.id not in always and any(a is drop for a, _ in reasons):
                    needed -= len(key_label(drop.keys[0])) + 1 + len(drop.label) + gap
                    reasons = [(a, reason) for a, reason in reasons if a is not drop]
        parts, column = [Content(" ")], 1
        self._spans = []
        for action, reason in reasons:
            key = key_label(action.keys[0])
            if reason:
                part = Content.from_markup("[$grpo-faint]$key $label[/]", key=key, label=action.label)
            else:
                tone = "$error" if action.dangerous else "$accent"
                part = Content.from_markup(f"[bold {tone}]$key[/] [$grpo-muted]$label[/]", key=key, label=action.label)
            self._spans.append((column, column + part.cell_length, action.id))
            column += part.cell_length + gap
            parts += [part, Content(" " * gap)]
        parts.append(Content(" " * (width - column)))
        column = width
        for part, view in views:
            self._spans.append((column, column + part.cell_length, view))
            column += part.cell_length
            parts.append(part)
        return Content.assemble(*parts)

    def _digits(self) -> list[tuple[Content, str]]:
        """The key of each view, and the view; the one that is shown is marked."""
        return [
            (
                Content.from_markup(
                    f"[{'bold $primary' if view.id == self.view else '$grpo-muted'}]$mark$key[/]",
                    mark=MARK if view.id == self.view else " ", key=key_label(view.keys[0]),
                ),
                view.id,
            )
            for view in self.views
        ]  # fmt: skip

    async def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(f"app.act('{action}')")


class ViewBar(Line):
    """The views and their keys; the one that is shown stands out. Left out on a terminal of few rows."""

    def __init__(self, store: Store, actions: tuple[Action, ...], *, view: str, id: str) -> None:
        super().__init__(store, id=id)
        self.view = view
        self.actions = [action for action in actions if action.group == "Views" and action.in_bar]
        self._spans: list[tuple[int, int, str]] = []

    def state(self) -> object:
        return self.size.width

    def render(self) -> Content:
        parts, column = [], 1
        self._spans = []
        for action in self.actions:
            is_shown = action.id == self.view
            tone = "bold $primary" if is_shown else "$grpo-muted"
            key = key_label(action.keys[0])
            part = Content.from_markup(f"[bold $accent]$key[/] [{tone}]$label[/]", key=key, label=action.label)
            self._spans.append((column, column + part.cell_length, action.id))
            parts += [Content.from_markup(f"[$primary]{MARK}[/]" if is_shown else " "), part, Content("  ")]
            column += part.cell_length + 3
        return Content.assemble(*parts)

    async def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(f"app.act('{action}')")
