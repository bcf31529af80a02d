"""The selected run in a few lines: model, step time by stage, checkpoints, health."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from grpo_tui.model.formatting import one_line, shortened
from grpo_tui.model.run_facts import RunFacts
from grpo_tui.model.run_names import ADAPTERS, base_name
from grpo_tui.model.store import Store
from grpo_tui.widgets.health import LABEL, HealthLine
from grpo_tui.widgets.panel import Line, StoreView
from grpo_tui.widgets.stage_bar import StageBar

ALWAYS = 3
"""Lines that are always there."""


def _labeled(label: str, text: Content) -> Content:
    return Content.from_markup("[$text-muted]$label[/]", label=f"{label:<{LABEL}}") + text


class ModelLine(Line):
    """``Qwen2.5-1.5B · LoRA r=64 · 64 prompts × 8``."""

    def __init__(self, store: Store, facts: Callable[[], RunFacts]) -> None:
        super().__init__(store)
        self._facts = facts

    def state(self) -> object:
        return (self.store.selected, self._facts().version, self._facts().problem, self.size)

    def render(self) -> Content:
        facts = self._facts()
        config = facts.configs.get(self.store.selected or "")
        if config is None:
            text = facts.problem or ("asking the box" if self.store.connected and self.store.selected else "")
            return Content.from_markup("[$text-muted]$text[/]", text=text)
        return Content(shortened(one_line(about(config)) or "no configuration yet", max(9, self.size.width)))


def about(config: Mapping[str, Any]) -> str:
    """Task, model, adapter, prompts and completions of a configuration."""
    rank = config.get("model.lora_rank")
    adapter = ADAPTERS.get(str(config.get("model.adapter")), "")
    prompts, samples = config.get("rollout.buffer_size"), config.get("rollout.num_generations")
    parts = [
        str(config.get("task.name") or ""),
        base_name(str(config.get("model.backbone") or "")),
        f"{adapter} r={rank}" if adapter == "LoRA" and rank else adapter,
        f"{prompts} prompts × {samples}" if prompts and samples else "",
    ]
    return " · ".join(part for part in parts if part)


class CheckpointsLine(Line):
    """``checkpoints  step_30 .830 · step_20 .710 (2 more)``, the newest first."""

    def state(self) -> object:
        store = self.store
        return (store.versions["shown"], store.versions["sessions"], store.selected, self.size)

    def render(self) -> Content:
        views = [view for view in self.store.checkpoints() if view.step is not None]
        if not views:
            unknown = "" if self.store.shown_at is None else "none saved yet"
            return _labeled("checkpoints", Content.from_markup("[$text-muted]$text[/]", text=unknown))
        text, left, room = Content(), len(views), self.size.width - LABEL - (28 if self.store.evaluating() else 11)
        for view in views:
            figure = next((result.figure for result in view.evaluations if result.spread), "")
            part = Content.from_markup("[bold]$figure[/]", figure=f" {figure}" if figure else "")
            name = Content.from_markup("[$warning]$name[/]" if view.problem else "$name", name=view.name)
            if text.cell_length + name.cell_length + part.cell_length + 3 > room:
                break
            text += (Content("  ") if text else Content()) + name + part
            left -= 1
        if self.store.evaluating():
            text += Content.from_markup("  [$secondary]◆ evaluating …[/]")
        if left:
            text += Content.from_markup(" [$text-muted]($left more)[/]", left=str(left))
        return _labeled("checkpoints", text)


class NoteLine(Line):
    """The note on the run."""

    def state(self) -> object:
        return (self.note, self.size)

    @property
    def note(self) -> str:
        return self.store.run.note if self.store.run else ""

    def render(self) -> Content:
        return _labeled("note", Content(self.note)).truncate(max(1, self.size.width), ellipsis=True)


class SummaryPanel(StoreView, Vertical):
    """The lines in one frame. Where there is no room for it, a warning or an alarm in one line."""

    def __init__(self, store: Store, facts: Callable[[], RunFacts], *, id: str) -> None:
        super().__init__(store, id=id, classes="panel")
        self._facts = facts

    def compose(self) -> ComposeResult:
        yield ModelLine(self.store, self._facts)
        yield StageBar(self.store, id="stages")
        yield CheckpointsLine(self.store)
        yield NoteLine(self.store)
        yield HealthLine(self.store, id="health")

    def lines_wanted(self, is_line: bool) -> int:
        """Rows of content."""
        logs = self.store.logs
        has_health = logs is not None and logs.health.is_logged
        if is_line:
            return int(logs is not None and logs.health.tone != "muted")
        note = int(bool(self.query_one(NoteLine).note))
        return ALWAYS + note + (self.query_one(HealthLine).lines() if has_health else 0)

    def show_as(self, lines: int, is_line: bool) -> None:
        """Show all lines in a frame, or the health alone without one."""
        self.set_class(is_line, "-line")
        note, health = self.query_one(NoteLine), self.query_one(HealthLine)
        for line in self.query(Line):
            line.display = not is_line
        note.display = not is_line and bool(note.note)
        rows = lines if is_line else lines - ALWAYS - int(note.display)
        health.display = rows > 0
        health.styles.height = max(1, rows)

    def state(self) -> object:
        return None

    def refresh_titles(self) -> None:
        self.set_titles(Content.from_markup("$name", name=shortened(self.store.selected or "", 60)), self.age())
