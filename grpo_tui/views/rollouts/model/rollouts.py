"""The completions of a run, or of an evaluation of it, as far as they are known here, and what is to be asked of the
box. No Textual.

The log stays on the box: the table of steps, the samples of a step without their texts, and the texts of the samples
that are shown travel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import SOON_S, Asking
from grpo_tui.views.rollouts.model.samples import Group, Sample, groups_of
from grpo_tui.views.rollouts.model.steps import EvaluationSteps, RolloutSteps
from remote.protocol.index import MAX_OFFSETS, UNREADABLE

PAGES_KEPT = 8
TEXTS_KEPT = 128
CHARACTERS = 131_072
"""Maximum of a text that is shown."""
NEWEST = 1 << 53
"""A step that is after all."""


class StepKey(NamedTuple):
    """A request for the samples of a step."""

    run: str
    step: int
    logged: int
    """Samples that are known to be logged for it."""


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
    count: int = 0
    """Samples of the step, of which ``samples`` may be the first ones."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Of an evaluated step: what it was graded under."""


class Rollouts:
    """What is known of ``rollouts.jsonl``, or of the ``completions.jsonl`` of an evaluation."""

    def __init__(self, run: str, now: Callable[[], float] = monotonic, evaluation: str = "") -> None:
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
        self.reference_run = run
        """The run that has it: this one, or another one that was evaluated on the same dataset."""
        self.reference_problem = ""
        """Why the reference step cannot be read."""
        self.is_empty = False
        """Whether the run has not logged a completion yet."""
        self.version = 0
        self.of_step = Asking(now)
        self.of_texts = Asking(now)
        self._pages: OrderedDict[tuple[str, int], StepPage] = OrderedDict()
        """By run and step."""
        self._texts: OrderedDict[Place, dict[str, Any]] = OrderedDict()
        self._answers: OrderedDict[Place, dict[str, Any]] = OrderedDict()

    @property
    def page(self) -> StepPage | None:
        """The samples of the shown step, if they are known."""
        return None if self.step is None else self._pages.get((self.run, self.step))

    def go_to(self, step: int | None) -> None:
        """Show a step, or the last one before it that has completions; None: the newest."""
        self.step, self.asked = step, None
        if step is not None:
            self.steps.look_at(step)
            if (self.run, step) in self._pages:
                self._pages.move_to_end((self.run, step))
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

    def folder(self, step: Any, run: str = "") -> str:
        """The folder of an evaluated step, of another run if one is named; "" for the run's rollouts."""
        name = f"{run or self.run}_{self.dataset}"
        return f"eval_runs/{name}/step_{int(step)}_{self.dataset}" if self.evaluation else ""

    def place(self, sample: Sample, run: str = "") -> Place:
        """Where a sample is."""
        return self.folder(sample.get("step") or 0, run), int(sample["offset"])

    @property
    def reference_page(self) -> StepPage | None:
        """The samples of the reference step, if they are known."""
        return None if self.reference is None else self._pages.get((self.reference_run, self.reference))

    def refer_to(self, step: int | None, run: str = "") -> None:
        """Choose the reference step; None for none."""
        if (step, run or self.run) != (self.reference, self.reference_run):
            self.reference, self.reference_run, self.reference_problem = step, run or self.run, ""
            self.version += 1

    # the samples of a step -----------------------------------------------------------------------------

    def step_request(self) -> StepKey | None:
        """The step to ask for now."""
        newest = self.steps.last if self.evaluation or self.steps.last is not None else NEWEST
        wanted = [(self.run, self.step if self.step is not None else newest)]
        if not self.reference_problem:
            wanted.append((self.reference_run, self.reference))
        for run, step in wanted:
            if step is None:
                continue
            page, row = self._pages.get((run, step)), self.steps.row(step)
            logged = row.samples if row is not None and not self.evaluation else 0
            if page is None or (logged > page.count and logged != page.logged):
                key = StepKey(run, step, logged)
                return key if self.of_step.begin(key, SOON_S) else None
        return None

    def answer_step(self, key: StepKey, reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``rollout_step``."""
        if not self.of_step.end(key):
            return
        step = int(reply["step"])
        samples = [row for row in reply["samples"] if UNREADABLE not in row]
        before, after = (None if reply[name] is None else int(reply[name]) for name in ("previous", "next"))
        page = self._pages[key.run, step] = StepPage(
            step, samples, groups_of(samples, reply["groups"]), before, after, reply["state"] != "whole", key.logged,
            int(reply.get("count") or len(samples)), reply.get("conditions") or {},
        )  # fmt: skip
        self._pages.move_to_end((key.run, step))
        while len(self._pages) > PAGES_KEPT:
            self._pages.popitem(last=False)
        self.is_empty = self.is_empty and key.run != self.run
        if (key.run, key.step) == (self.reference_run, self.reference):
            self._pages[key.run, key.step] = page
        elif key.run == self.run and self.step != step:
            self.asked = key.step if self.step is not None else None
            self.step = step
            self.steps.look_at(step)
        self.version += 1

    def fail_step(self, key: StepKey, problem: str, code: str) -> None:
        """The box refused, or did not answer."""
        if key.run != self.run:
            self.of_step.end(key)
            self.reference_problem = "it has no completions of this step" if code == "no_step" else problem
        else:
            self.of_step.end(key, problem)
            self.is_empty = code == "no_step"
        self.version += 1

    # texts ---------------------------------------------------------------------------------------------

    def text(self, place: Place) -> dict[str, Any] | None:
        """A sample with its texts, if it is known."""
        return self._texts.get(place)

    def details(self, sample: Sample) -> dict[str, Any] | None:
        """A sample as it was logged, with or without its texts, if it is known."""
        place = self.place(sample)
        return self._texts.get(place) or self._answers.get(place)

    def answer_of(self, sample: Sample) -> str | None:
        """The answer that was read from a sample, if it is known."""
        return (self.details(sample) or {}).get("answer")

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
