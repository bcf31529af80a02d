"""The parts of a report's page, for HTML and Markdown alike. Texts are raw: whoever writes a page escapes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_train.report.curves import Curve
from grpo_train.report.report import Event


class Name(str):
    """A name or value of a run: set in a fixed-width font."""


@dataclass(frozen=True)
class NoteBlock:
    """A sentence; ``level`` is alarm, warning or ""."""

    text: str
    level: str = ""


@dataclass(frozen=True)
class FactsBlock:
    """Labels and values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class TableBlock:
    """Rows of cells; ``numeric``: columns of numbers; ``prose``: the last column holds sentences."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    prose: bool = False


@dataclass(frozen=True)
class ChartBlock:
    """A metric over steps: a curve for each run that has it."""

    name: str
    curves: Sequence[tuple[str, Curve]]
    """With the letter of the run; "" for one run alone."""
    first: int
    last: int
    events: Sequence[Event] = ()


@dataclass(frozen=True)
class ChartsBlock:
    """Some charts side by side."""

    charts: Sequence[ChartBlock]


@dataclass(frozen=True)
class Point:
    """An estimate with its 95 % interval."""

    step: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PointsBlock:
    """Estimates over steps; each series with its run's letter."""

    name: str
    series: Sequence[tuple[str, Sequence[Point]]]
    first: int
    last: int


@dataclass(frozen=True)
class CompletionBlock:
    """A completion with what is known of it."""

    why: str
    facts: str
    prompt: str
    text: str


@dataclass(frozen=True)
class SectionBlock:
    """A heading and what is under it."""

    title: str
    blocks: list[Block] = field(default_factory=list)
    level: int = 2


@dataclass(frozen=True)
class FoldedBlock:
    """What is shown on demand."""

    title: str
    blocks: list[Block] = field(default_factory=list)


Block = NoteBlock | FactsBlock | TableBlock | ChartsBlock | PointsBlock | CompletionBlock | SectionBlock | FoldedBlock


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    """State words of a run; how many runs are compared."""
    blocks: list[Block]
    footer: str
