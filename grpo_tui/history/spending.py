"""``grpo-tui cost``: what runs, evaluations and idle boxes cost in a span of time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from grpo_train.history.cost import Prices
from grpo_train.history.database import Database
from grpo_train.history.record import RunRecord
from grpo_train.history.search import moment
from grpo_train.history.spans import Span, clipped, joined, remove_spans, seconds
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import utc_from
from grpo_tui.box.formatting import money, print_table


@dataclass(frozen=True)
class RunCost:
    """What a run cost. Dollars are None where its box has no price."""

    run: str
    box: str
    identity: str
    hours: float
    cost: float | None
    projected: float | None = None
    """At its last step, of a run that is live."""
    cost_per_step: float | None = None
    """This and the following are of the whole run, also before the span of time."""
    cost_per_1000: float | None = None
    cost_per_point: float | None = None
    cost_per_point_low: float | None = None
    cost_per_point_high: float | None = None


@dataclass(frozen=True)
class BoxCost:
    """What a box cost in a span of time, by what it did."""

    box: str
    hours: float
    """In which it is known to have been up."""
    runs: float | None
    evaluations: float | None
    """Outside of runs: those started by hand."""
    idle: float | None
    total: float | None
    day: str = ""


@dataclass
class _Busy:
    """The spans of time of one box."""

    runs: list[Span] = field(default_factory=list)
    evaluations: list[Span] = field(default_factory=list)
    up: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Spending:
    """What was spent in a span of time."""

    records: Sequence[RunRecord]
    prices: dict[str, Prices]
    busy: dict[str, _Busy]
    since: float
    until: float

    def by_run(self) -> list[RunCost]:
        """The runs that ran in it, the dearest first."""
        return sorted(filter(None, map(self._run, self.records)), key=lambda one: (-(one.cost or 0.0), one.run))

    def _run(self, record: RunRecord) -> RunCost | None:
        spans = [(box, *span) for box, start, end in record.ran for span in self._cut([(start, end)])]
        if not spans:
            return None
        priced = all(box in self.prices for box, _, _ in spans)
        low, high = (record.cost_per_point or (None, None, None))[1:]
        return RunCost(
            record.name,
            record.box,
            record.identity,
            sum(end - start for _, start, end in spans) / 3600,
            sum(self.prices[box].cost([(start, end)]) for box, start, end in spans) if priced else None,
            record.projected_cost,
            record.cost_per_step,
            record.cost_per_1000,
            (record.cost_per_point or (None,))[0],
            low,
            high if high is None or math.isfinite(high) else None,
        )

    def by_box(self) -> list[BoxCost]:
        """Every box that was up in it."""
        return [one for box in sorted(self.busy) if (one := self._box(box, self.since, self.until)).hours]

    def by_day(self) -> list[BoxCost]:
        """Every day and box, by this machine's midnight."""
        return [
            one
            for start, end in _days(self.since, self.until)
            for box in sorted(self.busy)
            if (one := self._box(box, start, end, time.strftime("%Y-%m-%d", time.localtime(start)))).hours
        ]

    def _box(self, box: str, low: float, high: float, day: str = "") -> BoxCost:
        busy, price = self.busy[box], self.prices.get(box)
        runs = joined(clipped(busy.runs, low, high))
        evaluations = remove_spans(clipped(busy.evaluations, low, high), runs)
        working = joined([*runs, *evaluations])
        up = joined([*clipped(busy.up, low, high), *working])
        idle = remove_spans(up, working)

        def dollars(spans: Sequence[Span]) -> float | None:
            return None if price is None else price.cost(spans)

        return BoxCost(
            box, seconds(up) / 3600, dollars(runs), dollars(evaluations), dollars(idle), dollars(up), day
        )  # fmt: skip

    def _cut(self, spans: Sequence[Span]) -> list[Span]:
        return clipped(spans, self.since, self.until)


def spending(database: Database, since: float | None = None, until: float | None = None) -> Spending:
    """What was spent between two times; None = since the first run, and until now. Raises HistoryError."""
    until = time.time() if until is None else until
    records, busy = database.records(), {box: _Busy(up=spans) for box, spans in database.ups().items()}
    for record in records:
        for box, start, end in record.ran:
            busy.setdefault(box, _Busy()).runs.append((start, end))
    for box, _, _, start, end in database.evaluated():
        busy.setdefault(box, _Busy()).evaluations.append((start, end))
    first = min((span[0] for one in busy.values() for span in (*one.runs, *one.evaluations, *one.up)), default=until)
    return Spending(records, database.prices(), busy, first if since is None else since, until)


def print_costs(database: Database, since: str, by: str, as_json: bool) -> int:
    """The command; returns its exit code. Raises UserError."""
    now = time.time()
    start = moment(since, now) if since else None
    if since and start is None:
        raise UserError(f"--since {since}: expected a time span such as 7d or 12h, or a date", code="bad_query")
    spent = spending(database, start, now)
    boxes = spent.by_box()
    rows: Sequence[RunCost | BoxCost] = spent.by_run() if by == "run" else boxes if by == "box" else spent.by_day()
    total = _sum(boxes, lambda one: one.total)
    unpriced = unpriced_in(boxes)
    if as_json:
        found = {"since": utc_from(spent.since), "by": by, "rows": [asdict(row) for row in rows], "total": total}
        print(json.dumps({**found, "without_price": unpriced}, indent=1))
        return 0
    if not rows:
        print("nothing ran" + (f" since {since}" if since else "; read the boxes with  grpo-tui history rebuild"))
        return 0
    if by == "run":
        print_table(*run_rows(spent.by_run()))
        print(f"\n{sums_of(spent)}")
    else:
        print_table(*box_rows(boxes if by == "box" else spent.by_day(), with_day=by == "day"))
        print(f"\ntotal {money(total) or 'not known'}")
    if unpriced:
        print(f"without a price in boxes.yaml, so not in these sums: {', '.join(unpriced)}")
    return 0


def run_rows(rows: Sequence[RunCost]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and cells of a table of runs."""
    cells = [
        [
            row.run, row.box, f"{row.hours:.2f}", money(row.cost), money(row.projected),
            money(row.cost_per_step), money(row.cost_per_1000), _interval(row),
        ]
        for row in rows
    ]  # fmt: skip
    return ("run", "box", "hours", "cost", "projected", "per step", "per 1,000", "per point [95 %]"), cells


def box_rows(rows: Sequence[BoxCost], *, with_day: bool) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and cells of a table of boxes, or of days."""
    cells = [
        [
            *([row.day] if with_day else []), row.box, f"{row.hours:.2f}", money(row.runs), money(row.evaluations),
            money(row.idle), money(row.total),
        ]
        for row in rows
    ]  # fmt: skip
    return (*(["day"] if with_day else []), "box", "hours up", "runs", "evaluations", "idle", "total"), cells


def sums_of(spent: Spending) -> str:
    """What everything cost, with idle time apart."""
    boxes = spent.by_box()
    evaluations = _sum(boxes, lambda one: one.evaluations)
    if evaluations is None:
        return "total not known"
    return (
        f"total {money(_sum(boxes, lambda one: one.total))} · runs {money(_sum(boxes, lambda one: one.runs))} · "
        f"idle {money(_sum(boxes, lambda one: one.idle))} · evaluations started by hand {money(evaluations)}"
    )


def unpriced_in(boxes: Sequence[BoxCost]) -> list[str]:
    """Boxes whose cost is not known."""
    return sorted({one.box for one in boxes if one.total is None})


def _sum(rows: Sequence[BoxCost], value: Callable[[BoxCost], float | None]) -> float | None:
    """The sum of what is known; None if nothing is."""
    known = [found for row in rows if (found := value(row)) is not None]
    return sum(known) if known or not rows else None


def _interval(row: RunCost) -> str:
    if row.cost_per_point is None or row.cost_per_point_low is None:
        return ""
    high = "∞" if row.cost_per_point_high is None else money(row.cost_per_point_high)
    return f"{money(row.cost_per_point)} [{money(row.cost_per_point_low)}, {high}]"


def _days(low: float, high: float) -> Iterator[Span]:
    """The local days of a span of time, each cut to it."""
    day = datetime.fromtimestamp(low).replace(hour=0, minute=0, second=0, microsecond=0)
    while day.timestamp() < high:
        following = day + timedelta(days=1)
        yield max(low, day.timestamp()), min(high, following.timestamp())
        day = following
