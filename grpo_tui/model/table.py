"""Which columns of a table fit: what does not fit leaves as a whole column, the least telling first. No Textual."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grpo_tui.model.formatting import padded, shortened

GAP = 2
"""Cells between two columns."""


@dataclass(frozen=True)
class Sized:
    """A column and the cells that its content needs."""

    id: str
    width: int
    """0: as many as each text has, without padding, in the last column."""
    rank: int = 0
    """The higher, the sooner it leaves."""
    title: str = ""
    is_left: bool = False
    """Whether its texts are aligned to the left."""
    gap: int = GAP
    """Cells before it, unless it is the first one."""

    def fitted(self, text: str) -> str:
        """A text cut and padded to the width of the column."""
        if not self.width:
            return text
        return padded(shortened(text, self.width), self.width, is_left=self.is_left)


def fit(first: Sized, others: Iterable[Sized], room: int, least: int, wanted: int, firm: int = 0) -> list[Sized]:
    """The first column, and those of the others that fit beside it, in their order.

    The first one gets ``least`` cells beside columns up to the rank ``firm``, and ``wanted`` beside the others; then
    what they leave of ``room``, up to its width.
    """
    others = list(others)
    kept: set[str] = set()
    used = 0
    for column in sorted(others, key=lambda column: column.rank):
        beside = least if column.rank <= firm else wanted
        if beside + used + column.gap + column.width > room:
            break
        used += column.gap + column.width
        kept.add(column.id)
    width = max(1, min(room - used, first.width))
    return [
        Sized(first.id, width, first.rank, first.title, first.is_left),
        *(column for column in others if column.id in kept),
    ]
