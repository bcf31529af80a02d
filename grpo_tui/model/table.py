"""Which columns of a table fit: what does not fit leaves as a whole column, the least telling first. No Textual."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GAP = 2
"""Cells between two columns."""


@dataclass(frozen=True)
class Sized:
    """A column and the cells that its content needs."""

    id: str
    width: int
    rank: int
    """The higher, the sooner it leaves."""


def fit(columns: Iterable[Sized], room: int, least: int, wanted: int, firm: int = 0) -> list[Sized]:
    """The columns that fit beside a first column, in their order.

    The first column gets ``least`` cells beside columns up to the rank ``firm``, and ``wanted`` beside the others.
    """
    columns = list(columns)
    kept: set[str] = set()
    used = 0
    for column in sorted(columns, key=lambda column: column.rank):
        beside = least if column.rank <= firm else wanted
        if beside + used + GAP + column.width > room:
            break
        used += GAP + column.width
        kept.add(column.id)
    return [column for column in columns if column.id in kept]
