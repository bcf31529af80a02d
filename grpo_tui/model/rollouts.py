"""The completions of one run as far as they are known here, and what is to be asked of the box. No Textual.

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
from grpo_tui.model.rollout_steps import RolloutSteps
from remote.protocol.index import MAX_OFFSETS, UNREADABLE

PAGES_KEPT = 8
TEXTS_KEPT = 128
CHARACTERS = 131_072
"""Maximum of a text that is shown."""
NEWEST = 1 << 53
"""A step that is after all."""
GROWING_S = 1.0
"""Pause between two requests for a step that is being logged."""


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
    """What is known of ``rollouts.jsonl``."""

    def __init__(self, run: str, now: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.steps = RolloutSteps(now)
        self.step: int | None = None
        """The step that is shown; None: the newest."""
        self.asked: int | None = None
        """The step that was asked for, if it has no completions of its own."""
        self.is_empty = False
        """Whether the run has not logged a completion yet."""
        self.version = 0
        self.of_step = Asking(now)
        self.of_texts = Asking(now)
        self._pages: OrderedDict[int, StepPage] = OrderedDict()
        self._texts: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._answers: OrderedDict[int, dict[str, Any]] = OrderedDict()

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

    # the samples of a step -----------------------------------------------------------------------------

    def step_request(self) -> tuple[int, int] | None:
        """The step to ask for now, and the samples that are known to be logged for it."""
        step = next((one for one in (self.step, self.steps.last) if one is not None), NEWEST)
        page, row = self._pages.get(step), self.steps.row(step)
        logged = row.samples if row is not None else 0
        if page is not None and (logged <= len(page.samples) or logged == page.logged):
            return None
        key = (step, logged)
        return key if self.of_step.begin(key, GROWING_S) else None

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
        if self.step != step:
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

    def text(self, offset: int | None) -> dict[str, Any] | None:
        """A sample with its texts, if it is known."""
        return None if offset is None else self._texts.get(offset)

    def answer_of(self, offset: int) -> str | None:
        """The answer that was read from a sample, if it is known."""
        found = self._texts.get(offset) or self._answers.get(offset) or {}
        return found.get("answer")

    def texts_request(self, shown: Iterable[int], others: Iterable[int]) -> tuple[tuple[int, ...], int] | None:
        """The samples to ask for now, and the characters of each text: those shown, then the answers of others."""
        missing = tuple(offset for offset in shown if offset not in self._texts)
        key = (missing, CHARACTERS)
        if not missing:
            known = self._answers.keys() | self._texts.keys()
            key = (tuple(offset for offset in others if offset not in known)[:MAX_OFFSETS], 0)
        return key if key[0] and self.of_texts.begin(key) else None

    def answer_texts(self, key: tuple[tuple[int, ...], int], reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``samples``; one that cannot be read says so."""
        if not self.of_texts.end(key):
            return
        kept = self._texts if key[1] else self._answers
        for row in reply["samples"]:
            kept[row["offset"]] = row
        while len(kept) > (TEXTS_KEPT if key[1] else 100 * TEXTS_KEPT):
            kept.popitem(last=False)
        self.version += 1

    def fail_texts(self, key: tuple[tuple[int, ...], int], problem: str) -> None:
        self.of_texts.end(key, problem)
        self.version += 1
