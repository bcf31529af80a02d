"""Samples as CSV: what is known of them without their texts. No Textual."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from grpo_tui.model.rollout_groups import Sample
from grpo_tui.model.rollout_reader import RolloutReader

COLUMNS = (
    "step", "group", "sample", "reward", "advantage", "length", "correct", "formatted", "flexible", "truncated",
    "discarded", "reason",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t")
"""A text that begins so is a formula to a spreadsheet."""


def listed(reader: RolloutReader) -> list[Sample]:
    """The samples to save: the matches found in the file, those of the step, or all of the step, as listed."""
    if reader.search is not None and reader.search.step is None:
        return list(reader.search.matches)
    return [one for group in reader.groups for one in group.samples if not reader.is_filtered or reader.is_match(one)]


def sample_table(samples: Iterable[Sample]) -> str:
    """A CSV table of samples."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for sample in samples:
        writer.writerow([_cell(sample.get(column)) for column in COLUMNS])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) and value != "-Infinity" else value
