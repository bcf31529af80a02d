"""A page as Markdown, with GitHub's tables. A curve is one line of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo_train.report.blocks import (
    Block,
    ChartsBlock,
    CompletionBlock,
    FactsBlock,
    FoldedBlock,
    Name,
    NoteBlock,
    Page,
    SectionBlock,
    TableBlock,
)
from grpo_train.report.curves import trend
from grpo_train.report.text import code, code_block, plain_markdown
from grpo_train.run_dir.display import metric_text


def to_markdown(page: Page) -> str:
    """A page as one document."""
    lines = [f"# {plain_markdown(page.title)}", "", plain_markdown(page.subtitle), ""]
    for block in page.blocks:
        lines += _lines(block)
    return "\n".join([*lines, plain_markdown(page.footer)]) + "\n"


def _lines(block: Block) -> Iterator[str]:
    if isinstance(block, NoteBlock):
        mark = "▲ " if block.level else ""
        yield from (f"{mark}{plain_markdown(block.text)}", "")
    elif isinstance(block, FactsBlock):
        yield from _table(["", ""], [[label, Name(value)] for label, value in block.rows])
    elif isinstance(block, TableBlock):
        yield from _table(block.head, block.rows, block.numeric)
    elif isinstance(block, ChartsBlock):
        yield from _charts(block)
    elif isinstance(block, CompletionBlock):
        yield from (f"**{plain_markdown(block.why)}**: {plain_markdown(block.facts)}", "")
        for text in filter(None, (block.prompt, block.text)):
            yield from (code_block(text), "")
    elif isinstance(block, (SectionBlock, FoldedBlock)):
        level = block.level if isinstance(block, SectionBlock) else 3
        yield from (f"{'#' * level} {plain_markdown(block.title)}", "")
        for inner in block.blocks:
            yield from _lines(inner)


def _charts(block: ChartsBlock) -> Iterator[str]:
    lettered = any(letter for chart in block.charts for letter, _ in chart.curves)
    rows = []
    for chart in block.charts:
        for letter, curve in chart.curves:
            if len(curve.mean):
                numbers = (curve.final, float(curve.low.min()), float(curve.high.max()))
                texts = [metric_text(chart.name, number) for number in numbers]
                rows.append([*([letter] if lettered else []), Name(chart.name), trend(curve), *texts])
    head = [*(["run"] if lettered else []), "metric", "trend", "last", "lowest", "highest"]
    yield from _table(head, rows, frozenset(range(len(head) - 4, len(head))))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: frozenset[int] = frozenset()) -> Iterator[str]:
    if not rows:
        return
    yield _row([plain_markdown(cell) for cell in head])
    yield _row(["---:" if column in numeric else "---" for column in range(len(head))])
    for row in rows:
        yield _row([code(cell) if isinstance(cell, Name) else plain_markdown(cell) for cell in row])
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
