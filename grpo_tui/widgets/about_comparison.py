"""The head of the compare view: axis, smoothing, the runs with their marks; what is missing before two are marked."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from grpo_train.run_dir.display import duration
from grpo_tui.model.charts_view import AXIS_NAMES, smoothing_label
from grpo_tui.model.compare import LETTERS, Comparison
from grpo_tui.model.run_names import short_names
from grpo_tui.model.store import Store
from grpo_tui.widgets.compare_chart import legend
from grpo_tui.widgets.panel import Line
from grpo_tui.widgets.runs import short_name

LEGEND_LINES = 3


class AboutComparison(Line):
    """Axis, smoothing, what differs; then the runs with their letters, markers and lines."""

    def __init__(self, store: Store, comparison: Comparison, saving: Callable[[], str], *, id: str) -> None:
        super().__init__(store, id=id)
        self._comparison, self._saving = comparison, saving
        self._lines_of: tuple[object, list[Content]] = (None, [])

    def state(self) -> object:
        comparison = self._comparison
        return (
            self.size.width, comparison.version, comparison.smoothing, comparison.smoothed_steps, comparison.left_out,
            self._saving(), self.screen.has_class("-short"), [id(run.facts) for run in comparison.runs],
            self._age(),
        )  # fmt: skip

    def _age(self) -> str:
        """The age of what the laptop kept, while that is shown."""
        at = self._comparison.recalled_at
        return "" if at is None else duration(self.store.now() - at)

    def lines(self, width: int) -> list[Content]:
        """The lines that fit into ``width``; made once for each state."""
        if (key := (width, self.state())) != self._lines_of[0]:
            self._lines_of = (key, self._lines(width))
        return self._lines_of[1]

    def _lines(self, width: int) -> list[Content]:
        comparison = self._comparison
        pin = comparison.pin
        text = Content.from_markup("[bold $primary]compare[/]")
        if pin is None or not comparison.is_comparing:
            return [text]
        parts = [
            ("", f"{len(comparison.runs)} runs ({pin.letter} pinned)"),
            ("x: ", AXIS_NAMES[comparison.x]),
            ("smoothing: ", smoothing_label(comparison.smoothing, comparison.smoothed_steps)),
        ]
        for name, value in parts:
            text += Content.from_markup("   [$text-muted]$name[/]$value", name=name, value=value)
        if age := self._age():
            text += Content.from_markup("   [$warning]as it was $age ago[/]", age=age)
        if saving := self._saving():
            text += Content.from_markup("   [$secondary]$text[/]", text=saving)
        if comparison.left_out:
            text += Content.from_markup(
                "   [$warning]▲ $count marked runs are left out: at most $most[/]",
                count=str(comparison.left_out), most=str(len(LETTERS)),
            )  # fmt: skip
        return [text.truncate(width, ellipsis=True), *self._legend(width)]

    def _legend(self, width: int) -> list[Content]:
        comparison = self._comparison
        count = len(comparison.runs)
        most = 1 if self.screen.has_class("-short") else LEGEND_LINES
        a_line = -(-count // most)
        room = max(6, width // min(count, max(a_line, 3)) - len("A  ●━   ") - 3)
        configs = {run.name: run.facts.config for run in comparison.runs if run.facts is not None}
        names = short_names([run.name for run in comparison.runs], configs).short
        lines = [Content()]
        for run in comparison.runs:
            name = short_name(names.get(run.name) or run.name, min(32, room))
            part = legend(run, name, run.name == comparison.pinned, run.name == comparison.current)
            if lines[-1].cell_length + 3 + part.cell_length > width and lines[-1]:
                if len(lines) == most:
                    break
                lines.append(Content())
            lines[-1] += (Content("   ") if lines[-1] else Content()) + part
        return lines

    def render(self) -> Content:
        return Content("\n").join(self.lines(self.size.width - 2))


class WhatIsMissing(Line):
    """What would be here, and which key makes it, while fewer than two runs are marked."""

    def state(self) -> object:
        return self.render()

    def render(self) -> Content:
        marked = list(self.store.marks)
        keys = {name: self.key(name) for name in ("home", "mark", "compare")}
        text = Content.from_markup(
            "two to twelve runs side by side: their curves, what differs in their configurations,\n"
            "their evaluations in pairs, and where they are at the same step, time and cost\n\n"
            "[bold $primary]$home[/] turns to Home, [bold $primary]$mark[/] marks the run under the cursor, "
            "[bold $primary]$compare[/] returns",
            **keys,
        )
        if marked:
            text += Content.from_markup("\n\n[$text-muted]marked so far: $run[/]", run=marked[0])
        return text
