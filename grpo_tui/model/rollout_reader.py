"""Where the user reads in the completions of a run: step, group, sample, marked sample, search. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.model.rollout_filter import condition
from grpo_tui.model.rollout_groups import ORDERS, Group, Sample, ordered
from grpo_tui.model.rollout_search import RolloutSearch
from grpo_tui.model.rollouts import Rollouts


@dataclass
class RolloutChoices:
    """The user's choices, for all runs."""

    order: str = ORDERS[0]
    is_reversed: bool = False
    filter: str = ""
    """The last filter without a mistake."""
    where: list[Any] = field(default_factory=list)
    """It as a condition; [] without one."""
    is_whole_file: bool = False
    """Whether it searches the whole file, or the shown step."""
    wraps: bool = True
    whole_prompt: bool = False

    def set_filter(self, text: str) -> None:
        """Raises QueryError, and keeps the last one."""
        self.where = condition(text) if text.strip() else []
        self.filter = text.strip()

    def next_order(self) -> None:
        self.order, self.is_reversed = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)], False


class RolloutReader:
    """The cursors in one run's completions. ``settle`` puts them on what is there."""

    def __init__(self, run: str, choices: RolloutChoices, now: Callable[[], float] = time.monotonic) -> None:
        self.rollouts = Rollouts(run, now)
        self.choices = choices
        self.search: RolloutSearch | None = None
        self.follows = True
        """Whether it moves to a new step; the first move of the user ends that."""
        self.group: Group | None = None
        self.sample: Sample | None = None
        self.groups: list[Group] = []
        """The groups that are listed."""
        self.marked: int | None = None
        """Offset of the marked sample."""
        self.is_beside = False
        """Whether the marked sample is shown beside the one under the cursor."""
        self.version = 0
        self._now = now
        self._made_of: object = None
        self._entered: RolloutSearch | None = None
        self._land: int | None = None
        """Where to go when the step is known: its first match (1) or its last one (-1)."""

    # what is shown -------------------------------------------------------------------------------------

    @property
    def step(self) -> int | None:
        return self.rollouts.step

    @property
    def shown(self) -> list[int]:
        """Offsets of the samples whose texts are shown."""
        first = [] if self.sample is None else [int(self.sample["offset"])]
        both = self.is_beside and self.marked is not None and self.marked not in first
        return [*first, self.marked] if both and self.marked is not None else first

    def is_match(self, sample: Sample) -> bool:
        return self.search is not None and sample["offset"] in self.search.offsets

    @property
    def is_filtered(self) -> bool:
        """Whether only groups with a match are listed: not before the first reply."""
        return self.search is not None and self.search.version > 0

    def settle(self) -> None:
        """Fit search, groups and cursors to the step, its samples and the choices."""
        self._fit_search()
        page, choices, search = self.rollouts.page, self.choices, self.search
        searched = search.version if search is not None else 0
        made_of = (self.rollouts.version, choices.order, choices.is_reversed, search, searched, self._land)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        self.version += 1
        if page is None:
            self.group, self.sample, self.groups = None, None, []
            return
        groups = ordered(page.groups, choices.order, choices.is_reversed)
        if self.is_filtered:
            groups = [group for group in groups if any(map(self.is_match, group.samples))]
            if self._entered is not search and self.sample is not None and not self.is_match(self.sample):
                self.sample = None  # the cursor goes to a match once, and then where the user moves it
            self._entered = search
        self.groups = groups
        self._settle_cursor()

    def _fit_search(self) -> None:
        choices, search = self.choices, self.search
        if not choices.where:
            self.search = None
            return
        step = None if choices.is_whole_file else self.step
        if step is None and not choices.is_whole_file:
            self.search = None
            return
        is_other = search is None or (search.where, search.step) != (choices.where, step)
        if is_other or (search is not None and search.is_coarse and not self.rollouts.steps.is_coarse):
            self.search = RolloutSearch(self.rollouts.run, choices.where, step, self._now)

    def _settle_cursor(self) -> None:
        if self._land is not None and (found := self._matches()):
            self.group, self.sample = found[0 if self._land > 0 else -1]
            self._land = None
            return
        number = self.group.number if self.group is not None else None
        same = [group for group in self.groups if group.number == number] if self.group is not None else []
        self.group = same[0] if same else self.groups[0] if self.groups else None
        self._choose_sample()

    def _choose_sample(self) -> None:
        """The sample that was under the cursor, else the first match of the group, else its first one."""
        samples = self.group.samples if self.group is not None else []
        offset = self.sample["offset"] if self.sample is not None else None
        same = [one for one in samples if one["offset"] == offset]
        found = same or [one for one in samples if self.is_match(one)] or samples
        self.sample = found[0] if found else None

    # moves ---------------------------------------------------------------------------------------------

    def go_to_step(self, step: int) -> None:
        """Show a step, or the last one before it that has completions."""
        self.follows, self._land = False, None
        if step != self.step:
            self.rollouts.go_to(step)
            self.settle()

    def follow(self) -> None:
        """Show the newest step, and each new one."""
        self.follows = True
        if self.rollouts.steps.last is not None:
            self.rollouts.go_to(self.rollouts.steps.last)

    def choose_group(self, group: Group) -> None:
        self.follows, self.group, self.sample = False, group, None
        self._choose_sample()
        self.version += 1

    def choose_sample(self, sample: Sample) -> None:
        self.follows, self.sample = False, sample
        self.version += 1

    def move_sample(self, by: int) -> None:
        """The next or the previous sample of the group."""
        samples = self.group.samples if self.group is not None else []
        if samples and self.sample in samples:
            self.choose_sample(samples[min(len(samples) - 1, max(0, samples.index(self.sample) + by))])

    def toggle_mark(self) -> None:
        """Mark the sample under the cursor, or remove its mark."""
        if self.sample is not None:
            self.follows = False
            self.marked = None if self.marked == self.sample["offset"] else int(self.sample["offset"])
            self.version += 1

    def toggle_beside(self) -> str:
        """Show the marked sample beside this one, or no longer. Without a mark, it is one of the group with another
        reward, else the next one. Returns why there is none."""
        if self.is_beside:
            self.is_beside = False
        elif self.sample is None:
            return "no sample to show"
        else:
            if self.marked is None or self.marked == self.sample["offset"]:
                other = self._other()
                if other is None:
                    return "the group has one sample; mark another one with space"
                self.marked = int(other["offset"])
            self.is_beside, self.follows = True, False
        self.version += 1
        return ""

    def _other(self) -> Sample | None:
        one = self.sample
        others = [sample for sample in (self.group.samples if self.group else []) if sample is not one]
        unlike = [sample for sample in others if one is not None and sample.get("reward") != one.get("reward")]
        return next(iter(unlike or others), None)

    # matches -------------------------------------------------------------------------------------------

    def _matches(self) -> list[tuple[Group, Sample]]:
        """The matches of the shown step, as they are listed."""
        return [(group, one) for group in self.groups for one in group.samples if self.is_match(one)]

    def next_match(self, by: int) -> str:
        """Go to the next match (1) or the previous one (-1); returns why there is none."""
        search = self.search
        if search is None:
            return "no filter is set"
        self.follows = False
        here = self._matches()
        places = [(group, one) for group in self.groups for one in group.samples]
        at = next((i for i, (_, one) in enumerate(places) if one is self.sample), -1)
        rank = {id(one): i for i, (_, one) in enumerate(places)}
        ahead = [pair for pair in here if (rank[id(pair[1])] - at) * by > 0]
        if ahead:
            self.group, self.sample = ahead[0 if by > 0 else -1]
            self.version += 1
            return ""
        if not self.choices.is_whole_file or self.step is None:
            return f"no {'further' if by > 0 else 'earlier'} match in this step"
        steps = [step for step in search.steps if (self.step - step) * by > 0]
        if not steps:
            search.go_on()
            return "searching for the next match" if by > 0 and not search.is_done else "no further match in the file"
        self._land = by
        self.rollouts.go_to(max(steps) if by > 0 else min(steps))
        self.settle()
        return ""
