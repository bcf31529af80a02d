"""A rented machine, as its provider describes it."""

from __future__ import annotations

from grpo_train.run_dir.lazy_dataclass import dataclass

ENDED = ("terminating", "terminated", "preempted")


@dataclass(frozen=True)
class Instance:
    """One instance. "" stands for what the provider did not say."""

    id: str
    name: str
    state: str
    """``booting``, ``active``, ``unhealthy``, ``terminating``, ``terminated``, or another word of the provider."""
    address: str
    """IP address; "" while it has none."""
    region: str
    type: str
    price_per_hour: float | None
    """Dollars."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED
