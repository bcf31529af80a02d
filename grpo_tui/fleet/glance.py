"""What a box says about itself in one line."""

from __future__ import annotations

from grpo_train.run_dir.lazy_dataclass import dataclass

OTHER_MACHINE = "another machine than the last time answers under this name, with a host key that is known"
OTHER_MACHINE_HINT = (
    "its disk is a copy, or you accepted its key; what this machine remembers under the name is of the former one. "
    "To keep them apart, give it another name in boxes.yaml"
)


@dataclass(frozen=True)
class Glance:
    """One look at a box; of one that was never reached, only name, address, price and problem are known."""

    name: str
    address: str
    price_per_hour: float | None
    instance: str = ""
    """State of its instance, as its provider said last; "" without a provider."""
    problem: str = ""
    """Why it is not reached now, or why it cannot read its runs; "" if all is well."""
    live: tuple[str, ...] = ()
    """Its live runs."""
    gpus: int | None = None
    """Its GPUs; None if it did not say."""
    gpus_free: int | None = None
    """GPUs without a process."""
    idle_s: float | None = None
    """Seconds since a run last wrote its state; None while one is live, or without runs."""
    age_s: float | None = None
    """Seconds since the box was last heard; 0 while its link is up, None if it never was."""
