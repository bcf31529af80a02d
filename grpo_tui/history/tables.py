"""A table on stdout: aligned columns, cut to a terminal's width; whole where stdout is not a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a header and rows, numbers to the right."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    right = [all(is_number(row[index]) for row in rows) for index in range(len(columns))]
    widths = [max(len(line[index]) for line in [columns, *rows]) for index in range(len(columns))]
    for line in [columns, *rows]:
        cells = (
            cell.rjust(size) if is_right else cell.ljust(size)
            for cell, size, is_right in zip(line, widths, right, strict=True)
        )
        text = "  ".join(cells).rstrip()
        print(text[: width - 1] + "…" if width and len(text) > width else text)


def is_number(text: str) -> bool:
    """Whether a cell is a number, or empty: a column of them is aligned to the right."""
    return not text or (text.lstrip("$+-.")[:1].isdigit() and text[4:5] != "-")
