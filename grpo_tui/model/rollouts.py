"""The completions of a run, or of an evaluation of it, as far as they are known here, and what is to be asked of the
box. No Textual.

The log stays on the box: the table of steps, the samples of a step without their texts, and the texts of the samples
that are shown travel.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_tui.model.asking import Asking
from grpo_tui.model.rollout_groups import Group, Sample, groups_of
from grpo_tui.model.rollout_steps import EvaluationSteps, RolloutSteps
from remote.protocol.index import MAX_OFFSETS, UNREADABLE

PAGES_KEPT = 8
TEXTS_KEPT = 128
CHARACTERS = 131_072
"""Maximum of a text that is shown."""
NEWEST = 1 << 53
"""A step that is after all."""
GROWING_S = 1.0
"""Pause between two requests for a step that is being logged."""


Place = tuple[str, int]
"""A sample: the folder of its evaluated step, "" for the run's rollouts, and the offset of its line."""
TextsKey = tuple[str, tuple[int, ...], int]
"""Folder, offsets, and the characters of each text."""


@dataclass(frozen=True)
class StepPage:
    """The samples of one step, without texts."""

    step: int
    samples: list[Sample]
    groups: list[Group]
    previous: int | None
    """The step with completions before, and the one after."""
    next: int | None
    is_coarse: bool
    logged: int
    """Samples of the step in the table of steps when this was asked for."""


class Rollouts:
    """What is known of ``rollouts.jsonl``, or of the ``completions.jsonl`` of an evaluation."""

    def __init__(self, run: str, now: Callable[[], float] = time.monotonic, evaluation: str = "") -> None:
        self.run = run
        self.evaluation = evaluation
        """Name of the evaluation; "" = the completions of the training."""
        self.steps = EvaluationSteps(now) if evaluation else RolloutSteps(now)
        self.step: int | None = None
        """The step that is shown; None: the newest."""
        self.asked: int | None = None
        """The step that was asked for, if it has no completions of its own."""
        self.reference: int | None = None
        """Another step whose samples are needed, too."""
        self.is_empty = False
        """Whether the run has not logged a completion yet."""
        self.version = 0
        self.of_step = Asking(now)
        self.of_texts = Asking(now)
        self._pages: OrderedDict[int, StepPage] = OrderedDict()
        self._texts: OrderedDict[Place, dict[str, Any]] = OrderedDict()
        self._answers: OrderedDict[Place, dict[str, Any]] = OrderedDict()

    @property
    def page(self) -> StepPage | None:
        """The samples of the shown step, if they are known."""
        return None if self.step is None else self._pages.get(self.step)

    def go_to(self, step: int | None) -> None:
        """Show a step, or the last one before it that has completions; None: the newest."""
        self.step, self.asked = step, None
        if step is not None:
            self.steps.look_at(step)
            if step in self._pages:
                self._pages.move_to_end(step)
        self.version += 1

    def invalidate(self) -> None:
        """Rows may have been superseded: ask anew."""
        self.steps.invalidate()
        self._pages.clear()
        self.of_step.forget()
        self.version += 1

    @property
    def dataset(self) -> str:
        """What the evaluation is named after, besides the run."""
        return self.evaluation.removeprefix(f"{self.run}_")

    def folder(self, step: Any) -> str:
        """The folder of an evaluated step; "" for the run's rollouts."""
        return f"eval_runs/{self.evaluation}/step_{int(step)}_{self.dataset}" if self.evaluation else ""

    def place(self, sample: Sample) -> Place:
        """Where a sample is."""
        return self.folder(sample.get("step") or 0), int(sample["offset"])

    def page_of(self, step: int | None) -> StepPage | None:
        """The samples of a step, if they are known."""
        return None if step is None else self._pages.get(step)

    # the samples of a step -----------------------------------------------------------------------------

    def step_request(self) -> tuple[int, int] | None:
        """The step to ask for now, and the samples that are known to be logged for it."""
        newest = self.steps.last if self.evaluation or self.steps.last is not None else NEWEST
        for step in (self.step if self.step is not None else newest, self.reference):
            if step is None:
                continue
            page, row = self._pages.get(step), self.steps.row(step)
            logged = row.samples if row is not None and not self.evaluation else 0
            if page is None or (logged > len(page.samples) and logged != page.logged):
                return (step, logged) if self.of_step.begin((step, logged), GROWING_S) else None
        return None

    def answer_step(self, key: tuple[int, int], reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``rollout_step``."""
        if not self.of_step.end(key):
            return
        self.is_empty = False
        step = int(reply["step"])
        samples = [row for row in reply["samples"] if UNREADABLE not in row]
        before, after = (None if reply[name] is None else int(reply[name]) for name in ("previous", "next"))
        self._pages[step] = StepPage(
            step, samples, groups_of(samples, reply["groups"]), before, after, reply["state"] != "whole", key[1]
        )
        self._pages.move_to_end(step)
        while len(self._pages) > PAGES_KEPT:
            self._pages.popitem(last=False)
        if key[0] == self.reference:
            self._pages[key[0]] = self._pages[step]
        elif self.step != step:
            self.asked = key[0] if self.step is not None else None
            self.step = step
            self.steps.look_at(step)
        self.version += 1

    def fail_step(self, key: tuple[int, int], problem: str, code: str) -> None:
        """The box refused, or did not answer."""
        self.of_step.end(key, problem)
        self.is_empty = code == "no_step"
        self.version += 1

    # texts ---------------------------------------------------------------------------------------------

    def text(self, place: Place) -> dict[str, Any] | None:
        """A sample with its texts, if it is known."""
        return self._texts.get(place)

    def answer_of(self, sample: Sample) -> str | None:
        """The answer that was read from a sample, if it is known."""
        place = self.place(sample)
        found = self._texts.get(place) or self._answers.get(place) or {}
        return found.get("answer")

    def texts_request(self, shown: Iterable[Place], others: Iterable[Sample]) -> TextsKey | None:
        """The request to send now: the samples that are shown, then the answers of others."""
        missing = [place for place in shown if place not in self._texts]
        characters = CHARACTERS if missing else 0
        if not missing:
            places = map(self.place, others)
            missing = [place for place in places if place not in self._answers and place not in self._texts]
        if not missing:
            return None
        folder = missing[0][0]
        offsets = tuple(offset for other, offset in missing if other == folder)[:MAX_OFFSETS]
        key = (folder, offsets, characters)
        return key if self.of_texts.begin(key) else None

    def answer_texts(self, key: TextsKey, reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``samples``; one that cannot be read says so."""
        if not self.of_texts.end(key):
            return
        folder, _, characters = key
        kept = self._texts if characters else self._answers
        for row in reply["samples"]:
            kept[folder, row["offset"]] = row
        while len(kept) > (TEXTS_KEPT if characters else 100 * TEXTS_KEPT):
            kept.popitem(last=False)
        self.version += 1

    def fail_texts(self, key: TextsKey, problem: str) -> None:
        """The box did not answer."""
        self.of_texts.end(key, problem)
        self.version += 1
