"""Which rows of a run belong to which W&B run, and what is sent of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.files import ByteRange, number_in, open_log, parse_line, to_float, to_json
from grpo_train.run_dir.formats import current_row
from grpo_train.run_dir.safe_json import read_lines
from grpo_train.tracking.logs import with_aliases

LOG, ROLLOUTS = "train_log.jsonl", "rollouts.jsonl"
STEP = "train/global_step"
"""The x of every metric."""
LOGGED = "train/step"
"""The same of a logged step only, not of an evaluated one: the last one that was sent."""
NOT_METRICS = ("step", "time", "health")
COLUMNS = ("step", "group", "task", "prompt", "completion", "reward", "advantage", "correct", "answer", "gold")
"""Columns of the table ``completions``: fields of ``rollouts.jsonl``."""


@dataclass(frozen=True)
class Generation:
    """The rows between two resumes from an earlier step: one W&B run."""

    index: int
    excluded: tuple[ByteRange, ...] = ()
    """Bytes of the log that were superseded before it began."""
    end: int | None = None
    """Length of the log when it was superseded itself; None for the last one."""

    def id_of(self, identity: str) -> str:
        """ID of its W&B run."""
        return f"{identity}-r{self.index}" if self.index else identity


def generations(events: Iterable[Mapping[str, Any]], log: str = LOG) -> list[Generation]:
    """The generations of a run, from its events, with the ranges of one log; the last one is the current one."""
    found = [Generation(0)]
    for event in events:
        last, own = found[-1], _superseded(event, log)
        ranges = (*last.excluded, own) if own else last.excluded
        if _superseded(event, LOG):
            found[-1] = replace(last, end=own[1] if own else sys.maxsize)
            found.append(Generation(last.index + 1, ranges))
        else:
            found[-1] = replace(last, excluded=ranges)
    return found


def _superseded(event: Mapping[str, Any], log: str) -> ByteRange | None:
    """The bytes of a log that a resume superseded."""
    superseded = event.get("superseded")
    pair = superseded.get(log) if isinstance(superseded, dict) else None
    if isinstance(pair, list) and [type(item) for item in pair] == [int, int] and pair[0] < pair[1]:
        return (pair[0], pair[1])
    return None


def rows_after(
    run: RunDir, generation: Generation, offset: int, log: str = LOG
) -> Iterator[tuple[int, dict[str, Any]]]:
    """End in a log, and row, of each whole row from a byte on that belongs to a generation. Raises OSError."""
    file = open_log(run.logs / log)
    if file is None:
        return
    with file:
        file.seek(offset)
        for start, line in read_lines(file):
            begin, end = offset + start, offset + start + len(line)
            if generation.end is not None and begin >= generation.end:
                return
            if any(low <= begin < high for low, high in generation.excluded):
                continue
            row = parse_line(run.logs / log, begin, line)
            if row is not None:
                yield end, current_row(row)


def entry_of(row: Mapping[str, Any]) -> dict[str, float] | None:
    """What is sent of a row: numbers, by the keys that trackers of this field use; None without a step."""
    step = to_float(row.get("step"))
    if step is None or not math.isfinite(step):
        return None
    values = {
        key if "/" in key else f"train/{key}": number
        for key, value in with_aliases(row).items()
        if key not in NOT_METRICS and (number := to_float(value)) is not None
    }
    return {STEP: int(step), LOGGED: int(step), **values}


def completions_of(
    run: RunDir, generation: Generation, offset: int, step: int, limit: int
) -> tuple[int, list[list[Any]]]:
    """Byte after a step's rows in ``rollouts.jsonl``, and its first ``limit`` completions by COLUMNS.

    Discarded ones are left out. ``generation``: one of that log. Raises OSError.
    """
    found: list[list[Any]] = []
    for end, row in rows_after(run, generation, offset, ROLLOUTS):
        at = to_float(row.get("step"))
        if at is not None and at > step:
            break
        offset = end
        if at == step and "discarded" not in row and len(found) < limit:
            found.append([_cell(row.get(column)) for column in COLUMNS])
    return offset, found


def _cell(value: Any) -> Any:
    """A value that a table takes: number, text or None."""
    return value if value is None or isinstance(value, (str, int, float)) else to_json(value)


def evaluations_after(run: RunDir, sent: Mapping[str, float]) -> list[dict[str, float]]:
    """The evaluated steps that are later than those sent, in order; ``sent``: dataset to its last step.

    Beside the columns of the table, each has what TensorBoard got, such as ``mbpp_eval/pass_rate``.
    """
    found = []
    logged: dict[Any, dict[str, Any]] = {}
    for row in run.read_log("eval_log.jsonl"):
        logged.setdefault(row.get("step"), {}).update(row)
    for evaluation in list_evaluations(run.root, run.name):
        dataset = str(evaluation.get("dataset") or evaluation["name"].removeprefix(f"{run.name}_"))
        for row in evaluation["metrics"]:
            numbers = {key: number for key, text in row.items() if (number := _number(text)) is not None}
            step = numbers.pop("step", None)
            if row["status"] != "ok" or step is None or step <= sent.get(dataset, -1):
                continue
            values = {f"eval/{dataset}/{key}": number for key, number in numbers.items()}
            for key, value in logged.get(int(step), {}).items():
                if key.startswith(f"{dataset}_eval/") and (number := to_float(value)) is not None:
                    values[key] = number
            found.append({STEP: int(step), f"eval/{dataset}/step": int(step), **values})
    return sorted(found, key=lambda entry: entry[STEP])


def last_evaluated(summary: Mapping[str, Any]) -> dict[str, float]:
    """Dataset to its last step, from the summary of a W&B run."""
    found = {}
    for key, value in summary.items():
        number = to_float(value)
        if key.startswith("eval/") and key.endswith("/step") and number is not None:
            found[key.removeprefix("eval/").removesuffix("/step")] = number
    return found


def _number(text: str) -> float | None:
    value = number_in(text)
    return value if value is not None and math.isfinite(value) else None
