"""Faults on standing links, several side by side, and what they showed."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.transports.transport import Timing
from tests.soak.standing import Standing, standing
from tests.soak.standing_faults import KINDS
from tests.support.opening import Kind
from tests.support.truth import words

APART_S = 0.3
"""Between the starts of two lanes."""


@dataclass(frozen=True)
class Plan:
    """One lane."""

    load: str
    transport: Kind
    seed: str
    faults: int
    kinds: Sequence[str] = tuple(KINDS)
    every_s: float = 0.0
    """A fault begins this often; 0: soon after the last."""
    timing: Timing | None = None
    pace: float = 1.0
    rate: float = 0.0


def endure(folder: Path, plans: Sequence[Plan]) -> None:
    """Run the plans side by side, and print what happened. Raises AssertionError with every failure."""
    said: Counter[str] = Counter()
    failures: list[str] = []

    def run(number: int, plan: Plan) -> None:
        lane: Standing | None = None
        try:
            place = folder / f"{number}-{plan.load}"
            options = {"seed": plan.seed, "timing": plan.timing, "pace": plan.pace, "rate": plan.rate}
            with standing(place, plan.load, plan.transport, **options) as lane:  # type: ignore[arg-type]
                _endure(lane, plan)
                print(lane.report(lane.finish()), flush=True)
        except BaseException as error:
            failures.append(f"{plan.seed}: {error}")
            last = [*lane.troubles[-3:], *lane.events[-15:]] if lane else []
            print(f"FAILED {plan}: {traceback.format_exc()}", *last, sep="\n", flush=True)
        if lane is not None:
            said.update(words(lane.events))

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(plans)]
    for thread in threads:
        thread.start()
        time.sleep(APART_S if len(threads) > 2 else 0)
    for thread in threads:
        thread.join()
    print(*(f"{count:6} {text}" for text, count in said.most_common()), sep="\n", flush=True)
    assert not failures, failures


def _endure(lane: Standing, plan: Plan) -> None:
    for _ in range(plan.faults):
        began = time.monotonic()
        lane.survive(lane.chance.choice(plan.kinds))
        rest = began + plan.every_s - time.monotonic()
        lane.pass_time(max(0.0, rest) if plan.every_s else lane.chance.uniform(0, 1) * plan.pace)
