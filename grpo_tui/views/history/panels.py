"""Panels of the History: the table, and what is known of the run under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.content import Content
from textual.message import Message

from grpo_train.history.fields import field_text
from grpo_train.run_dir.display import state_label
from grpo_train.run_dir.verdict import alarm_of
from grpo_tui.box.events import tracking_of
from grpo_tui.box.formatting import Sized, fit
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import Cell, TablePanel
from grpo_tui.kit.panel import TONES, Line, Panel
from grpo_tui.views.history.model import TABLES, HistoryView

if TYPE_CHECKING:
    from grpo_train.history.record import RunRecord


WIDEST = 40
"""Cells of a column; a longer text is cut in the middle."""
FIRST_LEAST, FIRST_WANTED = 12, 26
FIRM = 2
"""Columns up to this rank leave the first one only FIRST_LEAST cells."""
DETAILS = (
    ("run", ("state", "step", "total_steps", "launched", "took", "restarts", "sweep")),
    ("result", ("reward", "max.reward", "held_out", "held_out_step", "eval.best", "eval.best_step", "gain")),
    ("cost", ("cost", "projected", "cost_per_step", "cost_per_1000", "cost_per_point")),
    ("config", ("task", "model", "lr", "device", "nproc")),
    ("where", ("box", "root", "backup", "identity", "parent")),
)
"""Label of a line, and its fields."""
WORDS = {
    "reward": "last reward", "total_steps": "of", "max.reward": "highest", "held_out": "held-out", "eval.best": "best",
    "held_out_step": "at step", "eval.best_step": "at step",
    "cost_per_step": "per step", "cost_per_1000": "per 1,000", "cost_per_point": "per point", "cost": "so far",
    "nproc": "processes",
}  # fmt: skip
BARE = ("state", "task", "model", "device", "box", "root")
"""Fields whose value says what they are."""


class AboutHistory(Line):
    """One line: the tables, how many runs were found, and what they cost."""

    def __init__(self, store: Store, view: HistoryView, *, id: str) -> None:
        super().__init__(store, id=id)
        self._view = view

    def state(self) -> object:
        return (self._view.version, self.size.width)

    def render(self) -> Content:
        view = self._view
        parts = []
        for name in TABLES:
            tone = "bold $primary" if name == view.asked.table else "$grpo-muted"
            parts.append(Content.from_markup(f"[{tone}]$name[/]", name=name))
        text = Content("   ").join(parts)
        if (answer := view.answer) is not None and answer.asked.table == TABLES[0]:
            text += Content.from_markup("   [$text-muted]$sums[/]", sums=answer.sums)
        return text


class HistoryTable(TablePanel):
    """The rows of the table. The cursor stays on its run when the table changes."""

    class Moved(Message):
        """The user moved the cursor."""

    COMPONENT_CLASSES: ClassVar = {f"history--{tone}" for tone in TONES}

    def __init__(self, store: Store, view: HistoryView, *, id: str) -> None:
        super().__init__(store, id=id)
        self._view = view

    def state(self) -> object:
        return (self._view.version, self.cursor, self.size, self.app.theme, self.has_focus)

    def refresh_titles(self) -> None:
        view, answer = self._view, self._view.answer
        title = Content("history")
        if answer is not None:
            count = f"{answer.found:,}" if answer.found == answer.known else f"{answer.found:,} of {answer.known:,}"
            if query := view.asked.query:
                title += Content.from_markup(" [$warning]/$query[/]", query=query)
            title += Content.from_markup(" [$text-muted]$count[/]", count=count)
        below = Content()
        if view.problem:
            below = Content.from_markup("[$error]✖ $text[/]", text=view.problem)
        elif answer is not None and answer.asked.table != TABLES[0]:
            below = Content.from_markup("[$foreground]$sums[/]", sums=answer.sums)
        elif view.asked.query:
            below = Content.from_markup("[$text-muted]$key: show all[/]", key=self.key("back"))
        elif any(column.id == "reward" for column in self.columns(self.size.width - self.margin)):
            below = Content.from_markup("[$text-muted]reward: last step[/]")
        self.set_titles(title, below)

    # the list ------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        answer = self._view.answer
        return len(answer.rows.cells) if answer is not None else 0

    def identity(self, index: int) -> object:
        answer = self._view.answer
        return answer.records[index].identity if answer is not None and answer.records else index

    @property
    def record(self) -> RunRecord | None:
        """The run under the cursor."""
        answer = self._view.answer
        at = self.cursor
        return answer.records[at] if answer is not None and 0 <= at < len(answer.records) else None

    def move_to(self, index: int, by: int) -> None:
        super().move_to(index, by)
        self.post_message(self.Moved())

    def go_to(self, box: str, name: str | None) -> bool:
        """Put the cursor on a run; returns False if it is not listed."""
        records = self._view.answer.records if self._view.answer is not None else ()
        found = next((one for one in records if (one.box, one.name) == (box, name)), None)
        if found is not None:
            self._identity = found.identity
        return found is not None

    def empty(self) -> Text:
        return Text(f" {self._view.nothing()}")

    def columns(self, width: int) -> Sequence[Sized]:
        answer = self._view.answer
        if answer is None or not answer.rows.columns:
            return []
        rows = answer.rows
        first, *others = (
            Sized(name, min(WIDEST, size), place if name != self.sorted_by[0] else FIRM, name, not is_right)
            for place, (name, size, is_right) in enumerate(zip(rows.columns, rows.widths, rows.right, strict=True))
        )
        return fit(first, others, width, min(first.width, FIRST_LEAST), min(first.width, FIRST_WANTED), FIRM)

    @property
    def sorted_by(self) -> tuple[str, str]:
        answer = self._view.answer
        if answer is None or answer.asked.table != TABLES[0]:
            return "", ""
        return answer.order.column, answer.order.arrow

    def cells(self, index: int, columns: Sequence[Sized]) -> Iterator[Cell]:
        answer = self._view.answer
        assert answer is not None
        texts = dict(zip(answer.rows.columns, answer.rows.cells[index], strict=True))
        record = answer.records[index] if answer.records else None
        for column in columns:
            tone = _tone(record, column.id) if record is not None else ""
            style = self.get_component_rich_style(f"history--{tone}", partial=True) if tone else ""
            yield texts[column.id], style


def _tone(record: RunRecord, column: str) -> str:
    """Of a cell; "" = none. A run in trouble is not shown in green because it has ended."""
    verdict = record.verdict
    if column == "verdict":
        return verdict.tone if verdict is not None else ""
    return state_label(record.state, alarm=alarm_of(verdict))[2] if column == "state" else ""


class HistoryDetails(Panel):
    """What is known of the run under the cursor, its tracking and its last error."""

    can_focus = False

    def __init__(self, store: Store, record: Callable[[], RunRecord | None], *, id: str) -> None:
        super().__init__(store, id=id, classes="panel")
        self._record = record

    def state(self) -> object:
        record = self._record()
        return (id(record), self.size, self.app.theme)

    def refresh_titles(self) -> None:
        record = self._record()
        keys = f"{self.key('tracking')}: W&B · {self.key('history_details')}: everything that is known"
        hint = Content.from_markup("[$text-muted]$keys[/]", keys=keys)
        self.set_titles(Content(record.name if record else "run"), hint if record else "")

    def render(self) -> Content:
        if (record := self._record()) is None:
            return Content()
        lines = [_about(label, record, names) for label, names in DETAILS]
        tracking = tracking_of(record.name, record.events, record.config_value("tracking.wandb"))
        state = tracking.error or tracking.url or tracking.state
        tone = "$warning" if tracking.error else "$foreground"
        wandb = Content.from_markup(f"[$text-muted]$label[/][{tone}]$state[/]", label=f"{'W&B':<9}", state=state)
        lines.append(wandb)
        for label, name in (("error", "error"), ("note", "note")):
            if text := field_text(record, name):
                tone = "$error" if label == "error" else "$foreground"
                lines.insert(1, Content.from_markup(f"[$text-muted]$label[/][{tone}]$text[/]",
                                                    label=f"{label:<9}", text=text))  # fmt: skip
        if (verdict := record.verdict) is not None:
            markup = f"[$text-muted]$label[/][{TONES[verdict.tone]}]$word[/]  $text"
            word = f"{verdict.mark} {verdict.word}"
            lines.insert(1, Content.from_markup(markup, label=f"{'verdict':<9}", word=word, text=verdict.text))
        width, height = self.size
        return Content("\n").join([line.truncate(max(1, width), ellipsis=True) for line in lines[: max(1, height)]])


def _about(label: str, record: RunRecord, names: tuple[str, ...]) -> Content:
    line = Content.from_markup("[$text-muted]$label[/]", label=f"{label:<9}")
    parts = []
    for name in names:
        if not (text := field_text(record, name)) or (name == "restarts" and text == "0"):
            continue
        word = "" if name in BARE else f"{WORDS.get(name, name.replace('_', ' '))} "
        parts.append(Content.from_markup("[$text-muted]$word[/]$text", word=word, text=text))
    return line + (Content("   ").join(parts) if parts else Content.from_markup("[$text-muted]not known[/]"))
