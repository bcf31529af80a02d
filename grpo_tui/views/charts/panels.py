"""The list of a run's metrics, and what was logged at the crosshair."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.content import Content
from textual.message import Message

from grpo_train.run_dir.display import metric_text, percent, setting, signed
from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import NOT_READ, asking_words
from grpo_tui.box.charts import ChartsView
from grpo_tui.box.curves import Curve, Curves
from grpo_tui.box.events import CRASH, RunEvent, records_of, tone_of_level
from grpo_tui.box.formatting import compact_number, counted, metric_value, one_line, shortened
from grpo_tui.box.log import row_time
from grpo_tui.box.run_columns import FIRST
from grpo_tui.box.run_list import RunList
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import ListPanel, PageSource, Palette
from grpo_tui.kit.plot import cost_text
from grpo_tui.kit.sources import MARKS, clock, wrapped
from grpo_tui.views.charts.model import MetricLine, matches, metric_lines
from remote.protocol.rows import UNREADABLE

EMPTY = "no metrics logged yet"


class MetricsPanel(ListPanel, inherit_bindings=False):
    """One line per metric; the cursor stays on its metric when the list changes."""

    BINDINGS: ClassVar = [
        one for one in ListPanel.BINDINGS if isinstance(one, tuple) and one[0] not in ("pageup", "pagedown")
    ]
    """Those keys turn the page of the charts."""
    COMPONENT_CLASSES: ClassVar = {"metrics--shown", "metrics--unusual"}

    class Toggled(Message):
        """A click on a metric: show or hide it."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(
        self,
        store: Store,
        view: ChartsView,
        curves: Callable[[], Curves | None],
        row_at_crosshair: Callable[[], Mapping[str, Any] | None],
        *,
        id: str,
    ) -> None:
        super().__init__(store, id=id)
        self.view = view
        self._curves = curves
        self._lines: list[MetricLine] = []
        self._row_at_crosshair = row_at_crosshair
        self._made_of: object = None

    @property
    def count(self) -> int:
        return len(self._lines)

    def identity(self, index: int) -> object:
        return self._lines[index].name or None

    @property
    def current(self) -> str:
        """The metric under the cursor, or ""."""
        return self._lines[at].name if (at := self.cursor) >= 0 else ""

    def state(self) -> object:
        curves = self._curves()
        return (
            curves.version if curves is not None else None, "" if self._lines else self.empty().plain,
            self._lines, self.store.log_version("train_log"), self.size, self.app.theme, self.has_focus,
            id(self._row_at_crosshair()),
        )  # fmt: skip

    def tick(self) -> None:
        rows, view = self.store.metrics.rows, self.view
        made_of = (id(rows), len(rows), view.filter, tuple(view.shown))
        if made_of != self._made_of:
            self._made_of = made_of
            self.keep_cursor()
            self._lines = metric_lines(rows, view)
        super().tick()

    def refresh_titles(self) -> None:
        if self.view.filter:
            title = Content.from_markup("metrics [$warning]/$filter[/]", filter=self.view.filter)
        else:
            title = Content("metrics")
        if (row := self._row_at_crosshair()) is not None and (step := to_float(row.get("step"))) is not None:
            title += Content.from_markup(" [$text-muted]at $step[/]", step=f"{step:,.0f}")
        self.set_titles(title, Content.from_markup("[$text-muted]space shows[/]") if self.has_focus else "")

    def go_to(self, name: str) -> None:
        """Put the cursor on a metric."""
        self.tick()
        if any(line.name == name for line in self._lines):
            self._identity = name
        self.show_cursor()
        self.refresh()

    def clicked(self, index: int) -> None:
        if name := self._lines[index].name:
            self.move_to(index, 1)
            self.post_message(self.Toggled(name))

    def empty(self) -> Text:
        if self.view.filter:
            return Text("no metric matches")
        if self.store.selected is None:
            return Text("no run selected")
        metrics = self.store.metrics
        if metrics.is_known or (self.store.run is not None and not self.store.run.step):
            return Text(EMPTY)
        return Text(metrics.asking.instead() if self.store.connected else "not read yet")

    def line(self, index: int, width: int) -> Text:
        return self._line(self._lines[index], width)

    def _line(self, line: MetricLine, width: int) -> Text:
        muted = self.get_component_rich_style("list--muted", partial=True)
        if not line.name:
            return Text(line.text, no_wrap=True)
        value, is_now = self.value(line.name), line.is_shown
        if (ended := self.store.metrics.ended.get(line.name)) is not None and self._row_at_crosshair() is None:
            value, is_now = f"{value} @{ended}", False
        mark = "▪ " if line.is_shown else "  " if line.indent else ""
        unusual = " ▲" if line.unusual is not None else ""
        arrow = f" {found}" if line.is_shown and (found := self._arrow(line.name)) else ""
        room = width - len(mark) - len(value) - len(unusual) - 1
        if len(line.text) + len(arrow) <= room:  # a whole name before an arrow
            value, room = value + arrow, room - len(arrow)
        text = Text(no_wrap=True)
        text.append(mark, style=self.get_component_rich_style("metrics--shown", partial=True))
        text.append(f"{self._short(line.text, max(1, room)):<{max(1, room)}} ")
        text.append(value, style="" if is_now else muted)
        text.append(unusual, style=self.get_component_rich_style("metrics--unusual", partial=True))
        return text

    def _short(self, text: str, room: int) -> str:
        """A name that fits; cut at its end where others read the same without their middle."""
        short = shortened(text, room)
        others = {one.name.rpartition("/")[2] for one in self._lines} - {text}
        if short != text and any(shortened(name, room) == short for name in others):
            return f"{text[: room - 1]}…"
        return short

    def _arrow(self, name: str) -> str:
        """The trend of a metric in the charts; "" at a crosshair, and of a metric that is no longer logged."""
        curves = self._curves()
        if name in self.store.metrics.ended:
            return ""
        if curves is None or curves.is_coarse or name not in curves.curves or self._row_at_crosshair() is not None:
            return ""
        return curves.curves[name].direction()

    def value(self, name: str) -> str:
        """The value at the crosshair, else the newest: from the end of the log, which is newer than the box's table."""
        if (at := self._row_at_crosshair()) is not None:
            return metric_text(name, to_float(at.get(name)))
        row = self.store.logs.rows.last if self.store.logs else None
        value = to_float(row.fields.get(name)) if row else None
        if value is None:
            rows = self.store.metrics.rows
            value = to_float(next((each.get("last") for each in rows if each["name"] == name), None))
        return metric_text(name, value)


MOST_EVENTS = 2
"""Lines of events."""
NARROW = 60
"""Cells of the panel below which the value before is left out: the change says it, too."""
GROWN = 3.0
"""Times its level before that a value is called ``×3``."""
MOVED = 0.5
"""Share of a curve's range from which on a change is pointed out."""
NAME, SHORT_NAME, PROMPT, KEY, VALUE = 18, 10, 24, 28, 16
"""Characters of a metric's name, also in a narrow panel, of a problem, of a config key and of its value."""
GAP = 3
"""Cells between columns."""


def in_columns(cells: Sequence[Text], width: int) -> list[Text]:
    """Cells in columns of the same width, row by row."""
    wide = max((cell.cell_len for cell in cells), default=1) + GAP
    columns = max(1, (width + GAP) // wide)
    lines = []
    for start in range(0, len(cells), columns):
        line = Text(no_wrap=True)
        for cell in cells[start : start + columns]:
            line.append_text(cell).append(" " * (wide - cell.cell_len))
        line.rstrip()
        lines.append(line)
    return lines


class ConfigPage(PageSource):
    """The configuration of the run: first, in bold, the keys that differ between the runs of the list."""

    title = "config"

    def __init__(self, store: Store, runs: RunList, view: ChartsView) -> None:
        super().__init__(store)
        self._runs, self._view = runs, view

    @property
    def empty(self) -> str:
        if self.store.shown:
            return "no key matches the filter" if self._view.filter else "no configuration yet"
        return asking_words() if self.store.connected else NOT_READ

    @property
    def note(self) -> str:
        return "[$text-muted]← → or a click: what changed[/]"

    def state(self) -> object:
        store = self.store
        return (store.selected, store.versions["shown"], self._runs.names.differing, self._view.filter, self.empty)

    def layout(self, width: int, palette: Palette) -> list[Text]:
        config, differing = self.store.config, self._runs.names.differing
        cells = []
        for key in dict.fromkeys([*differing, *FIRST, *config]):
            if config.get(key) not in (None, "") and (not self._view.filter or matches(key, self._view.filter)):
                cell = Text(no_wrap=True).append(f"{shortened(key, KEY)} ", style=palette["muted"])
                value = shortened(one_line(setting(config[key])), VALUE)
                cells.append(cell.append(value, style="bold" if key in differing else ""))
        return in_columns(cells, width)


class StepSource(PageSource):
    """What changed at the row nearest to the crosshair, as a page."""

    empty = "← → move the crosshair; a click sets it"

    def __init__(
        self,
        store: Store,
        curves: Callable[[], Curves | None],
        events: Callable[[], tuple[list[RunEvent], str]] = lambda: ([], ""),
        config: Callable[[str], Any] = lambda key: None,
        keys: tuple[str, ...] = (),
    ) -> None:
        super().__init__(store)
        self._curves, self._events, self._config = curves, events, config
        self._keys = keys
        """What keys do with the row."""
        self.shown: Mapping[str, Any] | None = None
        """The reply to ``show_step``."""
        self.problems: Mapping[str, Any] | None = None
        """The reply to ``problem_changes``."""
        self.problem = ""

    @property
    def title(self) -> str:
        return "what changed" if self.shown is None else f"step {self.shown['step']:,.0f} against the 10 before"

    @property
    def note(self) -> str:
        """What keys do with the row, when it was logged, and what the run had cost by then (markup)."""
        if self.shown is None or self.row is None:
            return ""
        seconds, price, logged = self.shown.get("seconds"), self.store.price_per_hour, row_time(dict(self.row))
        parts = [clock(logged)] if logged is not None else []
        parts += [cost_text(seconds, price)] if seconds is not None and price is not None else []
        return f"[$text-muted]{' · '.join([*self._keys, *parts])}[/]"

    @property
    def row(self) -> Mapping[str, Any] | None:
        return self.shown["row"] if self.shown is not None else None

    def state(self) -> object:
        curves = self._curves()
        return (
            self.shown["offset"] if self.shown is not None else None, self.problem, id(self.problems),
            curves.metrics if curves is not None else None, curves.run if curves is not None else None,
            *map(tuple, self._events()),
        )  # fmt: skip

    def layout(self, width: int, palette: Palette) -> list[Text]:
        if self.problem:
            return wrapped(Text(self.problem, style=palette["warn"]), width)
        row, curves = self.row, self._curves()
        if row is None or curves is None or self.shown is None:
            return []
        lines = [*self._happened(width, palette), *self._values(row, curves, width, palette)]
        lines += self._problems(width, palette)
        name, groups = _groups(row, self._config("rollout.buffer_size"), self._config("rollout.num_generations"))
        if groups:
            lines += wrapped(Text(groups if width < NARROW else name + groups, style=palette["muted"]), width)
        for record in records_of(row.get("health")):
            tone = tone_of_level(record["level"])
            if tone != "muted":
                text = Text().append(f"{MARKS[tone]} ", style=palette[tone]).append(record["message"])
                lines += wrapped(text, width)
        return lines

    def _happened(self, width: int, palette: Palette) -> list[Text]:
        """The last events at the crosshair."""
        events, key = self._events()
        lines = []
        for event in events[-MOST_EVENTS:]:
            line = Text().append(f"{event.sign} ", style=palette["bad" if event.sign == CRASH else "key"])
            if event.at is not None and width >= NARROW:
                line.append(f"{clock(event.at)}  ", style=palette["muted"])
            line.append(event.text)
            if (ago := (self.shown["step"] if self.shown is not None else event.step) - event.step) > 0:
                line.append(f"  {counted(round(ago), 'step')} before", style=palette["muted"])
            lines.append(line)
        if len(events) > MOST_EVENTS:
            lines[0].append(f"  ({len(events) - MOST_EVENTS} more before)", style=palette["muted"])
        if key and lines:
            lines[-1].append(f"  {key} opens it", style=palette["muted"])
        return [part for line in lines for part in wrapped(line, width)]

    def _values(self, row: Mapping[str, Any], curves: Curves, width: int, palette: Palette) -> list[Text]:
        """The shown metrics in columns: the value, the median of the ten before, and the change."""
        before = self.shown.get("before", {}) if self.shown is not None else {}
        cells, is_narrow = [], width < NARROW
        for name in curves.metrics:
            value, level = to_float(row.get(name)), to_float(before.get(name))
            if value is None:
                continue
            now = metric_text(name, value)
            short = shortened(one_line(name), SHORT_NAME if is_narrow else NAME)
            cell = Text(no_wrap=True).append(f"{short} ", style=palette["muted"]).append(now, style="bold")
            if level is not None and (was := metric_text(name, level)) != now:
                cell.append("" if is_narrow else f" was {was}")
                if change := change_of(name, level, value):
                    has_moved = is_large(curves.curves.get(name), value - level)
                    cell.append(f" ({change})", style=palette["warn"] if has_moved else "")
            cells.append(cell)
        return in_columns(cells, width)

    def _problems(self, width: int, palette: Palette) -> list[Text]:
        """One line: the problems whose reward changed most since they were sampled before, as many as fit."""
        reply = self.problems
        if reply is None or self.shown is None or reply["step"] != self.shown["step"] or not reply["repeated"]:
            return []
        line = Text("problems sampled before: ", style=palette["muted"], no_wrap=True)
        for number, problem in enumerate(reply["repeated"]):
            if UNREADABLE in problem:
                continue
            name = shortened(one_line(problem["prompt"]), PROMPT) or f"problem {problem['problem']:.0f}"
            part = Text(" · " if number else "").append(name).append(" ")
            part.append(
                f"{metric_text('reward', problem['before'])} → {metric_text('reward', problem['now'])}", style="bold"
            )
            part.append(f" since step {problem['before_step']:,.0f}", style=palette["muted"])
            if number and line.cell_len + part.cell_len > width:
                break
            line.append_text(part)
        return [line]


def change_of(name: str, before: float, now: float) -> str:
    """A change in words: ``-1.840``, ``+0.020``; of a value that grew to three times or more, ``×14``; "" of none."""
    if not (math.isfinite(before) and math.isfinite(now)) or before == now:
        return ""
    if before > 0 and now / before >= GROWN:
        return f"×{compact_number(round(now / before, 1), 6)}"
    return signed(now - before, partial(metric_text, name))


def is_large(curve: Curve | None, change: float) -> bool:
    """Whether a change is a large part of what a curve shows."""
    if curve is None or not curve.marks:
        return False
    spread = max(mark.high for mark in curve.marks) - min(mark.low for mark in curve.marks)
    return spread > 0 and abs(change) >= MOVED * spread


def _groups(row: Mapping[str, Any], prompts: object, samples: object) -> tuple[str, str]:
    """What the groups of the step are, and their outcomes: counts where the configuration says how many there are."""
    groups = prompts if isinstance(prompts, int) else 0
    completions = groups * samples if isinstance(samples, int) else 0
    parts = []
    for key, words, total in (
        ("groups/all_correct", "all correct", groups),
        ("groups/all_wrong", "all wrong", groups),
        ("frac_reward_zero_std", "without signal", groups),
        ("completions/clipped_ratio", "truncated" if completions else "of the completions truncated", completions),
    ):
        share = to_float(row.get(key))
        if share is not None and math.isfinite(share) and (share or total != completions):
            parts.append(f"{share * total:.0f} {words}" if total else f"{percent(share, '')} {words}")
    if (ratio := to_float(row.get("mismatch/ratio_max"))) is not None and metric_value(ratio) != "1.000":
        parts.append(f"largest ratio {metric_value(ratio)}")
    return f"{groups} groups × {samples}: " if completions else "groups: ", ", ".join(parts)
