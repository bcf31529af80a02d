"""The charts of several runs as one SVG file, with a legend. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo_tui.chart_svg import WIDTH, axes, end_of_line, escape, line, page, scaled
from grpo_tui.charts import DASHED, DOTTED, RunLook
from grpo_tui.model.curves import Mark
from grpo_tui.widgets.chart_axis import view_of

DASHES = {DASHED: "7 3", DOTTED: "2 3"}
NAMES = 40
"""Characters of a name in the legend."""


@dataclass(frozen=True)
class RunDrawing:
    """One run to draw."""

    look: RunLook
    name: str
    curves: Mapping[str, Sequence[Mark]]
    """Metric to marks, from the run's own origin on."""
    is_smoothed: bool


def compared_svg(
    title: str,
    metrics: Sequence[str],
    runs: Sequence[RunDrawing],
    logarithmic: set[str],
    ends: tuple[float, float],
    label: Callable[[float], str],
) -> str:
    """A chart per metric with a line per run; each line has a color, a pattern, and its letter at its end."""
    charts = [list(_chart(metric, runs, metric in logarithmic, ends, label)) for metric in metrics]
    return page(title, charts, [_legend(run) for run in runs])


def _chart(
    metric: str, runs: Sequence[RunDrawing], is_log: bool, ends: tuple[float, float], label: Callable[[float], str]
) -> list[str]:
    marks = [(run, scaled(run.curves.get(metric, ()), ends, is_log)) for run in runs]
    view = view_of(metric, [mark for _, found in marks for mark in found], ends, is_log)
    parts = list(axes(metric, "", view, ends, is_log, label))
    for run, found in marks:
        if found:
            parts += line(found, view, run.is_smoothed, run.look.light, DASHES.get(run.look.line, ""))
    for run, found in marks:
        if found:
            x, y = end_of_line(found, view, run.is_smoothed)
            parts.append(
                f'<text x="{min(x + 3, WIDTH - 12):.1f}" y="{y + 4:.1f}" font-weight="bold" fill="{run.look.light}">'
                f"{run.look.letter}</text>"
            )
    return parts


def _legend(run: RunDrawing) -> str:
    """A line with letter, pattern and name."""
    dashes = DASHES.get(run.look.line, "")
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    name = run.name if len(run.name) <= NAMES else f"{run.name[: NAMES - 1]}…"
    return (
        f'<text y="4" font-weight="bold" fill="{run.look.light}">{run.look.letter}</text>'
        f'<path d="M14 0H44" stroke="{run.look.light}" stroke-width="1.6"{dashed}/>'
        f'<text x="52" y="4" fill="#1d2733">{escape(name)}</text>'
    )
