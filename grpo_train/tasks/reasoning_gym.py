"""Generated puzzles of about a hundred kinds from the reasoning-gym library, without partial credit.

``task.dataset`` is one of its datasets ("leg_counting", "countdown", …). The library gives partial credit ("The answer
is 18" earns 0.125 for "18", garbage 0.01); here only the full score is correct. Training and test problems have
different seeds, and a training problem that is also a test problem is replaced. Needs the extra ``gym``.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from grpo_train.config import schema
from grpo_train.rewards.helpers import GRADER_FAILURES, HelperError, Helpers, HelperTimeout, gym
from grpo_train.rewards.tags import last_tagged, strict_answer, tagged_verdict
from grpo_train.rewards.types import Attempt, NoSplitError, Problem, Split, TaskError, Verdict
from grpo_train.run_dir.errors import did_you_mean
from grpo_train.run_dir.installation import install_command
from grpo_train.tasks.shared.base import TaskDefaults, TaskKind
from grpo_train.tasks.shared.overlap import normal_text
from grpo_train.tasks.shared.template import ask, check_template

SIZES: dict[Split, int] = {"train": 20_000, "test": 500}
SEEDS: dict[Split, int] = {"train": 1, "test": 2}
UNUSABLE = {
    "list_functions": "its problems depend on the order in which they are generated, so a run could not be resumed",
    "composite": "it is a mixture that must be configured first",
}
MAX_CHARS = 4000
"""Maximum length of an answer that is scored."""
MAKE_SECONDS = 60.0
"""CPU time limit for making a problem."""
SCORE_SECONDS = 5.0
"""CPU time limit for scoring an answer."""


def load(config: schema.TaskConfig) -> ReasoningGymTask:
    """The task on ``config.dataset``. Raises TaskError (unknown dataset, reasoning-gym not installed)."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise TaskError(
            f"task.name: reasoning_gym needs reasoning-gym, which is not installed:  {install_command('gym')}  "
            "(it needs a C compiler and Python's headers)"
        )
    if config.dataset in UNUSABLE:
        raise TaskError(f"task.dataset: {config.dataset} cannot be used: {UNUSABLE[config.dataset]}")
    known = _make(do="names")
    if config.dataset not in known:
        hint = did_you_mean(config.dataset, known)
        raise TaskError(f"task.dataset: reasoning-gym has no dataset '{config.dataset}'; {hint}")
    check_template(config)
    label = f"reasoning_gym_{config.dataset}"
    return ReasoningGymTask(name="reasoning_gym", label=label, slow=True, config=config)


@dataclass(frozen=True)
class ReasoningGymTask(TaskDefaults):
    """One dataset; problems are made when first used."""

    def rows(self, split: Split) -> range:
        if split not in SIZES:
            raise NoSplitError(f"eval.split: reasoning_gym has no {split} split; it has {', '.join(SIZES)}")
        return range(SIZES[split])

    def problem(self, split: Split, index: int) -> Problem:
        dataset = self.config.dataset
        position, question, answer = (
            _train_entry(dataset, index) if split == "train" else _entry(dataset, "test", index)
        )
        return ask(self.config, index, question, answer, data={"split": split, "position": position})

    def judge(self, attempt: Attempt) -> Verdict:
        """The full score in strict format is correct; the flexible reading takes the last answer tag."""
        answer, problem = strict_answer(attempt.text)
        reason = problem if answer is None else self._score(answer, attempt.problem)
        lenient = last_tagged(attempt.text)
        flexible = reason == "ok" if lenient == answer else self._score(lenient or "", attempt.problem) == "ok"
        metrics = {"grader/failed": float(reason in GRADER_FAILURES)}
        verdict = tagged_verdict(attempt, answer, reason, flexible=flexible, metrics=metrics)
        return replace(verdict, score=float(verdict.correct))

    def _score(self, answer: str, problem: Problem) -> str:
        if len(answer) > MAX_CHARS or "__" in answer:
            return "refused"
        if not answer:
            return "wrong"
        split, position = problem.data["split"], problem.data["position"]
        entry = {"dataset": self.config.dataset, "seed": SEEDS[split], "size": _library_size(split), "index": position}
        try:
            score = _helpers(SCORE_SECONDS).ask({"do": "score", **entry, "answer": answer})
        except HelperTimeout:
            return "grader_timeout"
        except HelperError:
            return "grader_error"
        return "ok" if score >= 1.0 else "wrong"


@lru_cache(maxsize=4)
def _helpers(seconds: float) -> Helpers:
    return Helpers(gym.__file__, seconds=seconds)


def _library_size(split: Split) -> int:
    """Problems made by the library: twice the training problems, to replace those that are also test problems."""
    return SIZES[split] * (2 if split == "train" else 1)


def _make(**request: Any) -> Any:
    try:
        return _helpers(MAKE_SECONDS).ask(request)
    except HelperTimeout as error:  # a generator that searches for its problem
        raise TaskError(
            f"task.dataset: reasoning-gym needs more than {MAKE_SECONDS:g} s for a problem; choose another"
        ) from error
    except HelperError as error:
        raise TaskError(f"task.dataset: reasoning-gym failed: {error}") from error


@lru_cache(maxsize=100_000)
def _entry(dataset: str, split: Split, position: int) -> tuple[int, str, str]:
    question, answer = _make(do="entry", dataset=dataset, seed=SEEDS[split], size=_library_size(split), index=position)
    return position, question.strip(), answer


@lru_cache(maxsize=4)
def _test_questions(dataset: str) -> frozenset[str]:
    return frozenset(normal_text(_entry(dataset, "test", index)[1]) for index in range(SIZES["test"]))


def _train_entry(dataset: str, index: int) -> tuple[int, str, str]:
    """The training problem of an index: the first of a fixed sequence of candidates that is not a test problem."""
    held_out = _test_questions(dataset)
    for attempt in range(200):
        position = index if attempt == 0 else SIZES["train"] + (index + attempt * 7919) % SIZES["train"]
        entry = _entry(dataset, "train", position)
        if normal_text(entry[1]) not in held_out:
            return entry
    raise TaskError(f"task.dataset: '{dataset}' has too few problems for disjoint training and test splits")


TASK = TaskKind(
    "reasoning_gym",
    "Puzzles from the reasoning-gym library (task.dataset)",
    load,
    alias="reasoning_gym_r1_template",
)
