"""Output of the commands: errors, and tables that are aligned and colored on a terminal and plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

from grpo_train.run_dir.display import state_label

if TYPE_CHECKING:
    from rich.text import Text

TONES = {
    "live": "bold green", "busy": "yellow", "rest": "dim", "good": "green", "bad": "bold red", "warn": "yellow",
    "alarm": "bold red", "warning": "yellow", "info": "dim",
}  # fmt: skip
"""Style of each tone of a run state and of each level of a health record."""


def fail(message: object, code: int = 1) -> NoReturn:
    """Print an error and exit: 1 = failed, 2 = usage error."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def styled(text: str, tone: str) -> str | Text:
    """A table cell in the color of a tone; plain text when piped."""
    if not on_terminal():
        return text
    from rich.text import Text

    return Text(text, style=TONES.get(tone, ""))


def state_cell(state: str, host: str = "") -> str | Text:
    """A table cell with the glyph, word and color of a run state."""
    glyph, word, tone = state_label(state, host)
    return styled(f"{glyph} {word}", tone)


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, plain: Iterable[str] | None = None) -> None:
    """Print rows: a rich table on a terminal, otherwise the ``plain`` lines (default: columns padded with spaces).

    Columns of numbers are aligned to the right.
    """
    if not on_terminal():
        for line in padded(columns, rows) if plain is None else plain:
            print(line, flush=True)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(_is_numeric(str(row[index])) for row in rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console().print(shown)


def padded(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A header and rows as text, columns aligned with two spaces between them."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return [line.rstrip() for line in lines]


def _is_numeric(text: str) -> bool:
    return text in ("", "-", "–", "?") or text.replace("/", "", 1).lstrip("+-").replace(".", "", 1)[:1].isdigit()
