"""Where the user reads in the completions of a run: step, group, sample, marked sample, search. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.box.asking import asking_words, monotonic
from grpo_tui.box.formatting import one_line
from grpo_tui.box.store import Store
from grpo_tui.views.rollouts.model.rollouts import Place, Rollouts
from grpo_tui.views.rollouts.model.samples import (
    FLIPS,
    ORDERS,
    Group,
    RolloutSearch,
    Sample,
    condition,
    flipped,
    ordered,
)
from grpo_tui.views.rollouts.model.tokens import MODES, KnownTokens, TokenValues
from remote.protocol.logs import UNREADABLE


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
    tokens: str = ""
    """What tokens are colored by: one of MODES."""
    whole_prompt: bool = False
    saving: str = ""
    """How far an export is; "" without one."""

    def set_filter(self, text: str) -> None:
        """Raises QueryError, and keeps the last one."""
        self.where = condition(text) if text.strip() else []
        self.filter = text.strip()

    def next_tokens(self) -> None:
        self.tokens = MODES[(MODES.index(self.tokens) + 1) % len(MODES)]

    def next_order(self) -> None:
        self.order, self.is_reversed = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)], False


class RolloutReader:
    """The cursors in one run's completions. ``settle`` puts them on what is there."""

    def __init__(
        self, run: str, choices: RolloutChoices, now: Callable[[], float] = monotonic, evaluation: str = ""
    ) -> None:
        self.rollouts = Rollouts(run, now, evaluation)
        self.choices = choices
        self.search: RolloutSearch | None = None
        self.follows = True
        """Whether it moves to a new step; the first move of the user ends that."""
        self.group: Group | None = None
        self.sample: Sample | None = None
        self.groups: list[Group] = []
        """The groups that are listed."""
        self.marked: Place | None = None
        """The marked sample."""
        self.is_beside = False
        """Whether the marked sample is shown beside the one under the cursor."""
        self._tokens = KnownTokens()
        self._token: tuple[Place | None, int] = (None, 0)
        self.version = 0
        self._now = now
        self._made_of: object = None
        self._entered: RolloutSearch | None = None
        self._step: int | None = None
        self._left: tuple[Group | None, Sample | None] = (None, None)
        self.flips = ""
        """Only problems that this evaluated step ``lost`` or ``gained`` against the one before."""
        self.against = ""
        """Another run, whose same step is the reference in place of the step before."""
        self._land: int | None = None
        """Where to go when the step is known: its first match (1) or its last one (-1)."""

    # what is shown -------------------------------------------------------------------------------------

    @property
    def step(self) -> int | None:
        return self.rollouts.step

    @property
    def shown(self) -> list[Place]:
        """The samples whose texts are shown."""
        first = [] if self.sample is None else [self.rollouts.place(self.sample)]
        other = self._counterpart or self.marked
        return [*first, other] if self.is_beside and other is not None and other not in first else first

    @property
    def _counterpart(self) -> Place | None:
        """The same problem at the reference step; None without one."""
        page, group = self.rollouts.reference_page, self.group
        found = [one for one in page.groups if one.number == group.number] if page and group else []
        return self.rollouts.place(found[0].samples[0], self.rollouts.reference_run) if found else None

    @property
    def other_run(self) -> str:
        """The run of the second of the samples that are shown, if it is another one."""
        places = self.shown
        return self.against if len(places) > 1 and places[1] == self._counterpart else ""

    @property
    def reference_name(self) -> str:
        """``step 20``, or ``RUN`` at the same step."""
        return self.against or f"step {self.rollouts.reference or 0:,}"

    def is_match(self, sample: Sample) -> bool:
        return self.search is not None and sample["offset"] in self.search.offsets

    def is_marked(self, sample: Sample) -> bool:
        return self.marked is not None and self.marked == self.rollouts.place(sample)

    @property
    def searches_file(self) -> bool:
        """Whether the filter is for all steps: an evaluated step has its own file."""
        return self.choices.is_whole_file and not self.rollouts.evaluation

    @property
    def shares(self) -> dict[int | None, float] | None:
        """The share of right samples of each problem at the reference step; None without one, or before it is known."""
        page = self.rollouts.reference_page
        if page is None:
            return None
        return {group.number: group.share for group in page.groups if group.share is not None}

    @property
    def sums(self) -> str:
        """``3 lost, 9 gained`` against the reference step, or how many problems of an evaluation are not right."""
        page = self.rollouts.page
        if page is None or not self.rollouts.evaluation:
            return ""
        if self.flips and not self.mismatch and (shares := self.shares) is not None:
            return ", ".join(f"{len(flipped(page.groups, shares, kind)):,} {kind}" for kind in FLIPS)
        wrong = sum(group.share is not None and group.share < 1 for group in page.groups)
        return f"{wrong:,} wrong"

    @property
    def mismatch(self) -> str:
        """Why the step cannot be compared with the reference step: they were graded differently. "" if it can."""
        before, now = self.rollouts.reference_page, self.rollouts.page
        if self.flips and self.rollouts.reference_problem:
            return self.rollouts.reference_problem
        return difference(before.conditions, now.conditions) if self.flips and before and now else ""

    @property
    def is_filtered(self) -> bool:
        """Whether only groups with a match are listed: not before the first reply."""
        return self.search is not None and self.search.version > 0

    @property
    def listed(self) -> list[Sample]:
        """The samples to save: the matches found in the file, those of the step, or all of the step, as listed."""
        if self.search is not None and self.search.step is None:
            return list(self.search.matches)
        return [one for group in self.groups for one in group.samples if not self.is_filtered or self.is_match(one)]

    def settle(self) -> None:
        """Fit search, groups and cursors to the step, its samples and the choices."""
        self._fit_search()
        page, choices, search = self.rollouts.page, self.choices, self.search
        searched = search.version if search is not None else 0
        made_of = (self.rollouts.version, choices.order, choices.is_reversed, search, searched, self._land, self.flips)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        self.version += 1
        if page is None:
            self._left = (self.group, self.sample) if self.group is not None else self._left
            self.group, self.sample, self.groups = None, None, []
            return
        if page.step != self._step and not self.rollouts.evaluation:
            self.group = self.sample = None
        elif self.group is None:
            self.group, self.sample = self._left  # the same problem at another checkpoint
        self._step = page.step
        wrong_first = bool(self.rollouts.evaluation)
        groups = ordered(page.groups, choices.order, choices.is_reversed, wrong_first=wrong_first)
        if self.flips and self.mismatch:
            groups = []
        elif self.flips and (shares := self.shares) is not None:
            groups = flipped(groups, shares, self.flips)
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
        step = None if self.searches_file else self.step
        if step is None and not self.searches_file:
            self.search = None
            return
        is_other = search is None or (search.where, search.step) != (choices.where, step)
        if is_other or (search is not None and search.is_coarse and not self.rollouts.steps.is_coarse):
            folder = self.rollouts.folder(step) if step is not None else ""
            self.search = RolloutSearch(self.rollouts.run, choices.where, step, self._now, folder)

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
        key = "sample" if self.rollouts.evaluation else "offset"
        same = [one for one in samples if self.sample is not None and one.get(key) == self.sample.get(key)]
        found = same or [one for one in samples if self.is_match(one)] or samples
        self.sample = found[0] if found else None

    # moves ---------------------------------------------------------------------------------------------

    def go_to_step(self, step: int) -> None:
        """Show a step, or the last one before it that has completions."""
        self.follows, self._land = False, None
        if step != self.step:
            self.rollouts.go_to(step)
            self._set_reference()
            self.settle()

    def next_flips(self) -> str:
        """Turn to what the step lost against the evaluated step before it, what it gained, or everything; returns why
        that cannot be."""
        if not self.rollouts.evaluation:
            return "lost and gained problems are shown for evaluations; v turns to one"
        if self.flips == FLIPS[-1]:
            self.flips, self.against, self.is_beside = "", "", False
        else:
            rows, step = self.rollouts.steps.rows, self.step
            before = [row.step for row in rows if step is not None and row.step < step]
            if not before and not self.against:
                return "no evaluated step before this one"
            self.is_beside = self.is_beside or not self.flips  # a lost problem is read against what was right
            self.flips = FLIPS[FLIPS.index(self.flips) + 1] if self.flips else FLIPS[0]
        self._set_reference()
        return ""

    def _set_reference(self) -> None:
        """The evaluated step before the shown one, or the same one of another run."""
        if self.flips and self.against:
            self.rollouts.refer_to(self.step, self.against)
            return
        before = [row.step for row in self.rollouts.steps.rows if self.step is not None and row.step < self.step]
        self.rollouts.refer_to(before[-1] if self.flips and before else None)

    def compare_with(self, run: str, step: int) -> None:
        """Show the problems that an evaluated step lost against the same step of another run."""
        self.against, self.flips, self.is_beside = run, FLIPS[0], True
        self.go_to_step(step)
        self._set_reference()

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

    def tokens_of(self, row: Mapping[str, Any]) -> TokenValues:
        """The tokens of a sample that is shown."""
        return self._tokens.of(row, bool(self.rollouts.evaluation))

    @property
    def tokens(self) -> TokenValues | None:
        """The tokens of the sample under the cursor; None while they are not colored, or it is not known."""
        row = self.rollouts.text(self.shown[0]) if self.choices.tokens and self.shown else None
        return None if row is None or UNREADABLE in row else self.tokens_of(row)

    @property
    def token(self) -> int:
        """The place of the token under its cursor: at first 0 in every sample."""
        place, at = self._token
        return at if self.shown and place == self.shown[0] else 0

    def move_token(self, by: int) -> None:
        """Move the cursor among the tokens."""
        if (found := self.tokens) is not None and found.tokens:
            self._token = (self.shown[0], min(len(found.tokens) - 1, max(0, self.token + by)))

    def next_tokens(self) -> None:
        """Color tokens by the next of MODES. Values that may have been logged since are asked for."""
        self.choices.next_tokens()
        self.follows = False
        for place in self.shown:
            self.rollouts.ask_again(place, "tokens")

    def toggle_mark(self) -> None:
        """Mark the sample under the cursor, or remove its mark."""
        if self.sample is not None:
            self.follows = False
            self.marked = None if self.is_marked(self.sample) else self.rollouts.place(self.sample)
            self.version += 1

    def toggle_beside(self) -> str:
        """Show another sample beside this one, or no longer: the same problem at the reference step, else the marked
        one. Without a mark, one of the group with another reward, else the next one, is marked. Returns why there is
        none."""
        if self.is_beside:
            self.is_beside = False
        elif self.sample is None:
            return "no sample to show"
        else:
            if self._counterpart is None and (self.marked is None or self.is_marked(self.sample)):
                other = self._other()
                if other is None:
                    return "the group has one sample; mark another one with space"
                self.marked = self.rollouts.place(other)
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
        if not self.searches_file or self.step is None:
            return f"no {'further' if by > 0 else 'earlier'} match in this step"
        steps = [step for step in search.steps if (self.step - step) * by > 0]
        if not steps:
            search.go_on()
            return "searching for the next match" if by > 0 and not search.is_done else "no further match in the file"
        self._land = by
        self.rollouts.go_to(max(steps) if by > 0 else min(steps))
        self.settle()
        return ""


WORDS = {"problems": "other problems", "grader": "another grader", "label": "another task"}
"""What a difference means whose values are hashes."""
MOST = 3


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """``max_completion_length 24 against 48, another grader``; "" for the same conditions, or if neither is known."""
    if not before and not now:
        return ""
    if not before or not now:
        return f"the {'first' if not before else 'second'} one does not say how it was graded"
    found = []
    for name in dict.fromkeys([*WORDS, *before, *now]):
        if before.get(name) != now.get(name):
            short = name.removeprefix("decoding.")
            values = f"{short} {_text(before.get(name))} against {_text(now.get(name))}"
            found.append(WORDS.get(name, values))
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + more


def _text(value: Any) -> str:
    return "–" if value is None else one_line(str(value))[:24]


Key = Callable[[str], str]
"""Text of an action's key."""


def instead_of_sample(reader: RolloutReader | None, store: Store, key: Key) -> str:
    """What there is instead of a sample."""
    if reader is None:
        return f"no run selected; {key('home')} lists the runs of this box"
    rollouts = reader.rollouts
    if (problem := rollouts.of_step.problem) and not rollouts.is_empty:
        return f"✖ the completions of this step were not read: {problem}\n\n{rollouts.of_step.again()}"
    if rollouts.evaluation and (rollouts.is_empty or not rollouts.steps.rows):
        return f"the evaluation of {rollouts.dataset} has no completions of this step yet"
    if rollouts.is_empty:
        if store.run and store.run.is_over:
            return store.no_completions
        hint = "they appear with its first step" if store.run and store.run.is_live else ""
        return f"{reader.rollouts.run} has not logged a completion yet" + (f"; {hint}" if hint else "")
    if rollouts.page is None:
        if not store.connected:
            return f"not connected to the box, which has the completions; {key('reconnect')} reconnects"
        return asking_words(rollouts.of_step.waited)
    if reader.flips and not reader.groups:
        return _no_flips(reader, key)
    if reader.search is not None and not reader.groups:
        if problem := reader.search.asking.problem:
            return f"✖ the search failed: {problem}"
        if reader.searches_file:
            return "no match in this step; n goes to the next one"
        return "no sample of this step matches; ctrl+f searches the whole file, esc clears the filter"
    return "this step has no samples"


def _no_flips(reader: RolloutReader, key: Key) -> str:
    if reader.mismatch:
        return (
            f"▲ step {reader.step or 0:,} cannot be compared problem by problem with {reader.reference_name}: "
            f"{reader.mismatch}\n\n{key('eval')} evaluates both with the same settings"
        )
    if reader.shares is None:
        return asking_words(reader.rollouts.of_step.waited)
    if reader.search is not None:
        return f"no problem that was {reader.flips} against {reader.reference_name} matches the filter; esc clears it"
    return f"no problem was {reader.flips} against {reader.reference_name}"
