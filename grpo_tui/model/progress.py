"""How far a run is: step, time left, time taken, cost. No Textual."""

from __future__ import annotations

from grpo_train.history.cost import dollars
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store

NO_PRICE = "no cost: set price_per_hour of this box in boxes.yaml"
"""What is shown in place of costs on a box without a price."""


def step_of(store: Store, row: RunRow) -> int:
    """Last step of a run."""
    return store.step if row.name == store.selected else row.step


def eta(store: Store, row: RunRow | None) -> float | None:
    """Seconds until the last step of a run at its current pace, or None."""
    if row is None or not row.is_live or row.total_steps is None or row.shown_state == "stopping":
        return None
    if store.recalled_at is not None:
        return None
    pace = store.step_seconds(row)
    return None if pace is None else max(0, row.total_steps - step_of(store, row)) * pace


def took(store: Store, row: RunRow | None) -> float | None:
    """Seconds that a run has run so far, or None."""
    if row is None or row.run_seconds is None:
        return None
    since_update = store.age(row.updated_at) if row.is_live and store.connected else 0.0
    return row.run_seconds + min(since_update or 0.0, 60.0)


def cost(store: Store, row: RunRow | None) -> float | None:
    """Cost of a run so far in dollars, or None if the price or its run time is unknown."""
    seconds = took(store, row)
    return None if seconds is None or store.price_per_hour is None else dollars(store.price_per_hour, seconds)
