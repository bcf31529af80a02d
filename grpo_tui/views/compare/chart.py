"""A chart of one metric of several runs: a line with a color, a pattern and a letter per run, the values below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.content import Content

from grpo_train.run_dir.display import duration, metric_text, signed, state_label
from grpo_tui.box.asking import asking_words, seconds_waited
from grpo_tui.box.charts import RUN_LOOKS, SOLID, Gap, RunLook
from grpo_tui.box.curves import Curve, Curves, Mark
from grpo_tui.box.formatting import compact_number
from grpo_tui.box.store import Store
from grpo_tui.kit.chart import CurveChart
from grpo_tui.kit.panel import link_age, toned
from grpo_tui.kit.plot import RunLine, cost_text
from grpo_tui.views.compare.model import Compared, Comparison

ROUNDING = 1e-9
"""Relative difference that comes from the order of sums."""


class CompareChart(CurveChart):
    """One metric of the compared runs."""

    DEFAULT_CSS = "".join(f"CompareChart > .chart--{look.id} {{ color: $run-{look.id}; }}\n" for look in RUN_LOOKS)
    COMPONENT_CLASSES: ClassVar = {f"chart--{look.id}" for look in RUN_LOOKS}
    AXIS_FROM = 3
    HAS_RANGE = False

    def __init__(self, store: Store, comparison: Comparison, *, id: str) -> None:
        super().__init__(store, lambda: None, id=id)
        self.comparison = comparison

    # what is drawn -------------------------------------------------------------------------------------

    def _drawn(self) -> list[Compared]:
        """The runs that have a curve on the axis that is shown."""
        return [
            run
            for run in self.comparison.runs
            if run.curves.axis == self.comparison.x and self.metric in run.curves.curves
        ]

    def drawn_curves(self) -> list[Curve]:
        return [run.curves.curves[self.metric] for run in self._drawn()]

    def state(self) -> object:
        return (self.comparison.version, self.comparison.mean_over, self.store.versions["runs"], super().state())

    def lines(self) -> tuple[list[RunLine], list[Gap]]:
        """The pinned run on top, then the current one."""
        top = [self.comparison.current, self.comparison.pinned]
        runs = sorted(self._drawn(), key=lambda run: top.index(run.name) if run.name in top else -1)
        return [line_of(run, self.metric, self.comparison.mean_over) for run in runs], []

    @property
    def ends(self) -> tuple[float, float] | None:
        return self.comparison.ends

    @property
    def axis(self) -> str:
        return self.comparison.axis

    def line_style(self, look: RunLook | None, run: str) -> Style:
        style = self.rich_style + self.get_component_rich_style(f"chart--{look.id if look is not None else 'line'}")
        return style + Style(bold=True) if run == self.comparison.current else style

    # title ---------------------------------------------------------------------------------------------

    def newest(self) -> Content:
        return Content()

    def age(self) -> Content:
        if self.store.connected:
            return Content.from_markup("[$text-muted]means[/]" if self.comparison.mean_over else "")
        return toned(link_age(self.store))

    def _note(self, curves: Curves | None) -> Content | None:
        """What is missing in the picture, with the letters of the runs; None if nothing is."""
        failed = [run for run in self.comparison.runs if run.curves.asking.problem]
        if failed:
            return Content.from_markup(
                "[$warning]$letters: $problem[/]", letters=letters(failed), problem=failed[0].curves.asking.problem
            )
        coarse = [run for run in self.comparison.runs if run.curves.curves and run.curves.is_coarse]
        if coarse:
            share = min(run.curves.progress for run in coarse)
            return Content.from_markup(
                "[$warning]coarse, $share %$seconds ($letters)[/]",
                share=f"{100 * share:.0f}", seconds=seconds_waited(_waited(coarse)), letters=letters(coarse),
            )  # fmt: skip
        missing = [run for run in self.comparison.runs if run.curves.axis != self.comparison.x]
        if missing and self.store.connected:
            return Content.from_markup("[$text-muted]$text[/]", text=asking_words(_waited(missing)))
        return None

    # values --------------------------------------------------------------------------------------------

    def values(self, width: int, height: int) -> list[Text]:
        has_room = height >= (6 if self.crosshair is None else 4)
        return self._values(width, height // 4) if has_room and self.drawn_curves() else []

    def _values(self, width: int, most: int) -> list[Text]:
        """The values at the crosshair, or the last ones, and their differences to the pinned run's, at the same place:
        without a crosshair, at the end of the shorter run."""
        muted = self.get_component_rich_style("chart--axis", partial=True)
        pin = self.comparison.pin
        at = "last" if self.crosshair is None else f"at {self._place(self.crosshair)}"
        parts = [Text(at, style=muted)]
        for run in self.comparison.runs:
            value = self._value(run)
            part = Text.assemble(
                (run.letter, self.line_style(run.look, run.name)), f" {metric_text(self.metric, value)}"
            )
            if value is None:
                part.append(self._why_none(run), style=muted)
            elif pin is not None and run is not pin:
                part.append(self._difference(run, pin), style=muted)
            parts.append(part)
        lines = [Text(no_wrap=True)]
        for index, part in enumerate(parts):
            if lines[-1] and lines[-1].cell_len + 3 + part.cell_len > width:
                if len(lines) == most:
                    more = Text(f"  … {len(parts) - index} more", style=muted)
                    lines[-1].truncate(width - more.cell_len)
                    lines[-1].append_text(more)
                    break
                lines.append(Text(no_wrap=True))
            lines[-1].append("   " if lines[-1] else "").append_text(part)
        return lines

    def values_text(self) -> str:
        """The values below the chart, all of them."""
        return "\n".join(line.plain for line in self._values(10_000, 1))

    def _difference(self, run: Compared, pin: Compared) -> str:
        """`` (-0.110)``; `` (-0.110 at 13)`` where one of the runs has no later value; "" if that is not known."""
        ends = [
            one.curves.last - one.curves.origin
            for one in (run, pin)
            if one.curves.axis == self.comparison.x and one.curves.last is not None
        ]
        if len(ends) < 2:
            return ""
        at = min(ends) if self.crosshair is None and ends[0] != ends[1] else self.crosshair
        value, pinned = self._value(run, at), self._value(pin, at)
        if value is None or pinned is None or not math.isfinite(value - pinned):
            return ""
        where = f" at {self._place(at)}" if at is not None and self.crosshair is None else ""
        is_same = abs(value - pinned) <= ROUNDING * abs(pinned)
        text = "=" if is_same else signed(value - pinned, partial(metric_text, self.metric))
        return f" ({text}{where})"

    def _value(self, run: Compared, at: float | None = None) -> float | None:
        """The value of a run at a place or the crosshair as its line shows it, or the last one."""
        at = self.crosshair if at is None else at
        curves = run.curves
        curve = curves.curves.get(self.metric) if curves.axis == self.comparison.x else None
        if curve is None or not curve.marks or curves.first is None or curves.last is None:
            return None
        if at is None:
            return curve.last
        x = at + curves.origin
        half = (curves.last - curves.first) / max(1, curves.width) / 2
        if not curves.first - half <= x <= curves.last + half:
            return None
        shown = curve.at(x, self.comparison.mean_over)
        return None if shown is None else shown.last

    def _place(self, x: float) -> str:
        return place_label(x, self.comparison.x, self.store.price_per_hour)

    def _why_none(self, run: Compared) -> str:
        last, axis = run.curves.last, self.comparison.x
        if self.crosshair is None or last is None or run.curves.axis != axis:
            return ""
        last -= run.curves.origin
        if self.crosshair <= last:
            return ""
        return f" ({'ended at' if run.is_over else 'now at'} {self._place(last)})"

    def _why_empty(self) -> str:
        runs = self.comparison.runs
        if failed := [run for run in runs if run.curves.asking.problem]:
            return failed[0].curves.asking.instead()
        if missing := [run for run in runs if run.curves.axis != self.comparison.x]:
            return asking_words(_waited(missing)) if self.store.connected else ""
        return "not logged"


def line_of(run: Compared, metric: str, over: int) -> RunLine:
    """The line of a run: its values, or the mean of ``over`` of them. It has no marks of a metric that is not
    logged."""
    curves, row = run.curves, run.row
    curve = curves.curves.get(metric)
    marks: Sequence[Mark] = [] if curve is None else curve.means(over) if over else curve.marks
    if curves.origin:
        marks = [mark._replace(x=mark.x - curves.origin) for mark in marks]
    sign = state_label(row.state)[0] if row is not None and row.state in ("crashed", "killed", "lost") else ""
    end = f"{run.letter} {sign}" if sign else run.letter
    return RunLine(marks, look=run.look, name=run.name, end=end, is_patterned=bool(over))


def letters(runs: list[Compared]) -> str:
    """``A B``"""
    return " ".join(run.letter for run in runs)


def _waited(runs: list[Compared]) -> float:
    """Seconds since the first unanswered request."""
    return max(run.curves.asking.waited for run in runs)


def place_label(x: float, axis: str, price: float | None) -> str:
    """A place on the x axis in words. ``price``: dollars per hour."""
    if axis == "seconds":
        return cost_text(x, price)
    if axis == "time":
        return duration(x)
    return f"{compact_number(x)} tokens" if axis == "tokens" else f"{x:,.0f}"


def legend(run: Compared, name: str, is_pinned: bool, is_current: bool, is_patterned: bool) -> Content:
    """``A lr 2e-6 ━━``"""
    look = run.look
    tone = "bold " if is_pinned else ""
    text = Content.from_markup(
        f"[{tone}$run-{look.id}]$letter[/] $name [$run-{look.id}]$line[/]",
        letter=look.letter, name=name, line=2 * (look.line if is_patterned else SOLID),
    )  # fmt: skip
    if is_pinned:
        text += Content.from_markup(" [$text-muted]pinned[/]")
    return text.stylize("reverse", 0, 1) if is_current else text
