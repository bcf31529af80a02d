"""Charts of the box view over time: a GPU each, and the processor with the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from textual.content import Content
from textual.strip import Strip

from grpo_tui.box.formatting import gibibytes, one_line, short_age
from grpo_tui.box.gpus import BoxHistory, GpuSample, advice, unlisted
from grpo_tui.box.store import Freshness, Store
from grpo_tui.kit.panel import Panel, toned
from grpo_tui.kit.plot import Bitmap, bars_in_blocks, x_labels
from grpo_tui.views.box.model import BoxView
from remote.protocol.rows import UNREADABLE

MARGIN = 4
"""Cells of ``100┤``."""
GAP_S = 60.0
"""Samples further apart are not joined, but for those of a window in which a column is longer."""
LOST = "░"
Points = Sequence[tuple[float, float]]


def bars(points: Points, low: float, high: float, columns: int, rows: int, top: float = 100.0) -> Bitmap:
    """Values from 0 to ``top`` as bars: the highest of each pixel column."""
    bitmap = Bitmap(max(1, columns), max(1, rows))
    highest: dict[int, float] = {}
    for at, value in points:
        x = min(bitmap.width - 1, int((at - low) / (high - low) * bitmap.width))
        highest[x] = max(highest.get(x, 0.0), value)
    known = sorted(highest)
    for x, following in zip(known, [*known[1:], *(last + 1 for last in known[-1:])], strict=True):
        is_joined = (following - x - 1) * (high - low) / bitmap.width <= GAP_S  # a value is anywhere in its column
        height = round(min(1.0, highest[x] / top) * (bitmap.height - 1))
        for column in range(x, following if is_joined else x + 1):
            for y in range(height + 1):
                bitmap.dot(column, bitmap.height - 1 - y)
    return bitmap


def time_axis(low: float, high: float, columns: int) -> str:
    """Times of day along an axis; dates where it has days."""
    line = [" "] * columns
    for start, text, _ in x_labels(low, high, columns, "time"):
        line[start : start + len(text)] = text
    return "".join(line)


class TimeChart(Panel):
    """Base of the charts over the window of the box view."""

    COMPONENT_CLASSES: ClassVar = {"box--bars", "box--axis", "box--lost", "box--muted"}

    def __init__(self, store: Store, view: Callable[[], BoxView], *, id: str, classes: str = "panel chart") -> None:
        super().__init__(store, id=id, classes=classes)
        self._view = view
        self._strips: list[Strip] = []

    @property
    def history(self) -> BoxHistory:
        return self._view().history

    def state(self) -> object:
        view = self._view()
        seen = (view.version, self.store.versions["gpu"], self.store.connected)
        return (int(self.store.now() / 2), seen, self.size, self.app.theme)

    def content_changed(self) -> None:
        self._strips = []
        self.refresh()

    def render_line(self, y: int) -> Strip:
        if not self._strips:
            self._strips = self.draw(*self.size)
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)

    def draw(self, width: int, height: int) -> list[Strip]:
        """All lines of the panel."""
        raise NotImplementedError

    def part(self, name: str) -> Any:
        return self.rich_style + self.get_component_rich_style(f"box--{name}")

    def plot(self, points: Points, width: int, rows: int, labels: tuple[str, str], top: float = 100.0) -> list[Strip]:
        """A plot with an axis on its left, ``rows`` high; a time without a link is a band."""
        low, high = self._view().ends(self.store)
        columns = max(1, width - MARGIN)
        bitmap = bars([point for point in points if low <= point[0] <= high], low, high, columns, rows, top)
        band = self._band(low, high, columns)
        strips = []
        for row in range(rows):
            label = labels[0] if row == 0 else labels[1] if row == rows - 1 else ""
            segments = [Segment(f"{label:>{MARGIN - 1}}" + ("┤" if label else "│"), self.part("axis"))]
            text = bitmap.text(row)
            for column, cell in enumerate(bars_in_blocks(text) if self.in_blocks else text):
                is_lost = cell == " " and column in band
                segments.append(Segment(LOST if is_lost else cell, self.part("lost" if is_lost else "bars")))
            strips.append(Strip(segments, width).simplify())
        return strips

    def _band(self, low: float, high: float, columns: int) -> set[int]:
        found: set[int] = set()
        for begin, end in self.history.lost_within(low, high, self.store.now()):
            first, last = (int((at - low) / (high - low) * columns) for at in (begin, end))
            found |= set(range(first, min(columns, last + 1)))
        return found

    def text(self, content: Content, width: int) -> Strip:
        """A line of text."""
        content = content.truncate(max(1, width), ellipsis=True)
        return Strip(content.render_segments(self.visual_style)).adjust_cell_length(width, self.rich_style)


class GpuChart(TimeChart):
    """Use, memory, power and temperature of one GPU, and whose processes it has."""

    index = 0

    @property
    def gpu(self) -> dict[str, Any] | None:
        found = [gpu for gpu in self.store.gpus or () if gpu.get("index") == self.index and UNREADABLE not in gpu]
        return found[0] if found else None

    def refresh_titles(self) -> None:
        gpu = self.gpu
        shown = self._view().shown
        value = gpu.get(shown.key) if gpu else None
        title = Content.from_markup("GPU $index · $what", index=str(self.index), what=f"{shown.name} {shown.unit}")
        if value is not None:
            title += Content.from_markup("  [bold $foreground]$value[/]", value=f"{value * shown.scale:.0f}")
        self.set_titles(title, toned(self.store.gpu_freshness()))

    def draw(self, width: int, height: int) -> list[Strip]:
        low, high = self._view().ends(self.store)
        samples = self.history.samples(self.index, low, high)
        below = self._below(samples)
        rows = max(1, height - 1 - len(below))
        shown = self._view().shown
        values = [(one.at, getattr(one, shown.field)) for one in samples]
        points = [(at, value * shown.scale) for at, value in values if value is not None]
        top = self._top(points)
        strips = self.plot(points, width, rows, (f"{top:.0f}", "0"), top)
        axis = " " * MARGIN + time_axis(low, high, max(1, width - MARGIN))
        strips.append(Strip([Segment(axis, self.part("axis"))]).adjust_cell_length(width, self.rich_style))
        return [*strips, *(self.text(line, width) for line in below)][:height]

    def _top(self, points: Points) -> float:
        """The highest value of the axis."""
        shown, gpu = self._view().shown, self.gpu or {}
        if shown.name == "memory" and gpu.get("memory_total_mib"):
            return float(gpu["memory_total_mib"]) * shown.scale
        highest = max((value for _, value in points), default=0.0)
        return max(100.0, 100.0 * math.ceil(highest / 100))

    def _below(self, samples: list[GpuSample]) -> list[Content]:
        gpu = self.gpu
        if gpu is None:
            return [Content.from_markup("[$text-muted]not sampled now[/]")]
        if problem := gpu.get("problem"):
            return [Content.from_markup("[$error]$problem[/]", problem=one_line(problem))]
        parts = []
        used, total = gpu.get("memory_used_mib"), gpu.get("memory_total_mib")
        if used is not None and total:
            highest = max((one.memory_mib or 0.0 for one in samples), default=0.0)
            most = f", at most {gibibytes(highest)}" if highest > 1.02 * used else ""
            parts.append(f"memory {gibibytes(used)}/{gibibytes(total)} GiB{most}")
        if (power := gpu.get("power_w")) is not None:
            parts.append(f"power {power:.0f} W")
        if (warmth := gpu.get("temperature_c")) is not None:
            parts.append(f"{warmth:.0f} °C")
        lines = [Content.from_markup("$facts", facts="   ".join(parts)), self._users(gpu)]
        if self._view().idle_for(self.index, self.store) and (told := advice(self.store, gpu, self.key)):
            lines.append(Content.from_markup("[$warning]→[/] $told", told=one_line(told)))
        return lines

    def _users(self, gpu: dict[str, Any]) -> Content:
        """Whose processes it has, with their ranks; without any, the run that used it last."""
        found = []
        for process in gpu.get("processes") or ():
            if (pid := process.get("pid")) is not None:
                rank = "" if process.get("rank") is None else f", rank {process['rank']:.0f}"
                name = process.get("run") or process.get("name") or "process"
                found.append(f"{name} (pid {pid:.0f}{rank})")
        if found:
            return Content.from_markup("[$text-muted]$runs[/]", runs=one_line(", ".join(found)))
        text = unlisted(gpu) or "no process"
        if (last := self.history.last_used.get(self.index)) is not None:
            text += f"; used by {last[0]} until {short_age(self.store.now() - last[1])} ago"
        return Content.from_markup("[$text-muted]$text[/]", text=one_line(text))


class MachinePanel(TimeChart):
    """Processor and memory."""

    def refresh_titles(self) -> None:
        facts = self._view().facts
        parts = []
        if facts and facts.get("cpu_percent") is not None:
            parts.append(f"CPU {facts['cpu_percent']:.0f} %")
        if facts and facts.get("memory_total_mib"):
            parts.append(
                f"memory {gibibytes(facts['memory_used_mib'] or 0)}/{gibibytes(facts['memory_total_mib'])} GiB"
            )
        scale = Content.from_markup("[$text-muted]0–100 %[/]  ")
        self.set_titles(Content(" · ".join(parts) or "CPU and memory"), scale + facts_age(self._view(), self.store))

    def draw(self, width: int, height: int) -> list[Strip]:
        if self._view().facts is None:
            return [self.text(facts_missing(self._view(), self.store), width)]
        half = max(1, height // 2)
        cpu = self.plot(list(self.history.cpu), width, half, ("cpu", ""))
        memory = self.plot(list(self.history.memory), width, max(1, height - half), ("mem", ""))
        return [*cpu, *memory][:height]


def facts_age(view: BoxView, store: Store) -> Content:
    """Age of the machine's facts."""
    asking = view.asked["facts"]
    if asking.problem or view.facts is None:
        return Content.from_markup("[$warning]$text[/]", text=asking.problem)
    age = store.now() - view.facts_at
    return toned(Freshness(f"{short_age(age)} ago", "live" if age < 10 else "warn"))


def facts_missing(view: BoxView, store: Store) -> Content:
    asking = view.asked["facts"]
    tone = "$warning" if asking.problem else "$text-muted"
    return Content.from_markup(f"[{tone}]$text[/]", text=asking.instead(store.connected))
