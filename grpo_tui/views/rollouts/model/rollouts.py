"""What the rollouts view shows: steps, the groups of one, and where the reader is. No Textual.

The log stays on the box: the table of steps, the samples of a step without their texts, and the texts of the samples
that are shown travel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_tui.box.asking import LIVE_S, SOON_S, Asking, monotonic
from grpo_tui.views.rollouts.model.samples import Group, Sample, groups_of
from remote.protocol.logs import MAX_OFFSETS, UNREADABLE, StepTable

PAGE = 1_000
"""Steps of one request."""
NEAR = 100
"""Steps from the end of the part that is known to the cursor at which more are requested."""


class StepsKey(NamedTuple):
    """A request for the steps of a range."""

    kind: str
    """``all`` (what is known, anew), ``newer``, ``page`` (next to what is known) or ``jump``."""
    low: int | None
    high: int | None = None


class StepRow(NamedTuple):
    """A step with completions."""

    step: int
    samples: int
    reward: float | None
    """Mean; None without a reward."""
    groups: int
    signal: int
    """Groups whose rewards differ."""


class RolloutSteps:
    """The table of steps, and what is to be asked of the box for it."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.rows: list[StepRow] = []
        """In order, without gaps once the index is whole."""
        self.first: int | None = None
        """First and last step of the file; None without one."""
        self.last: int | None = None
        self.total = 0
        self.skipped = 0
        """Lines of the file that cannot be read."""
        self.progress = 0.0
        self.is_coarse = True
        self.is_known = False
        """Whether the box has answered."""
        self.version = 0
        self.asking = Asking(now)
        self._renew = False
        self._wanted: StepsKey | None = None

    # questions -----------------------------------------------------------------------------------------

    def place(self, step: int) -> int:
        """Index of the last row that is not after a step; 0 if there is none."""
        return max(0, bisect_left(self.rows, step + 1, key=lambda row: row.step) - 1)

    def row(self, step: int) -> StepRow | None:
        index = self.place(step)
        return self.rows[index] if self.rows and self.rows[index].step == step else None

    # requests ------------------------------------------------------------------------------------------

    def invalidate(self) -> None:
        """The file may have changed before its end: ask anew for what is known."""
        self._renew = True

    def look_at(self, step: int) -> None:
        """Request the rows around a step if they are not known."""
        if self.is_coarse or not self.rows or self.first is None or self.last is None:
            return
        low, high = self.rows[0].step, self.rows[-1].step
        place = self.place(step)
        self._wanted = None
        if not low - PAGE <= step <= high + PAGE:
            self._wanted = StepsKey("jump", step - PAGE // 2, step + PAGE // 2)
        elif place < NEAR and low > self.first:
            self._wanted = StepsKey("page", low - PAGE, low - 1)
        elif place >= len(self.rows) - NEAR and high < self.last:
            self._wanted = StepsKey("page", high + 1, high + PAGE)

    def due(self, newest: int, is_live: bool) -> StepsKey | None:
        """The request to send now; ``newest`` is about the last step of the run."""
        every: float | None = None
        if self.is_coarse or self._renew or not self.rows:
            low = self.rows[0].step if self.rows else (newest if self.last is None else self.last) - PAGE
            key = StepsKey("all", low if low > 0 else None)
            every = SOON_S if self.is_known and self.is_coarse else LIVE_S if is_live else None
            if self._renew and not self.is_coarse:
                every = 0.0
        elif self._wanted is not None:
            key = self._wanted
        else:
            key, every = StepsKey("newer", self.rows[-1].step if self._is_at_end else self.last), LIVE_S
            if not is_live or not self.asking.is_due(every):
                return None
        return key if self.asking.begin(key, every) else None

    @property
    def _is_at_end(self) -> bool:
        return bool(self.rows) and self.rows[-1].step == self.last

    def answer(self, key: StepsKey, reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``rollout_steps``."""
        if not self.asking.end(key):
            return
        was_at_end = self._is_at_end
        self.is_known, self.version = True, self.version + 1
        self.is_coarse, self.progress = reply["state"] != "whole", reply["progress"]
        self.total, self.skipped = int(reply["total"]), int(reply["skipped"])
        self.first, self.last = (
            None if reply[name] is None else int(reply[name]) for name in ("first_step", "last_step")
        )
        found = _rows(reply["table"])
        if key.kind in ("all", "jump"):
            self.rows, self._renew = found, False
        elif key.kind == "page":
            is_before = self.rows and found and found[0].step < self.rows[0].step
            self.rows = found + self.rows if is_before else self.rows + found
        elif was_at_end and found:
            is_next = found[0].step == self.rows[-1].step  # else more are new than fit into a reply
            self.rows = self.rows[:-1] + found if is_next else found
        if key == self._wanted:
            self._wanted = None

    def fail(self, key: StepsKey, problem: str) -> None:
        """The box did not answer."""
        self.asking.end(key, problem)
        self.version += 1


class EvaluationSteps(RolloutSteps):
    """The evaluated steps of a run: they are in what the box says about the run, and nothing is asked for."""

    def look_at(self, step: int) -> None:
        pass

    def due(self, newest: int, is_live: bool) -> StepsKey | None:
        return None

    def set(self, rows: list[StepRow]) -> None:
        """The steps, in order."""
        if rows != self.rows or not self.is_known:
            self.rows, self.total, self.is_coarse, self.is_known = rows, len(rows), False, True
            self.first, self.last = (rows[0].step, rows[-1].step) if rows else (None, None)
            self.version += 1


def evaluation_names(shown: Mapping[str, Any]) -> list[str]:
    """The evaluations with results in a ``show_run`` reply."""
    return [str(one["name"]) for one in shown.get("evaluations") or () if evaluated_rows(shown, one["name"])]


def evaluated_rows(shown: Mapping[str, Any], name: str) -> list[StepRow]:
    """The steps of an evaluation that have results, in order, with their accuracy."""
    rows = {}
    for one in shown.get("evaluations") or ():
        for row in (one.get("metrics") or ()) if one["name"] == name else ():
            step, accuracy = _figure(row.get("step")), _figure(row.get("accuracy"))
            if step is not None and step >= 0 and accuracy is not None:
                rows[int(step)] = StepRow(int(step), int(_figure(row.get("n")) or 0), accuracy, 0, 0)
    return [rows[step] for step in sorted(rows)]


def _figure(cell: Any) -> float | None:
    """The number in a cell of a table, which is text."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if abs(value) < 1e15 else None


def _rows(table: StepTable) -> list[StepRow]:
    columns = zip(table.step, table.samples, table.scored, table.reward, table.groups, table.signal, strict=True)
    return [
        StepRow(int(step), int(samples), reward if scored else None, int(groups), int(signal))
        for step, samples, scored, reward, groups, signal in columns
    ]


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

    def step_due(self) -> StepKey | None:
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

    def ask_again(self, place: Place, field: str) -> None:
        """Forget a sample of the training whose field has not been logged yet."""
        if not self.evaluation and field not in self._texts.get(place, {field: ""}):
            del self._texts[place]
            self.version += 1

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
