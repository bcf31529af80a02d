"""The last line: what can be done, by which key; what cannot be done now is dim (and says why when pressed)."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from grpo_tui.actions import Action, Situation, key_words
from grpo_tui.model.store import Store


class KeyBar(Widget):
    """Made from the action registry; a click does what the key does."""

    def __init__(self, store: Store, actions: tuple[Action, ...], *, id: str) -> None:
        super().__init__(id=id)
        self.store = store
        self.actions = [action for action in actions if action.in_bar]
        self._seen: object = None
        self._spans: list[tuple[int, int, str]] = []

    def tick(self) -> None:
        state = (tuple(bool(reason) for _, reason in self._reasons()), self.size.width)
        if state != self._seen:
            self._seen = state
            self.refresh()

    def _reasons(self) -> list[tuple[Action, str]]:
        situation = Situation(self.store, bool(getattr(self.app, "readonly", False)))
        return [(action, action.reason(situation)) for action in self.actions]

    def render(self) -> Content:
        width = self.size.width
        reasons = self._reasons()
        gap = 2 if width >= 100 else 1
        needed = sum(len(key_words(a.all_keys[0])) + 1 + len(a.label) + gap for a in self.actions) + 1
        # Where not all fit, what cannot be done now goes first, then the middle; help and quit always stay.
        if needed > width:
            always = {"help", "quit", "palette", "launch"}
            for drop in [a for a, why in reasons if why] + [a for a, _ in reversed(reasons)]:
                if needed <= width:
                    break
                if drop.id not in always and any(a is drop for a, _ in reasons):
                    needed -= len(key_words(drop.all_keys[0])) + 1 + len(drop.label) + gap
                    reasons = [(a, why) for a, why in reasons if a is not drop]
        parts, at = [Content(" ")], 1
        self._spans = []
        for action, why in reasons:
            key = key_words(action.all_keys[0])
            if why:
                part = Content.from_markup("[$grpo-faint]$key $label[/]", key=key, label=action.label)
            else:
                tone = "$error" if action.dangerous else "$accent"
                part = Content.from_markup(f"[bold {tone}]$key[/] [$grpo-muted]$label[/]", key=key, label=action.label)
            self._spans.append((at, at + part.cell_length, action.id))
            at += part.cell_length + gap
            parts += [part, Content(" " * gap)]
        return Content.assemble(*parts)

    async def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(f"app.act('{action}')")
