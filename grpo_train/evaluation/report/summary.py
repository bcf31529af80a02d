"""Metrics of a checkpoint's judged samples: the row of metrics.csv, and summary.json. Torch-free, pure functions.

summary.json holds ``metrics`` (the row) and:

- ``status``: "complete"; ``key``: the cache key; ``run``: device and library versions;
- ``pass_at_k``, ``maj_at_k`` ({k: value, low, high}; several samples per problem), ``invalid_rate`` (samples without an
  answer, which do not vote);
- ``solve_rates``: number of problems by number of correct samples, 0 to num_samples;
- ``reasons``: samples by verdict reason; ``rates``: truncated, grader errors, timeouts;
- ``length``: percentiles and histogram in tokens, and percentiles of correct (``right``) and wrong samples;
- ``indicators``: means of the task's other metrics (hacking/*, sandbox/*), and ``strict_gap``, the flexible accuracy
  minus the strict one; ``isolation``: samples by isolation level of the sandbox;
- ``matches`` for games, see :mod:`.match_table`;
- ``previous``, ``base``: comparisons with the nearest earlier evaluated step and with step 0, see :mod:`.compare`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_train.evaluation.report.match_table import match_table
from grpo_train.evaluation.report.statistics import (
    Estimate,
    bootstrap_mean,
    estimate_share,
    histogram,
    majority_at_k,
    pass_at_k,
    percentiles,
    reported_ks,
)
from grpo_train.evaluation.results.stored import GRADER_ERROR
from grpo_train.rewards.helpers import GRADER_FAILURES
from grpo_train.tasks.shared.base import means

Row = Mapping[str, Any]
Votes = Sequence[int | None]
SETTINGS = (
    "step", "name", "dataset", "subset_frac", "temperature", "max_completion_length", "batch_size", "split",
    "num_samples", "top_p",
)  # fmt: skip
"""Entries of the row that are settings, not measurements."""
COLUMNS = (
    "step", "name", "dataset", "status", "accuracy", "ci_low", "ci_high", "correct", "n", "format_rate",
    "truncated_rate", "mean_length", "subset_frac", "temperature", "max_completion_length", "batch_size",
    "flexible_accuracy", "flexible_ci_low", "flexible_ci_high", "split", "problems", "num_samples", "top_p",
    "grader_error_rate", "timeout_rate", "done", "total", "error", "code",
)  # fmt: skip
"""Columns of metrics.csv and consolidated_metrics.csv; pass@k and maj@k follow for several samples per problem."""


def by_problem(rows: Sequence[Row], samples: int) -> list[Sequence[Row]]:
    """Rows grouped by problem; a problem's rows are adjacent."""
    return [rows[first : first + samples] for first in range(0, len(rows), samples)]


def metrics_of(rows: Sequence[Row], votes: Sequence[Votes], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The row of metrics.csv.

    Args:
        rows: all judged samples, by problem and sample.
        votes: :func:`votes_of` each problem.
        settings: :data:`SETTINGS`.
    """
    problems = by_problem(rows, settings["num_samples"])
    n = len(rows)
    strict = estimate_share([[row["correct"] for row in group] for group in problems])
    found: dict[str, Any] = {
        **settings,
        "status": "ok",
        "accuracy": strict.value,
        "ci_low": strict.low,
        "ci_high": strict.high,
        "correct": sum(row["correct"] for row in rows),
        "n": n,
        "format_rate": sum(row["formatted"] for row in rows) / n,
        "truncated_rate": sum(row["truncated"] for row in rows) / n,
        "mean_length": sum(row["length"] for row in rows) / n,
        "problems": len(problems),
        "grader_error_rate": sum(row["reason"] == GRADER_ERROR for row in rows) / n,
        "timeout_rate": sum("timeout" in row["reason"] for row in rows) / n,
    }
    if any(row["flexible"] is not None for row in rows):
        flexible = estimate_share([[bool(row["flexible"]) for row in group] for group in problems])
        found |= {
            "flexible_accuracy": flexible.value,
            "flexible_ci_low": flexible.low,
            "flexible_ci_high": flexible.high,
        }
    for name, curve in (("pass", pass_curve(problems)), ("maj", majority_curve(votes))):
        found |= {f"{name}@{k}": estimate.value for k, estimate in curve.items()}
    return found


def pass_curve(problems: Sequence[Sequence[Row]]) -> dict[int, Estimate]:
    """pass@k with its interval for each reported k; {} for one sample per problem."""
    n = len(problems[0])
    correct = [sum(row["correct"] for row in group) for group in problems]
    return _curve(n, lambda k: [pass_at_k(n, c, k) for c in correct])


def majority_curve(votes: Sequence[Votes]) -> dict[int, Estimate]:
    """maj@k with its interval for each reported k; {} for one sample per problem."""
    return _curve(len(votes[0]), lambda k: [majority_at_k(group, [vote == 0 for vote in group], k) for group in votes])


def _curve(n: int, values: Callable[[int], Sequence[float]]) -> dict[int, Estimate]:
    return {k: bootstrap_mean(values(k), (0.0, 1.0)) for k in reported_ks(n)} if n > 1 else {}


def votes_of(group: Sequence[Row], same: Callable[[str, str], bool]) -> Votes:
    """For each sample of a problem the number of its answer: 0 is the correct one; None if the format is wrong.

    ``same`` is the task's equality of answers. Answers that could not be judged only equal themselves.
    """
    texts: dict[str, int] = {}
    numbers: dict[int, str] = {}
    votes: list[int | None] = []
    for row in group:
        text = row["answer"]
        if not row["formatted"] or text is None:
            votes.append(None)
        elif row["correct"]:
            votes.append(0)
        else:
            if text not in texts:
                judged = row["reason"] not in (*GRADER_FAILURES, "refused")
                equal = (number for number, other in numbers.items() if judged and same(text, other))
                texts[text] = next(equal, len(texts) + 1)
                if judged:
                    numbers.setdefault(texts[text], text)
            votes.append(texts[text])
    return votes


def summary_of(
    rows: Sequence[Row],
    votes: Sequence[Votes],
    metrics: Mapping[str, Any],
    key: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """summary.json without the comparisons. ``facts`` describe checkpoint, machine and settings."""
    samples, budget = metrics["num_samples"], metrics["max_completion_length"]
    problems = by_problem(rows, samples)
    solved = Counter(sum(row["correct"] for row in group) for group in problems)
    lengths = [row["length"] for row in rows]
    indicators = means([row["metrics"] for row in rows])
    if metrics.get("flexible_accuracy") is not None:
        indicators["strict_gap"] = metrics["flexible_accuracy"] - metrics["accuracy"]
    isolation = Counter(str(row["facts"]["isolation"]) for row in rows if "isolation" in row["facts"])
    return {
        "status": "complete",
        "metrics": dict(metrics),
        "pass_at_k": {str(k): asdict(estimate) for k, estimate in pass_curve(problems).items()},
        "maj_at_k": {str(k): asdict(estimate) for k, estimate in majority_curve(votes).items()},
        "invalid_rate": sum(vote is None for group in votes for vote in group) / len(rows),
        "solve_rates": [solved[correct] for correct in range(samples + 1)],
        "reasons": dict(sorted(Counter(row["reason"] for row in rows).items())),
        "rates": {name: metrics[f"{name}_rate"] for name in ("truncated", "grader_error", "timeout")},
        "length": {
            "all": percentiles(lengths),
            "right": percentiles([row["length"] for row in rows if row["correct"]]),
            "wrong": percentiles([row["length"] for row in rows if not row["correct"]]),
            "histogram": histogram(lengths, budget),
        },
        "indicators": indicators,
        **({"matches": table} if (table := match_table(rows)) else {}),
        "isolation": dict(sorted(isolation.items())),
        "key": dict(key),
        **facts,
    }
