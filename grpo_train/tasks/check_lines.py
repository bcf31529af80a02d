"""The report of a dataset's check as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo_train.tasks.check import DatasetReport, Paid, SplitReport, Values
from grpo_train.tasks.shared.overlap import NGRAM

SHOWN = 5
"""Maximum number of wrong rows printed per list; the report has all of them."""
PROMPT_LENGTH = 1_200
"""Maximum number of characters of a prompt."""


def report_lines(report: DatasetReport) -> Iterator[str]:
    """The report as lines of text; the last one is the number of correct rows and of all rows."""
    yield f"{report.dataset}: {report.path or 'from the hub'}"
    if report.unreadable:
        yield f"  {len(report.unreadable)} rows cannot be used (task.wrong_rows: drop trains without them)"
        yield from _some(report.unreadable)
    for split in report.splits:
        right = f"{split.right}/{split.rows} reference solutions are correct"
        yield f"  {split.split:<10} {right}, {split.duplicates} duplicates"
        yield from _some(split.wrong)
        yield from _lengths(split, report.max_prompt_length)
    for overlap in report.overlaps:
        yield (
            f"  train and {overlap.split}: {overlap.exact} problems are identical, "
            f"{overlap.ngram} share {NGRAM} consecutive words"
        )
    for note in report.notes:
        yield f"  {note}"
    for paid in report.rewards:
        yield from _paid(paid)
    for rendered in report.prompts:
        yield ""
        yield f"  prompt {rendered.split} {rendered.index}, answer {rendered.answer[:60]!r}:"
        text = rendered.prompt
        cut = f" … ({len(text) - PROMPT_LENGTH} more characters)" if len(text) > PROMPT_LENGTH else ""
        yield from (f"    {line}".rstrip() for line in (text[:PROMPT_LENGTH] + cut).splitlines())
    if report.prompts:
        yield ""
    yield f"{report.right}/{report.rows + len(report.unreadable)}"


def _some(wrong: Sequence[str]) -> Iterator[str]:
    yield from (f"    {each}" for each in wrong[:SHOWN])
    if len(wrong) > SHOWN:
        yield f"    … and {len(wrong) - SHOWN} more"


def _lengths(split: SplitReport, longest: int | None) -> Iterator[str]:
    if tokens := split.tokens:
        yield (
            f"    prompts have {tokens.min} to {tokens.max} tokens (median {tokens.median:g}, 95% up to {tokens.p95}); "
            f"{tokens.over_long} are longer than rollout.max_prompt_length {longest}"
        )


def _paid(paid: Paid) -> Iterator[str]:
    yield f"  reward {paid.name}: {_range(paid.gold)} for gold answers, {_range(paid.empty)} for empty completions"
    if not paid.prefers_gold:
        yield f"    warning: {paid.name} does not pay more for gold answers than for empty completions"


def _range(values: Values) -> str:
    """The mean, with the smallest and largest value where they differ."""
    if values.mean is None:
        return "None"
    spread = f" ({values.min:g} to {values.max:g})" if values.min != values.max else ""
    return f"{values.mean:.4g}{spread}" + (f", None for {values.none} of {values.count}" if values.none else "")
