"""All metrics of a run at a glance, and which of them have been unusual lately."""

from __future__ import annotations

from array import array
from statistics import median
from typing import Any

from remote.index.lines import shown
from remote.index.snapshot import Snapshot
from remote.index.train_log import STEP, finite_of

RECENT = 20
SAMPLE = 2_000
"""Values of the run that the recent ones are compared with, evenly spaced."""
MOST = 1e6


def metrics(snapshot: Snapshot) -> dict[str, Any]:
    """The reply to a ``metrics`` request, without what all replies have."""
    steps = snapshot.column(STEP)
    rows = []
    for name in snapshot.names:
        stats = snapshot.stats(name)
        if stats.last_row < 0:
            continue
        values = snapshot.column(name)
        found = stats.count > 0
        rows.append(
            {
                "name": name,
                "last": shown(values[stats.last_row]),
                "last_step": steps[stats.last_row],
                "count": stats.count,
                "gaps": stats.gaps,
                "min": stats.min if found else None,
                "min_step": steps[stats.min_row] if found else None,
                "max": stats.max if found else None,
                "max_step": steps[stats.max_row] if found else None,
                "constant": found and stats.min == stats.max and not stats.gaps,
                "unusual": unusual(values),
            }
        )
    return {"first_step": min(steps, default=None), "last_step": max(steps, default=None), "metrics": rows}


def unusual(values: array[float]) -> float:
    """Robust z-score of the last values: how far their median is from the run's, in standard deviations as its median
    absolute deviation estimates them. Where that is 0, the mean absolute deviation takes its place (Iglewicz and
    Hoaglin, 1993)."""
    kept = finite_of(values[:: max(1, len(values) // SAMPLE)])
    recent = finite_of(values[-RECENT:])
    if len(kept) < RECENT or not recent:
        return 0.0
    center = median(kept)
    distances = [abs(value - center) for value in kept]
    spread = 1.4826 * median(distances) or 1.2533 * sum(distances) / len(distances)
    if not spread:
        return 0.0
    score = (median(recent) - center) / spread
    return max(-MOST, min(MOST, score)) if score == score else 0.0
