"""A page as one HTML file: style, script and pictures inside, nothing loaded from elsewhere.

Two walls hold what a run wrote: every text is escaped, and the page's content security policy admits only its own style
and script, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_train.report.blocks import (
    Block,
    ChartBlock,
    ChartsBlock,
    CompletionBlock,
    FactsBlock,
    FoldedBlock,
    Name,
    NoteBlock,
    Page,
    PointsBlock,
    SectionBlock,
    TableBlock,
)
from grpo_train.report.curves import Curve
from grpo_train.report.svg import chart_svg, is_logarithmic, points_svg, x_places
from grpo_train.report.text import escape, number_text, script_json

HERE = Path(__file__).parent


def to_html(page: Page) -> str:
    """A page as one document."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    writer = _PageWriter()
    body = "".join(part for block in page.blocks for part in writer.block(block))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy += "; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(page.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(page.title)}</h1><p>{escape(page.subtitle)}</p></header>\n<main>\n{body}</main>\n"
        f"<footer>{escape(page.footer)}</footer>\n"
        f'<script type="application/json" id="charts">{script_json(writer.data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _PageWriter:
    """Writes blocks, and collects the numbers of the charts for the script."""

    def __init__(self) -> None:
        self._columns: list[list[list[float]]] = []
        self._known: dict[str, int] = {}
        self._charts: list[list[dict[str, Any]]] = []

    @property
    def data(self) -> dict[str, Any]:
        """``columns``: [[first step, last step, x], …] of each; ``charts``: their series, which name columns."""
        return {"columns": self._columns, "charts": self._charts}

    def block(self, block: Block) -> Iterator[str]:
        """The HTML of a block."""
        if isinstance(block, NoteBlock):
            yield f'<p class="note {escape(block.level)}">{_mark(block.level)}{escape(block.text)}</p>\n'
        elif isinstance(block, FactsBlock):
            rows = "".join(
                f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in block.rows
            )
            yield f'<dl class="facts">{rows}</dl>\n'
        elif isinstance(block, TableBlock):
            yield _table(block)
        elif isinstance(block, ChartsBlock):
            if not self._charts:
                yield '<p class="note">Point at a chart, or focus it and press ← →, for the values at a step.</p>\n'
            yield f'<div class="charts">{"".join(map(self._figure, block.charts))}</div>\n'
        elif isinstance(block, PointsBlock):
            figure = f"<figure><figcaption><b>{escape(block.name)}</b></figcaption>{points_svg(block)}</figure>"
            yield f'<div class="charts">{figure}</div>\n'
        elif isinstance(block, CompletionBlock):
            yield (
                f'<article><p><b>{escape(block.why)}</b> <span class="facts">{escape(block.facts)}</span></p>'
                + (f'<pre class="prompt">{escape(block.prompt)}</pre>' if block.prompt else "")
                + f"<pre>{escape(block.text)}</pre></article>\n"
            )
        elif isinstance(block, FoldedBlock):
            yield _folded(block.title, "".join(part for inner in block.blocks for part in self.block(inner)))
        elif isinstance(block, SectionBlock):
            yield f"<section><h{block.level}>{escape(block.title)}</h{block.level}>\n"
            for inner in block.blocks:
                yield from self.block(inner)
            yield "</section>\n"

    def _figure(self, chart: ChartBlock) -> str:
        self._charts.append([self._series(chart, letter, curve) for letter, curve in chart.curves if len(curve.mean)])
        notes = ["log"] if is_logarithmic(chart.name, chart.curves) else []
        gaps = sum(len(curve.gaps) for _, curve in chart.curves)
        if gaps:
            notes.append(f"{gaps:,} not finite")
        last = "  ".join(f"{letter}\u00a0{number_text(c.final)}".strip() for letter, c in chart.curves if len(c.mean))
        return (
            f'<figure tabindex="0" data-chart="{len(self._charts) - 1}">'
            f"<figcaption><b>{escape(chart.name)}</b> <output>{escape(last)}</output>"
            f"<small>{escape(', '.join(notes))}</small></figcaption>{chart_svg(chart)}</figure>"
        )

    def _series(self, chart: ChartBlock, letter: str, curve: Curve) -> dict[str, Any]:
        steps = zip(curve.first.tolist(), curve.last.tolist(), x_places(chart, curve.x), strict=True)
        columns = [[int(first), int(last), x] for first, last, x in steps]
        key = script_json(columns)
        if key not in self._known:
            self._known[key] = len(self._columns)
            self._columns.append(columns)
        found: dict[str, Any] = {"letter": letter, "columns": self._known[key], "mean": _numbers(curve.mean)}
        if not letter and any(first != last for first, last, _ in columns):
            found |= {"low": _numbers(curve.low), "high": _numbers(curve.high)}
        return found


def _numbers(values: Any) -> list[float]:
    return [int(short) if (short := float(f"{value:.4g}")) == int(short) else short for value in values.tolist()]


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{inner}</details>\n"


def _mark(level: str) -> str:
    return "▲ " if level else ""


def _table(table: TableBlock) -> str:
    def cell(tag: str, column: int, text: str) -> str:
        names = [*(["number"] if column in table.numeric else []), *(["name"] if isinstance(text, Name) else [])]
        classes = f' class="{" ".join(names)}"' if names else ""
        return f"<{tag}{classes}>{escape(text)}</{tag}>"

    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(cell(tag, column, text) for column, text in enumerate(cells))}</tr>"

    body = "".join(row("td", cells) for cells in table.rows)
    kind = ' class="prose"' if table.prose else ""
    return (
        f'<div class="table"><table{kind}><thead>{row("th", table.head)}</thead><tbody>{body}</tbody></table></div>\n'
    )
