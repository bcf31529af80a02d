"""A page as one HTML file: style, script and pictures inside, nothing loaded from elsewhere.

Two walls hold what a run wrote: the template escapes every text, and the page's content security policy admits only its
own style and script, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grpo_train.report.blocks import ChartBlock, Name, Page
from grpo_train.report.curves import Curve
from grpo_train.report.svg import chart_svg, is_logarithmic, points_svg, x_places
from grpo_train.report.text import script_json, visible
from grpo_train.run_dir.display import metric_text

HERE = Path(__file__).parent


def to_html(page: Page) -> str:
    """A page as one document."""
    style, script = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    charts = _Charts()
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.jinja").render(
        page=page,
        style=style,
        script=script,
        hash=_hash,
        kind_of=lambda block: type(block).__name__,
        is_name=lambda text: isinstance(text, Name),
        figure_of=charts.figure,
        charts_so_far=lambda: len(charts.charts),
        points_of=lambda block: Markup(points_svg(block)),
        data=charts.data,
    )


def _shown(value: Any) -> Any:
    """A text without characters that act; the template escapes it."""
    return value if isinstance(value, Markup) else visible(str(value))


def _hash(text: str) -> Markup:
    return Markup("sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


class _Charts:
    """Draws charts, and collects what the script shows of them."""

    def __init__(self) -> None:
        self._columns: list[list[list[float]]] = []
        self._known: dict[str, int] = {}
        self.charts: list[list[dict[str, Any]]] = []

    def data(self) -> Markup:
        """``columns``: [[first step, last step, x], …] of each; ``charts``: their series, which name columns; a text
        for each column."""
        return Markup(script_json({"columns": self._columns, "charts": self.charts}))

    def figure(self, chart: ChartBlock) -> dict[str, Any]:
        """What the template shows of a chart."""
        self.charts.append([self._series(chart, letter, curve) for letter, curve in chart.curves if len(curve.mean)])
        notes = []
        if is_logarithmic(chart.name, chart.curves):
            some = any(len(curve.low) and curve.low.min() <= 0 for _, curve in chart.curves)
            notes.append("log, only values > 0" if some else "log")
        gaps = sum(len(curve.gaps) for _, curve in chart.curves)
        if gaps:
            notes.append(f"{gaps:,} not finite")
        last = "  ".join(
            f"{letter}\u00a0{metric_text(chart.name, c.final)}".strip() for letter, c in chart.curves if len(c.mean)
        )
        return {
            "number": len(self.charts) - 1,
            "last": last,
            "notes": ", ".join(notes),
            "drawing": Markup(chart_svg(chart)),
        }

    def _series(self, chart: ChartBlock, letter: str, curve: Curve) -> dict[str, Any]:
        steps = zip(curve.first.tolist(), curve.last.tolist(), x_places(chart, curve.x), strict=True)
        columns = [[int(first), int(last), x] for first, last, x in steps]
        key = script_json(columns)
        if key not in self._known:
            self._known[key] = len(self._columns)
            self._columns.append(columns)
        means, lows, highs = (
            [metric_text(chart.name, value) for value in values.tolist()]
            for values in (curve.mean, curve.low, curve.high)
        )
        spans = ["" if letter or low == high else f" ({low} to {high})" for low, high in zip(lows, highs, strict=True)]
        texts = [mean + span for mean, span in zip(means, spans, strict=True)]
        return {"letter": letter, "columns": self._known[key], "texts": texts}
