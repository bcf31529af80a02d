"""How often the verdict on a run is wrong or late: ``python tests/bench/verdicts.py [RUNS] [SEED] [LABEL ...]``.

Runs of each label are simulated (:mod:`tests.bench.simulated_runs`, written without a look at the verdict) and judged
after every step, from what was known then. Printed for each label:

- false: runs with a wrong verdict at any step; no verdict is never wrong
- missed: runs that were not called what they are by the step from which on they must be
- silent: runs without a verdict at some later step at which there should be one
- onset: of the runs with a trouble that was found, how many have its first step within 3
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grpo_train.run_dir.verdict import RunVerdict
from grpo_train.run_dir.verdict_rules import Evidence, HeldOutAccuracy, judge
from tests.bench.simulated_runs import LABELS, SimulatedRun, acceptable, simulate

EARLIEST = 5
"""The first step that is judged."""


@dataclass(frozen=True)
class Judged:
    """How the verdicts on one simulated run were."""

    wrong: tuple[str, ...]
    """The wrong words, in the order of their steps."""
    is_missed: bool
    is_silent: bool
    onset_error: int | None
    """Steps from the true onset to the one that was found last; None where there is none."""


def judged(label: str, seed: int, number: int) -> Judged:
    """Simulate one run, and judge it after each step."""
    run = simulate(label, np.random.default_rng([seed, LABELS.index(label), number]))
    names = {name for row in run.rows for name in row}
    columns = {name: [row.get(name, math.nan) for row in run.rows] for name in names}
    wrong: list[str] = []
    said: list[str] = []
    missed, silent, onset = False, False, None
    for step in range(EARLIEST, len(run.rows) + 1):
        found, right = verdict(run, columns, step), acceptable(run, step)
        word = found.word if found else ""
        said.append(word)
        if word and word not in right:
            wrong.append(word)
        if "" not in right and not silent:
            since = max(0, (run.onset or 1) - 3 - EARLIEST)
            missed, silent = missed or not right & set(said[since:]), not word
        if found is not None and word == label and run.onset is not None:
            onset = found.since - run.onset
    return Judged(tuple(dict.fromkeys(wrong)), missed, silent, onset)


def verdict(run: SimulatedRun, columns: dict[str, list[float]], step: int) -> RunVerdict | None:
    """On what is known of a run after a step."""
    missing = [math.nan] * step
    return judge(
        Evidence(
            columns["step"][:step],
            lambda name: columns[name][:step] if name in columns else missing,
            [
                HeldOutAccuracy(int(row["step"]), row["accuracy"], int(row["problems"]))
                for row in run.evaluations
                if row["step"] <= step
            ],
            [event for event in run.events if int(str(event["step"])) < step],
            run.finished and step == len(run.rows),
            run.total_steps,
        )
    )


def main(runs: int, seed: int, labels: list[str]) -> None:
    print(f"{'label':12}{'false':>8}{'missed':>8}{'silent':>8}{'onset':>8}  wrong words")
    with ProcessPoolExecutor() as pool:
        for label in labels:
            began = time.monotonic()
            found = list(pool.map(judged, [label] * runs, [seed] * runs, range(runs)))
            errors = [abs(each.onset_error) for each in found if each.onset_error is not None]
            near = f"{sum(error <= 3 for error in errors) / len(errors):.0%}" if errors else "–"
            false, missed, silent = (
                sum(map(bool, which))
                for which in zip(*((each.wrong, each.is_missed, each.is_silent) for each in found), strict=True)
            )
            words = ", ".join(f"{word} {count}" for word, count in Counter(w for e in found for w in e.wrong).items())
            shares = f"{false / runs:>8.1%}{missed / runs:>8.1%}{silent / runs:>8.1%}{near:>8}"
            print(f"{label:12}{shares}  {words} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 200,
        int(sys.argv[2]) if len(sys.argv) > 2 else 1,
        sys.argv[3:] or list(LABELS),
    )
