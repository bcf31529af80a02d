"""Checks of a dataset: rows are readable, reference answers are judged correct, duplicates and overlaps are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import get_args

from grpo_train.config import schema
from grpo_train.tasks import Attempt, NoSplitError, Problem, Split, Task, TaskDefaults, load_task
from grpo_train.tasks.mbpp import MbppTask
from grpo_train.tasks.shared.overlap import NGRAM, normal_text, sharing

SHOWN = 5
"""Maximum number of wrong rows printed per split; the report has all of them."""


@dataclass(frozen=True)
class SplitReport:
    """Result for one split."""

    split: str
    rows: int
    right: int
    """Rows whose reference answer is correct."""
    wrong: list[str] = field(default_factory=list)
    """The other rows, each with the verdict's reason."""
    duplicates: int = 0
    """Rows whose text occurs in an earlier row."""


@dataclass(frozen=True)
class Overlap:
    """Training problems that also occur in a held-out split."""

    split: str
    exact: int
    """Training problems with the same text, ignoring case and white space."""
    ngram: int
    """Training problems that share 13 consecutive words with a held-out one; may include ``exact`` ones."""


@dataclass(frozen=True)
class Report:
    """Result for a dataset."""

    dataset: str
    path: str | None
    splits: list[SplitReport]
    overlaps: list[Overlap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of all splits."""
        return sum(split.rows for split in self.splits)

    @property
    def right(self) -> int:
        """Rows whose reference answer is correct."""
        return sum(split.right for split in self.splits)

    @property
    def is_good(self) -> bool:
        """Whether every reference answer is correct; duplicates and overlaps are reported only."""
        return self.right == self.rows


def check_answers(config: schema.Task) -> Report:
    """Judge every gold answer as a model would write it, strictly and flexibly. Raises TaskError."""
    task = load_task(config)
    problems = {split: [task.problem(split, i) for i in range(task.size(split))] for split in _splits(task)}
    splits = [_check_split(task, split, listed) for split, listed in problems.items()]
    notes = list(task.notes) if isinstance(task, TaskDefaults) else []
    texts: dict[str, list[str]] = {s: [problem.question for problem in listed] for s, listed in problems.items()}
    return Report(config.name, config.path, splits, overlaps_of(texts), notes)


def check_mbpp(config: schema.Task) -> Report:
    """Run every reference solution against its asserts in the sandbox. Raises TaskError."""
    task = load_task(config.model_copy(update={"template": "r1", "visible_tests": 0}))
    assert isinstance(task, MbppTask)
    rows = task.published()
    problems = {split: [task.problem_of(row, row.task_id) for row in listed] for split, listed in rows.items()}
    splits = [_check_split(task, split, listed) for split, listed in problems.items()]
    texts = {split: [row.text for row in listed] for split, listed in rows.items()}
    dropped = len(rows.get("train", [])) - task.size("train")
    notes = [f"{dropped} training problems dropped: identical to held-out problems"] if dropped else []
    return Report(config.name, config.path, splits, overlaps_of(texts), notes)


CHECKS: dict[str, Callable[[schema.Task], Report]] = {
    "gsm8k": check_answers,
    "jsonl": check_answers,
    "math": check_answers,
    "mbpp": check_mbpp,
}
"""The check of each dataset; raises TaskError for unreadable rows."""


def overlaps_of(texts: Mapping[str, list[str]]) -> list[Overlap]:
    """Overlaps of the training texts with each held-out split."""
    found = []
    for split in ("validation", "test"):
        if "train" in texts and split in texts:
            held_out = {normal_text(text) for text in texts[split]}
            exact = sum(normal_text(text) in held_out for text in texts["train"])
            found.append(Overlap(split, exact, len(sharing(texts["train"], texts[split]))))
    return found


def duplicates_in(texts: Sequence[str]) -> int:
    """Number of texts that occur earlier in the list."""
    return len(texts) - len({normal_text(text) for text in texts})


def lines_of(report: Report) -> Iterator[str]:
    """The report as lines of text."""
    yield f"{report.dataset}: {report.path or 'from the hub'}"
    for split in report.splits:
        right = f"{split.right}/{split.rows} reference solutions are correct"
        yield f"  {split.split:<10} {right}, {split.duplicates} duplicates"
        for wrong in split.wrong[:SHOWN]:
            yield f"    {wrong}"
        if len(split.wrong) > SHOWN:
            yield f"    … and {len(split.wrong) - SHOWN} more"
    for overlap in report.overlaps:
        yield (
            f"  train and {overlap.split}: {overlap.exact} problems are identical, "
            f"{overlap.ngram} share {NGRAM} consecutive words"
        )
    for note in report.notes:
        yield f"  {note}"
    yield f"{report.right}/{report.rows}"


def _splits(task: Task) -> list[Split]:
    """The splits that the data has. Raises TaskError for malformed rows, NoSplitError if it has no split."""
    found: list[Split] = []
    missing = None
    for split in get_args(Split):
        try:
            task.size(split)
            found.append(split)
        except NoSplitError as error:
            missing = error
    if not found and missing is not None:
        raise missing
    return found


def _check_split(task: Task, split: str, problems: list[Problem]) -> SplitReport:
    def check(problem: Problem) -> str | None:
        verdict = task.judge(Attempt(problem, f"It is so.</think> <answer>{problem.answer}</answer>"))
        if verdict.correct and verdict.flexible is not False:
            return None
        reason = verdict.reason if not verdict.correct else "wrong when read flexibly"
        return f"{split} {problem.index}: {problem.answer[:60]!r} is {reason}"

    if task.slow:
        with ThreadPoolExecutor() as pool:
            verdicts = list(pool.map(check, problems))
    else:
        verdicts = [check(problem) for problem in problems]
    wrong = [verdict for verdict in verdicts if verdict is not None]
    texts = [problem.question for problem in problems]
    return SplitReport(split, len(problems), len(problems) - len(wrong), wrong, duplicates_in(texts))
