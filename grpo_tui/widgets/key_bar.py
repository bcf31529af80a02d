"""The last lines: the keys of a view and their actions, and the views. A click does what the key does."""

from __future__ import annotations

from textual import events
from textual.content import Content

from grpo_tui.actions.action import Action, Situation, key_label
from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import Line


class KeyBar(Line):
    """Made from the action registry. An unavailable action is dim; its key shows why."""

    def __init__(self, store: Store, actions: tuple[Action, ...], readonly: bool, *, view: str, id: str) -> None:
        super().__init__(store, id=id)
        self.readonly, self.view = readonly, view
        shown = [action for action in actions if action.in_bar and action.is_in(view) and action.group != "Views"]
        # what only this view has, first; on Home, where runs are chosen, what can be done with them
        first = [one for one in shown if one.group == "Runs"] if view == "home" else []
        self.actions = first + sorted((one for one in shown if one not in first), key=lambda one: one.scope != view)
        self._spans: list[tuple[int, int, str]] = []

    def state(self) -> object:
        return (tuple(bool(reason) for _, reason in self._reasons()), self.size.width)

    def _reasons(self) -> list[tuple[Action, str]]:
        situation = Situation(self.store, self.readonly, self.view)
        return [(action, action.reason(situation)) for action in self.actions]

    def render(self) -> Content:
        width = self.size.width
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
        return Content.assemble(*parts)

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
            parts += [Content.from_markup("[$primary]▸[/]" if is_shown else " "), part, Content("  ")]
            column += part.cell_length + 3
        return Content.assemble(*parts)

    async def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(f"app.act('{action}')")
