"""The view of completions: steps, groups, samples, one sample to read; and its requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from grpo_train.history.query import QueryError
from grpo_tui.box.asking import CURSOR_S
from grpo_tui.box.formatting import percent
from grpo_tui.kit.desk import Desk, ShowView
from grpo_tui.kit.save import save_table
from grpo_tui.views.rollouts.lists import GroupsPanel, RewardsPanel, RolloutsLine, SamplesPanel, StepsPanel
from grpo_tui.views.rollouts.model.reader import RolloutChoices, RolloutReader, instead_of_sample
from grpo_tui.views.rollouts.model.rollouts import EvaluationSteps, evaluated_rows, evaluation_names
from grpo_tui.views.rollouts.model.samples import RolloutSearch, sample_table
from grpo_tui.views.rollouts.page import SamplePage, SamplePanel
from grpo_tui.views.view import ViewScreen, bindings_of
from remote.protocol import RemoteError
from remote.protocol.logs import MAX_OFFSETS

if TYPE_CHECKING:
    from grpo_tui.views.rollouts.model.rollouts import Rollouts, StepKey, StepsKey, TextsKey
    from grpo_tui.views.rollouts.model.samples import Sample, SearchKey


async def refresh_steps(app: Desk, rollouts: Rollouts, key: StepsKey, moved: Callable[[], None]) -> None:
    """Request a part of the table of steps."""
    steps = rollouts.steps
    ends = {name: value for name, value in (("low", key.low), ("high", key.high)) if value is not None}
    try:
        steps.answer(key, await app.request("rollout_steps", reply_s=60.0, run=rollouts.run, **ends))
    except RemoteError as error:
        steps.fail(key, error.message)
    moved()


async def refresh_samples(app: Desk, rollouts: Rollouts, key: StepKey, moved: Callable[[], None]) -> None:
    """Request the samples of a step."""
    await asyncio.sleep(CURSOR_S)
    try:
        folder = rollouts.folder(key.step, key.run)
        reply = await app.request("rollout_step", reply_s=60.0, run=key.run, step=key.step, folder=folder)
        rollouts.answer_step(key, reply)
    except RemoteError as error:
        rollouts.fail_step(key, error.message, error.code)
    moved()


async def refresh_texts(app: Desk, rollouts: Rollouts, key: TextsKey, moved: Callable[[], None]) -> None:
    """Request texts of samples."""
    await asyncio.sleep(CURSOR_S)
    folder, offsets, characters = key
    params = {"run": rollouts.run, "folder": folder, "offsets": list(offsets), "characters": characters}
    try:
        reply = await app.request("samples", reply_s=60.0, **params)
        rollouts.answer_texts(key, reply)
    except RemoteError as error:
        rollouts.fail_texts(key, error.message)
    moved()


async def refresh_rollout_search(
    app: Desk, search: RolloutSearch, key: SearchKey, params: dict[str, Any], searched: Callable[[RolloutSearch], bool]
) -> None:
    """Request pages of a search until it ends, rests, or is no longer shown, as ``searched`` says after each."""
    await asyncio.sleep(CURSOR_S)
    following: tuple[SearchKey, dict[str, Any]] | None = (key, params)
    while following is not None:
        key, params = following
        try:
            search.answer(key, await app.request("search_rollouts", reply_s=60.0, **params))
        except RemoteError as error:
            search.fail(key, error.message, error.code)
        following = search.due() if searched(search) else None


async def save_samples(
    app: Desk, rollouts: Rollouts, samples: Sequence[Sample], what: str, say: Callable[[str], None]
) -> None:
    """Save samples as CSV, with the answers and rewards that their list does not have."""
    try:
        table = sample_table(samples, await _details(app, rollouts, samples, say))
        save_table(app, f"{rollouts.evaluation or rollouts.run}_{what}", table, len(samples), "sample")
    except RemoteError as error:
        app.warn(f"{error.message}; E tries again", "not saved")
    finally:
        say("")


async def _details(
    app: Desk, rollouts: Rollouts, samples: Sequence[Sample], say: Callable[[str], None]
) -> list[Mapping[str, Any]]:
    """Each sample as it was logged, without its texts. What is known here is not requested."""
    found: list[Mapping[str, Any]] = [rollouts.details(sample) or {} for sample in samples]
    missing: dict[str, list[int]] = {}
    for at, sample in enumerate(samples):
        if not found[at]:
            missing.setdefault(rollouts.place(sample)[0], []).append(at)
    pages = [
        (folder, places[start : start + MAX_OFFSETS])
        for folder, places in missing.items()
        for start in range(0, len(places), MAX_OFFSETS)
    ]
    for number, (folder, page) in enumerate(pages):
        say(f"saving, {percent(number / len(pages))}")
        offsets = [samples[at]["offset"] for at in page]
        reply = await app.request(
            "samples", reply_s=60.0, run=rollouts.run, folder=folder, offsets=offsets, characters=0
        )
        for at, row in zip(page, reply["samples"], strict=True):
            found[at] = row
    return found


PANES = ("steps", "groups", "samples", "sample")
"""From the outermost to the innermost."""
RUNS_KEPT = 4


class RolloutsScreen(ViewScreen):
    """The completions of the selected run."""

    NAME = "rollouts"
    GOES_TO_STEPS = True
    MAIN = "#steps"
    FILTER_HINT = 'reward<1 truncated text~"wait"; enter applies, esc clears'
    BINDINGS: ClassVar = bindings_of("rollouts")

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.choices = RolloutChoices()
        self.reader: RolloutReader | None = None
        """Where the user reads in the selected run; None without a run."""
        self._readers: OrderedDict[tuple[str, str], RolloutReader] = OrderedDict()
        self._evaluations: dict[str, str] = {}
        """The evaluation that is shown of a run."""
        self._events: tuple[str, int] | None = None
        self._came_from = ""
        """The view that one step out of the outermost pane returns to; "": Home."""
        self._outermost = 0

    @property
    def search(self) -> RolloutSearch | None:
        return self.reader.search if self.reader is not None else None

    def panels(self) -> Iterable[Widget]:
        store = self.store

        def reading() -> RolloutReader | None:
            return self.reader

        source = SamplePage(store, reading, self._message)
        yield RolloutsLine(store, reading, self.choices, id="about")
        yield Horizontal(
            StepsPanel(store, reading, id="steps"),
            Vertical(
                GroupsPanel(store, reading, id="groups"),
                SamplesPanel(store, reading, id="samples"),
                RewardsPanel(store, reading, id="rewards"),
                id="middle",
            ),
            SamplePanel(store, source, reading, id="sample"),
            id="body",
        )

    def box_changed(self) -> None:
        self._readers.clear()
        self.reader = None

    # what is shown -------------------------------------------------------------------------------------

    def update(self) -> None:
        """Follow the selected run and its newest step, and fit the cursors to what is known."""
        self._choose_reader()
        reader = self.reader
        if reader is None:
            return
        events = self.store.log_version("events")
        if events != self._events:
            if self._events is not None and events is not None and events[0] == self._events[0]:
                reader.rollouts.invalidate()  # a resume supersedes steps
            self._events = events
        last = reader.rollouts.steps.last
        if reader.follows and last is not None and reader.step is not None and last != reader.step:
            reader.rollouts.go_to(last)
        reader.settle()
        samples = self.query_one(SamplesPanel)
        height = len(reader.group.samples) + 3 if reader.group is not None else 6
        self._set_height(samples, max(6, min(height, self.size.height * 2 // 5)))
        rewards = self.query_one(RewardsPanel)
        self._set_height(rewards, len(rewards.bars) + 2)
        for place, pane in enumerate(PANES):
            self.set_class(self._place == place, f"-in-{pane}")

    def _choose_reader(self) -> None:
        run = self.store.selected
        if run is None:
            self.reader = None
            return
        key = (run, self._evaluations.get(run, ""))
        if key not in self._readers:
            self._readers[key] = RolloutReader(run, self.choices, evaluation=key[1])
            while len(self._readers) > RUNS_KEPT:
                self._readers.popitem(last=False)
        self._readers.move_to_end(key)
        self.reader = self._readers[key]
        steps = self.reader.rollouts.steps
        if isinstance(steps, EvaluationSteps):
            steps.set(evaluated_rows(self.store.shown, key[1]))

    def _set_height(self, widget: Widget, height: int) -> None:
        if widget is self.maximized:
            widget.styles.height = "1fr"
        elif widget.styles.height is None or widget.styles.height.value != height:
            widget.styles.height = height

    def moved(self) -> None:
        """A cursor moved, or the box answered: update now, and request what is missing."""
        if self.is_mounted and self.is_current:
            self.tick()
            if self.store.connected:
                self.request_data()

    def _message(self) -> str:
        return instead_of_sample(self.reader, self.store, self.app.key)

    def request_data(self) -> None:
        """Request the table of steps, the samples of the step, their texts, and the next matches."""
        reader, app, store = self.reader, self.app, self.store
        if reader is None or reader.rollouts.run != store.selected:
            return
        rollouts, run = reader.rollouts, reader.rollouts.run
        is_live = store.run is not None and store.run.is_live
        if (step := rollouts.step_due()) is not None:
            app.work(f"step of {run}", partial(refresh_samples, app, rollouts, step, self.moved))
        if (steps := rollouts.steps.due(store.step, is_live)) is not None:
            app.work(f"steps of {run}", partial(refresh_steps, app, rollouts, steps, self.moved))
        others = reader.group.samples if reader.group is not None else []
        if (texts := rollouts.texts_request(reader.shown, others)) is not None:
            app.work(f"samples of {run}", partial(refresh_texts, app, rollouts, texts, self.moved))
        if reader.search is not None and (page := reader.search.due()) is not None:
            app.work("search", partial(refresh_rollout_search, app, reader.search, *page, self._searched))

    # panes ---------------------------------------------------------------------------------------------

    @property
    def _place(self) -> int:
        """The pane that has the keys."""
        focused = self.focused.id if self.focused is not None else ""
        return PANES.index(focused) if focused in PANES else 0

    def action_move_pane(self, by: int) -> None:
        """Give the keys to the pane beside."""
        self.query_one(f"#{PANES[min(len(PANES) - 1, max(0, self._place + by))]}").focus()
        if self.reader is not None and by > 0:
            self.reader.follows = False
        self.call_after_refresh(self.tick)

    def _searched(self, search: RolloutSearch) -> bool:
        """The box answered a search; returns whether it is still shown."""
        self.moved()
        return self.search is search and self.app.view == self.NAME

    def open_step(self, step: int | None, evaluation: str = "") -> None:
        """Show a step of the training or of an evaluation, from the charts; None: the newest."""
        self._came_from, self._outermost = "charts", 1
        if self.store.selected is not None:
            self._evaluations[self.store.selected] = evaluation
        self._choose_reader()
        if self.reader is not None and step is not None:
            self.reader.go_to_step(step)
        if self.is_mounted:
            self._enter()

    def open_evaluation(self, step: int) -> str:
        """Show an evaluated step of the selected run; returns why that cannot be."""
        run, shown = self.store.selected, self.store.shown
        names = [
            name for name in evaluation_names(shown) if any(row.step == step for row in evaluated_rows(shown, name))
        ]
        if run is None or not names:
            return f"step_{step} has no evaluation; {self.app.key('eval')} evaluates it"
        if self._evaluations.get(run) not in names:
            self._evaluations[run] = names[0]
        self._came_from, self._outermost = "home", 1
        self._choose_reader()
        if self.reader is not None:
            self.reader.go_to_step(step)
        if self.is_mounted:
            self._enter()
        return ""

    def compare_runs(self, run: str, evaluation: str, step: int, other: str) -> None:
        """Show the problems that an evaluated step of the selected run lost against the same step of another run."""
        self._evaluations[run] = evaluation
        self._came_from, self._outermost = "compare", 1
        self._choose_reader()
        if self.reader is not None:
            self.reader.compare_with(other, step)
        if self.is_mounted:
            self._enter()

    def on_mount(self) -> None:
        self.call_after_refresh(self._enter)  # the base gives the keys to the steps

    def _enter(self) -> None:
        if self._outermost:
            self.query_one(f"#{PANES[self._outermost]}").focus()

    def _shows_two(self, reader: RolloutReader) -> bool:
        """Whether a second sample is on the screen."""
        return reader.is_beside and len(reader.shown) > 1 and self.query_one(SamplePanel).is_seen

    def back(self) -> bool:
        """One step out: an open line, full screen, the second sample, the filter, the pane; at last the charts if the
        view was opened from them."""
        reader = self.reader
        if self.is_asking:
            self.close_go_to()
        elif self.maximized is not None:
            self.action_zoom()
        elif reader is not None and self._shows_two(reader):
            reader.toggle_beside()
        elif self.choices.filter:
            self.choices.set_filter("")
        elif self._place > self._outermost:
            self.action_move_pane(-1)
        elif self._came_from:
            view, self._came_from, self._outermost = self._came_from, "", 0
            self.app.post_message(ShowView(view))
            return True
        else:
            return False
        self.moved()
        return True

    # choices -------------------------------------------------------------------------------------------

    def action_next_order(self) -> None:
        """Sort the groups by spread, mean, length, or log order."""
        self.choices.next_order()
        self.moved()

    def action_reverse_order(self) -> None:
        """Reverse the order of the groups."""
        self.choices.is_reversed = not self.choices.is_reversed
        self.moved()

    def action_toggle_wrap(self) -> None:
        """Wrap or truncate long lines (shift+left and shift+right scroll them)."""
        self.choices.wraps = not self.choices.wraps
        self.moved()
        self.app.receipt("long lines are wrapped" if self.choices.wraps else "long lines are cut")

    def action_next_tokens(self) -> None:
        """Color the tokens of a completion by log-probability, entropy, ratio to the trainer, or clipping."""
        if self.reader is None:
            return
        self.reader.next_tokens()
        self.moved()
        panel, mode = self.query_one(SamplePanel), self.choices.tokens
        if not panel.is_seen:
            key = self.app.key("pane_in")
            self.app.receipt(f"tokens are colored by {mode}; {key} goes to the sample" if mode else "no colored tokens")
        elif (found := self.reader.tokens) is not None and found.tokens:
            panel.focus()  # left and right move the token's cursor

    def action_toggle_prompt(self) -> None:
        """Show all of a long prompt, or its end."""
        self.choices.whole_prompt = not self.choices.whole_prompt
        self.moved()

    def action_search_file(self) -> None:
        """Search the whole file on the box, or only the shown step."""
        if self.reader is not None and self.reader.rollouts.evaluation:
            self.app.warn("each evaluated step has its own file")
            return
        self.choices.is_whole_file = not self.choices.is_whole_file
        if self.choices.is_whole_file and not self.choices.filter:
            self.action_show_filter()
        self.moved()

    def action_next_evaluation(self) -> None:
        """Show the completions of an evaluation, or of training."""
        run = self.store.selected
        names = ["", *evaluation_names(self.store.shown)]
        if run is None or len(names) == 1:
            self.app.warn(f"no evaluated checkpoint; {self.app.key('eval')} evaluates one")
            return
        shown = self._evaluations.get(run, "")
        self._evaluations[run] = names[(names.index(shown) + 1) % len(names)] if shown in names else ""
        self.query_one(self.MAIN).focus()
        self.moved()

    def action_next_flips(self) -> None:
        """Show the problems that a checkpoint lost or gained since the previous one."""
        if self.reader is not None and (problem := self.reader.next_flips()):
            self.app.warn(problem)
        self.moved()

    def action_next_match(self, by: int) -> None:
        """Go to the next (+1) or previous (-1) sample that matches the filter."""
        if self.reader is not None and (problem := self.reader.next_match(by)):
            self.app.warn(problem)
        self.moved()

    def action_toggle_mark(self) -> None:
        """Mark the sample, to compare another one with it."""
        if self.reader is not None:
            self.reader.toggle_mark()
        self.moved()

    def action_toggle_beside(self) -> None:
        """Show the marked sample beside this one; equal beginnings are dimmed."""
        if self.reader is not None and (problem := self.reader.toggle_beside()):
            self.app.warn(problem)
        self.moved()

    def action_follow(self) -> None:
        """Follow the newest step."""
        if self.reader is not None:
            self.reader.follow()
        self.moved()

    def action_copy(self) -> None:
        """Copy prompt and completion of the sample."""
        reader = self.reader
        row = reader.rollouts.text(reader.shown[0]) if reader is not None and reader.shown else None
        if reader is None or row is None or "completion" not in row:
            self.app.warn("no sample to copy")
            return
        number = "" if row.get("sample") is None else f" {row['sample']}"
        self.app.copy(f"{row.get('prompt', '')}{row['completion']}", f"sample{number} of step {reader.step:,}")

    def action_export(self) -> None:
        """Save the listed samples as CSV, on this machine."""
        reader = self.reader
        samples = reader.listed if reader is not None else []
        if reader is None or not samples:
            self.app.warn("nothing to save: no sample is listed")
            return
        what = "matches" if reader.searches_file and reader.search is not None else f"step_{reader.step}"
        self.app.work(
            "export samples", partial(save_samples, self.app, reader.rollouts, samples, what, self.say_saving)
        )

    def say_saving(self, text: str) -> None:
        """Show how far an export is."""
        self.choices.saving = text
        self.moved()

    # the lines below -----------------------------------------------------------------------------------

    def go_to_step(self, step: int) -> None:
        """Show a step, or the last one before it that has completions."""
        if self.reader is not None:
            self.reader.go_to_step(step)
        self.moved()

    @property
    def filter(self) -> str:
        return self.choices.filter

    def set_filter(self, text: str) -> None:
        """Apply a filter; one with a mistake is pointed to, and the last one stays."""
        mistake = None
        try:
            self.choices.set_filter(text)
        except QueryError as error:
            mistake = error
        self.show_mistake(mistake)
        self.moved()

    def filter_closed(self) -> None:
        self.query_one("#groups" if self.choices.filter and not self.choices.is_whole_file else self.MAIN).focus()
