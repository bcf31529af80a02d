"""Checks of a dataset: rows are readable, reference answers are judged correct, duplicates and overlaps are counted.

With a model also the lengths of its prompts, and with reward functions what they pay for the gold answer and for an
empty completion.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

from grpo_train.config import schema
from grpo_train.rewards import Rewards
from grpo_train.tasks import Attempt, NoSplitError, Problem, Split, Task, TaskDefaults, load_task
from grpo_train.tasks.jsonl import JsonlTask
from grpo_train.tasks.mbpp import MbppTask
from grpo_train.tasks.shared.graders import grader_of
from grpo_train.tasks.shared.overlap import normal_text, sharing

PROMPTS = 10
"""Number of rendered prompts in a report."""
REWARDED = 200
"""Maximum number of problems whose rewards are computed: a reward function may ask a service."""


class PromptReader(Protocol):
    """How a model reads prompts."""

    def lengths(self, problems: Sequence[Problem]) -> list[int]:
        """Length of each prompt in tokens. Raises TaskError where the model has no chat template for them."""

    def text(self, problem: Problem) -> str:
        """The prompt as the model gets it, special tokens written out."""


@dataclass(frozen=True)
class PromptLengths:
    """Lengths of the prompts of a split, in tokens."""

    min: int
    median: float
    p95: int
    max: int
    over_long: int
    """Prompts longer than ``rollout.max_prompt_length``, which training leaves out."""


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
    tokens: PromptLengths | None = None
    """Lengths of the prompts, if a model was given."""


@dataclass(frozen=True)
class Overlap:
    """Training problems that also occur in a held-out split."""

    split: str
    exact: int
    """Training problems with the same text, ignoring case and white space."""
    ngram: int
    """Training problems that share 13 consecutive words with a held-out one; may include ``exact`` ones."""


@dataclass(frozen=True)
class Values:
    """Values of a reward function; the numbers are None where it never applies."""

    mean: float | None
    min: float | None
    max: float | None
    count: int
    none: int
    """Number of completions that it does not apply to."""


@dataclass(frozen=True)
class Paid:
    """What one reward function returns for the first :data:`REWARDED` problems."""

    name: str
    gold: Values
    """For the gold answer in the required format."""
    empty: Values
    """For an empty completion."""
    prefers_gold: bool
    """Whether it pays more for gold answers on average."""


@dataclass(frozen=True)
class Rendered:
    """A prompt as the model gets it."""

    split: str
    index: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class DatasetReport:
    """Result for a dataset."""

    dataset: str
    path: str | None
    splits: list[SplitReport]
    overlaps: list[Overlap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Rows that cannot be used, each with its location and the reason."""
    prompts: list[Rendered] = field(default_factory=list)
    rewards: list[Paid] = field(default_factory=list)
    max_prompt_length: int | None = None
    """``rollout.max_prompt_length``, if a model was given."""

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
        """Whether all rows are readable and every reference answer is correct; all else is reported only."""
        return self.right == self.rows and not self.unreadable


@dataclass(frozen=True)
class DatasetCheck:
    """What to check besides the data."""

    reader: PromptReader | None = None
    """The model that the prompts are for."""
    max_prompt_length: int = 512
    rewards: tuple[str, ...] = ()
    """Reward functions to call, named as in ``task.rewards``."""


def check_answers(config: schema.TaskConfig, request: DatasetCheck | None = None) -> DatasetReport:
    """Judge every gold answer as a model would write it, strictly and flexibly. Raises TaskError."""
    asked = request or DatasetCheck()
    rewards = list(asked.rewards) or config.rewards or ["format"]  # data without gold answers cannot be loaded without
    task = load_task(config.model_copy(update={"wrong_rows": "drop", "rewards": rewards}))
    problems = {split: [task.problem(split, i) for i in range(task.size(split))] for split in _splits(task)}
    splits = [_check_split(task, split, listed, asked) for split, listed in problems.items()]
    texts: dict[str, list[str]] = {s: [problem.question for problem in listed] for s, listed in problems.items()}
    unreadable, notes = [], []
    if isinstance(task, JsonlTask):
        unreadable, notes = list(task.data.wrong), list(task.data.remarks)
    elif isinstance(task, TaskDefaults):
        notes = list(task.notes)
    return DatasetReport(
        config.name,
        config.path,
        splits,
        overlaps_of(texts),
        notes,
        unreadable,
        _rendered(problems, asked.reader),
        _paid(task, config, problems, asked.rewards),
        asked.max_prompt_length if asked.reader else None,
    )


def check_mbpp(config: schema.TaskConfig, request: DatasetCheck | None = None) -> DatasetReport:
    """Run every reference solution against its asserts in the sandbox. Raises TaskError."""
    asked = request or DatasetCheck()
    task = load_task(config.model_copy(update={"template": "r1", "visible_tests": 0}))
    assert isinstance(task, MbppTask)
    rows = task.published()
    problems = {split: [task.problem_of(row, row.task_id) for row in listed] for split, listed in rows.items()}
    splits = [_check_split(task, split, listed, asked) for split, listed in problems.items()]
    texts = {split: [row.text for row in listed] for split, listed in rows.items()}
    dropped = len(rows.get("train", [])) - task.size("train")
    notes = [f"{dropped} training problems dropped: identical to held-out problems"] if dropped else []
    return DatasetReport(
        config.name,
        config.path,
        splits,
        overlaps_of(texts),
        notes,
        prompts=_rendered(problems, asked.reader),
        rewards=_paid(task, config, problems, asked.rewards),
        max_prompt_length=asked.max_prompt_length if asked.reader else None,
    )


CHECKS: dict[str, Callable[..., DatasetReport]] = {
    "gsm8k": check_answers,
    "jsonl": check_answers,
    "data": check_answers,
    "math": check_answers,
    "mbpp": check_mbpp,
}
"""Each check, from a config and a :class:`DatasetCheck`; raises TaskError for data that cannot be read."""


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


def _gold_attempt(problem: Problem) -> Attempt:
    """The gold answer as a model would write it."""
    return Attempt(problem, f"It is so.</think> <answer>{problem.answer}</answer>", key=f"gold {problem.index}")


def _check_split(task: Task, split: str, problems: list[Problem], asked: DatasetCheck) -> SplitReport:
    def check(problem: Problem) -> str | None:
        verdict = task.judge(_gold_attempt(problem))
        if verdict.correct and verdict.flexible is not False:
            return None
        reason = verdict.reason if not verdict.correct else "wrong when read flexibly"
        return f"{split} {problem.index}: {problem.answer[:60]!r} is {reason}"

    if isinstance(task, JsonlTask) and not grader_of(task.grader).needs_gold:
        verdicts: list[str | None] = []
    elif task.slow:
        with ThreadPoolExecutor() as pool:
            verdicts = list(pool.map(check, problems))
    else:
        verdicts = [check(problem) for problem in problems]
    wrong = [verdict for verdict in verdicts if verdict is not None]
    texts = [problem.question for problem in problems]
    tokens = _lengths(problems, asked) if asked.reader and problems else None
    return SplitReport(split, len(problems), len(problems) - len(wrong), wrong, duplicates_in(texts), tokens)


def _lengths(problems: Sequence[Problem], asked: DatasetCheck) -> PromptLengths:
    assert asked.reader
    lengths = sorted(asked.reader.lengths(problems))
    over_long = sum(length > asked.max_prompt_length for length in lengths)
    p95 = lengths[min(len(lengths) - 1, int(0.95 * len(lengths)))]
    return PromptLengths(lengths[0], statistics.median(lengths), p95, lengths[-1], over_long)


def _rendered(problems: Mapping[Any, Sequence[Problem]], reader: PromptReader | None) -> list[Rendered]:
    """Prompts spread over the first split."""
    split, listed = next(iter(problems.items()))
    count = min(PROMPTS, len(listed))
    chosen = [listed[number * len(listed) // count] for number in range(count)]
    return [Rendered(split, each.index, reader.text(each) if reader else each.prompt, each.answer) for each in chosen]


def _paid(
    task: Task, config: schema.TaskConfig, problems: Mapping[Any, Sequence[Problem]], names: Sequence[str]
) -> list[Paid]:
    """The rewards of the first problems of the first split. Raises TaskError for a reward function that fails."""
    if not names:
        return []
    listed = next(iter(problems.values()))[:REWARDED]
    settings = config.model_copy(update={"rewards": list(names), "reward_control": "none"})
    rewards = Rewards(settings, (), max_completion_length=schema.Rollout().max_completion_length, seed=0)
    # As in training, TRL's functions get several completions of a prompt: one alone would not show a wrong length.
    pairs = [[_gold_attempt(problem), Attempt(problem, "", key=f"empty {problem.index}")] for problem in listed]
    found = []
    for pair in pairs:
        verdicts = [task.judge(attempt) for attempt in pair]
        started = [rewards.start(attempt, verdict) for attempt, verdict in zip(pair, verdicts, strict=True)]
        found.append(rewards.complete(started, pair, verdicts, len(pair)))
    gold, empty = ([both[side] for both in found] for side in (0, 1))
    paid = []
    for name in rewards.names:
        for_gold, for_empty = (_values([each[name] for each in some]) for some in (gold, empty))
        prefers = for_gold.mean is not None and (for_empty.mean is None or for_gold.mean > for_empty.mean)
        paid.append(Paid(name, for_gold, for_empty, prefers))
    return paid


def _values(values: Sequence[float | None]) -> Values:
    known = [value for value in values if value is not None]
    none = len(values) - len(known)
    if not known:
        return Values(None, None, None, len(values), none)
    return Values(statistics.fmean(known), min(known), max(known), len(values), none)
