"""The lists of the rollouts view: steps, prompt groups, samples of a group, rewards of the step; above them, what is
shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.content import Content

from grpo_train.run_dir.display import metric_value
from grpo_train.run_dir.files import to_float
from grpo_tui.box.formatting import Sized, compact_number, counted, one_line, percent, shortened
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import ALL, Cell, TablePanel
from grpo_tui.kit.panel import Line, Panel, link_age
from grpo_tui.views.rollouts.model.reader import RolloutChoices, RolloutReader
from grpo_tui.views.rollouts.model.samples import (
    ORDERS,
    Group,
    Sample,
    histogram,
    order_label,
    reward_of,
    why,
)

BLOCKS = "▁▂▃▄▅▆▇"
"""Without the full one, which would merge with the line above."""
MOST_BLOCKS = 16
"""Of a group's rewards; of more samples, each block is the mean of several."""
NARROW = 34
"""Width below which advantages are left out: the sample has them, too."""

Reading = Callable[[], "RolloutReader | None"]


class RolloutList(TablePanel):
    """A list of one reader; left and right go to the panes beside it."""

    BINDINGS: ClassVar = [("left", "screen.move_pane(-1)"), ("right", "screen.move_pane(1)")]

    def __init__(self, store: Store, reading: Reading, *, id: str) -> None:
        super().__init__(store, id=id)
        self._reading = reading

    @property
    def reader(self) -> RolloutReader | None:
        return self._reading()

    def state(self) -> object:
        reader = self.reader
        version = (reader.version, reader.rollouts.version, reader.rollouts.steps.version) if reader else None
        searched = reader.search.version if reader and reader.search else None
        return (id(reader), version, searched, self.size, self.app.theme, self.has_focus)

    def changed(self) -> None:
        """The cursor moved: the other panes follow."""
        self.screen.moved()  # type: ignore[attr-defined]


class StepsPanel(RolloutList):
    """Steps with completions, newest first; of a search of the whole file, those with a match."""

    @property
    def _found(self) -> list[int] | None:
        """The steps with a match, newest first; None without such a search."""
        reader = self.reader
        if reader is None or reader.search is None or reader.search.step is not None:
            return None
        return sorted(reader.search.steps, reverse=True)

    @property
    def count(self) -> int:
        found = self._found
        return len(found) if found is not None else len(self.reader.rollouts.steps.rows) if self.reader else 0

    @property
    def cursor(self) -> int:
        reader = self.reader
        if reader is None or reader.step is None:
            return -1
        if (found := self._found) is not None:
            return next((index for index, step in enumerate(found) if step <= reader.step), len(found) - 1)
        steps = reader.rollouts.steps
        return len(steps.rows) - 1 - steps.place(reader.step) if steps.rows else -1

    def _step(self, index: int) -> int:
        found = self._found
        assert self.reader is not None
        return found[index] if found is not None else self.reader.rollouts.steps.rows[-1 - index].step

    def move_to(self, index: int, by: int) -> None:
        reader = self.reader
        if reader is None:
            return
        steps = reader.rollouts.steps
        step = self._step(index)
        if abs(by) >= ALL and self._found is None and steps.first is not None and steps.last is not None:
            step = steps.last if by < 0 else steps.first
        reader.go_to_step(step)
        self.changed()

    def refresh_titles(self) -> None:
        reader = self.reader
        words = ""
        if reader is not None:
            steps = reader.rollouts.steps
            if reader.rollouts.evaluation:
                words = f"{steps.total:,} evaluated"
            elif not steps.is_known:
                words = steps.asking.words()
            elif steps.is_coarse:
                words = f"coarse, {percent(steps.progress)}"
            else:
                words = f"{steps.total:,} indexed"
            if steps.skipped:
                words = f"{steps.total:,}; {steps.skipped:,} unreadable"
        self.set_titles("steps", Content(words))

    def columns(self, width: int) -> Sequence[Sized]:
        if self._found is not None:
            return Sized("step", 7, title="step"), Sized("matches", max(8, width - 7), title="matches", gap=0)
        of_evaluation = self.reader is not None and self.reader.rollouts.evaluation
        reward, signal = ("right", "samples") if of_evaluation else ("reward", "signal")
        return (
            Sized("step", 7, title="step"), Sized("reward", 6, title=reward, gap=1), Sized("block", 1, gap=1),
            Sized("signal", max(len(signal), width - 16), title=signal, gap=0),
        )  # fmt: skip

    def cells(self, index: int, columns: Sequence[Sized]) -> Sequence[Cell]:
        reader = self.reader
        assert reader is not None
        if self._found is not None and reader.search is not None:
            step = self._found[index]
            return (f"{step:,}", ""), (f"{reader.search.steps[step]:,}", "")
        row = reader.rollouts.steps.rows[-1 - index]
        signal = f"{row.signal}/{row.groups}" if row.groups else "–"
        if reader.rollouts.evaluation:
            signal = f"{row.samples:,}" if row.samples else ""
        shape = block(row.reward, *self._range())
        return (
            (f"{row.step:,}", ""), (figure(row.reward), ""), (shape, self.app.theme_variables[tone(row.reward)]),
            (signal, self.muted),
        )  # fmt: skip

    def _range(self) -> tuple[float, float]:
        assert self.reader is not None
        steps = self.reader.rollouts.steps
        if self._range_of != (id(steps), steps.version):
            best = [1.0] if self.reader.rollouts.evaluation else []
            ends = [0.0, *best, *(row.reward for row in steps.rows if row.reward is not None)]  # from 0, as the groups
            self._range_of, self._ends = (id(steps), steps.version), (min(ends), max(ends))
        return self._ends

    _range_of: object = None
    _ends: tuple[float, float] = (0.0, 1.0)


class GroupsPanel(RolloutList):
    """The prompts of the step with their rewards."""

    @property
    def count(self) -> int:
        return len(self.reader.groups) if self.reader else 0

    @property
    def cursor(self) -> int:
        reader = self.reader
        if reader is None or reader.group is None:
            return -1
        return next((index for index, group in enumerate(reader.groups) if group is reader.group), -1)

    def move_to(self, index: int, by: int) -> None:
        if self.reader is not None:
            self.reader.choose_group(self.reader.groups[index])
            self.changed()

    def refresh_titles(self) -> None:
        reader = self.reader
        page = reader.rollouts.page if reader else None
        what = "problem" if reader is not None and reader.rollouts.evaluation else "group"
        title = "problems" if what == "problem" else "prompt groups"
        title = title if page is None else f"step {page.step:,} · {title}"
        words = ""
        if reader is not None and page is not None:
            shown, total = len(reader.groups), len(page.groups)
            words = f"{shown:,} of {counted(total, what)}" if shown < total else counted(total, what)
            if sums := reader.sums:
                words = f"{sums} · {words}"
            if discarded := sum(group.is_discarded for group in reader.groups):
                words += f", {discarded:,} discarded (×)"
            if page.count > len(page.samples):
                words = f"▲ {len(page.samples):,} of {page.count:,} samples · {words}"
        self.set_titles(Content(title), Content(words))

    def empty(self) -> Text:
        reader = self.reader
        if reader is not None and reader.rollouts.is_empty and not reader.rollouts.evaluation:
            return Text(self.store.no_completions)
        if reader is None or reader.rollouts.page is None:
            return Text(reader.rollouts.of_step.words() if reader else "")
        if reader.flips:
            if reader.mismatch:
                return Text("▲ not comparable")
            if reader.shares is None:
                return Text(reader.rollouts.of_step.words())
            return Text("none of them matches" if reader.search is not None else f"nothing was {reader.flips}")
        return Text("no match in this step" if reader.search and reader.search.is_done else "searching")

    def columns(self, width: int) -> Sequence[Sized]:
        if self._shares is not None:
            then, now = ("other", "this") if self.reader and self.reader.against else ("before", "now")
            problem = Sized("problem", max(4, width - 14), title="problem", is_left=True)
            return problem, Sized("then", 6, title=then, gap=1), Sized("now", 6, title=now, gap=1)
        blocks = self._blocks(width)
        return (
            Sized("prompt", max(4, width - 9 - blocks), title="prompt", is_left=True),
            Sized("mean", 6, title="mean", gap=1), Sized("rewards", 0, title="rewards"[:blocks]),
        )  # fmt: skip

    @property
    def _shares(self) -> Mapping[int | None, float] | None:
        """Of problems whose answers were compared."""
        return self.reader.shares if self.reader is not None and self.reader.flips else None

    def cells(self, index: int, columns: Sequence[Sized]) -> Sequence[Cell]:
        reader = self.reader
        assert reader is not None
        group, width = reader.groups[index], columns[0].width
        prompt = one_line(group.prompt) or ("no group" if group.number is None else f"group {group.number}")
        text = Text(f"× {prompt}" if group.is_discarded else prompt)
        text.truncate(width, overflow="ellipsis", pad=True)
        if (shares := self._shares) is not None:
            return text, (figure(shares.get(group.number)), ""), (figure(group.share), "")
        blocks = rewards_as_blocks(group, self._blocks(self.scrollable_content_region.width - 1), *self._range(reader))
        colors = self.app.theme_variables
        return text, (figure(group.mean), ""), Text.assemble(*((each, colors[tone(value)]) for each, value in blocks))

    def line(self, index: int, width: int) -> Text:
        text = super().line(index, width)
        if self.reader is not None and self.reader.groups[index].is_discarded and self._shares is None:
            text.stylize(self.muted)
        return text

    def _blocks(self, width: int) -> int:
        reader = self.reader
        most = max((len(group.samples) for group in reader.groups), default=1) if reader else 1
        return max(1, min(most, MOST_BLOCKS, width // 4))

    @staticmethod
    def _range(reader: RolloutReader) -> tuple[float, float]:
        page = reader.rollouts.page
        groups = page.groups if page is not None else []
        ends = [end for group in groups if group.rewards for end in (min(group.rewards), max(group.rewards))]
        return min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)


class SamplesPanel(RolloutList):
    """The samples of the group under the cursor."""

    @property
    def _samples(self) -> list[Sample]:
        return self.reader.group.samples if self.reader and self.reader.group else []

    @property
    def count(self) -> int:
        return len(self._samples)

    @property
    def cursor(self) -> int:
        reader = self.reader
        return next((i for i, one in enumerate(self._samples) if reader and one is reader.sample), -1)

    def move_to(self, index: int, by: int) -> None:
        if self.reader is not None:
            self.reader.choose_sample(self._samples[index])
            self.changed()

    def refresh_titles(self) -> None:
        reader = self.reader
        words = ""
        if reader is not None and reader.marked is not None:
            words = f"1 marked (*): {self.key('side_by_side')} compares"
        self.set_titles("samples of the group", Content(words))

    def columns(self, width: int) -> Sequence[Sized]:
        advantage = Sized("advantage", 6, title="adv", gap=1)
        return (
            Sized("number", max(2, len(str(len(self._samples)))), title="#"), Sized("reward", 6, title="reward", gap=1),
            *([advantage] if width + self.margin >= NARROW else []), Sized("length", 5, title="len", gap=1),
            Sized("why", 0, title="why"),
        )  # fmt: skip

    @property
    def margin(self) -> int:
        return 3

    def before(self, index: int) -> Text:
        reader, one, colors = self.reader, self._samples[index], self.app.theme_variables
        assert reader is not None
        text = Text(no_wrap=True)
        text.append("*" if reader.is_marked(one) else " ", style=f"bold {colors['accent']}")
        return text.append("/ " if reader.is_match(one) else "  ", style=f"bold {colors['warning']}")

    def cells(self, index: int, columns: Sequence[Sized]) -> Sequence[Cell]:
        reader, one, colors = self.reader, self._samples[index], self.app.theme_variables
        assert reader is not None
        style = colors["grpo-muted"] if reader.is_filtered and not reader.is_match(one) else ""
        tone = "success" if one.get("correct") else "warning" if one.get("truncated") else ""
        number, length = one.get("sample"), one.get("length")
        texts = {
            "number": "–" if number is None else str(number), "reward": figure(reward_of(one)),
            "advantage": advantage(one), "length": "–" if length is None else str(length),
            "why": one_line(why(one, reader.rollouts.answer_of(one))),
        }  # fmt: skip
        tones = {"why": colors[tone]} if tone and not style else {}
        return [(texts[column.id], tones.get(column.id, style)) for column in columns]


class RewardsPanel(Panel):
    """How often each reward occurs among the samples of the step."""

    can_focus = False

    def __init__(self, store: Store, reading: Reading, *, id: str) -> None:
        super().__init__(store, id=id)
        self._reading = reading

    def state(self) -> object:
        reader = self._reading()
        page = reader.rollouts.page if reader else None
        return (id(page), self.size, self.app.theme)

    def refresh_titles(self) -> None:
        self.set_titles("rewards of the step")

    @property
    def bars(self) -> list[tuple[str, int]]:
        reader = self._reading()
        page = reader.rollouts.page if reader else None
        return histogram(page.samples) if page is not None else []

    def render(self) -> Content:
        bars = self.bars
        labels = max((len(label) for label, _ in bars), default=0)
        most = max((count for _, count in bars), default=1)
        counts = len(f"{most:,}")
        room = max(1, self.size.width - labels - counts - 3)
        lines = []
        for label, count in bars:
            halves = round(2 * room * count / most)
            filled = "━" * (halves // 2) + "╸" * (halves % 2)  # thinner than a line: full ones do not merge
            value = -1.0 if label[0] == "-" else float(label[0].isdigit() and label != "0")
            lines.append(
                Content.from_markup(
                    f"$label [${tone(value)}]$filled[/] $count",
                    label=f"{label:>{labels}}", filled=f"{filled:<{room}}", count=f"{count:>{counts},}",
                )
            )  # fmt: skip
        return Content("\n").join(lines)


def figure(value: float | None, sign: str = "") -> str:
    """A reward in at most six cells: ``0.500``."""
    if value is None:
        return "–"
    text = f"{sign if value > 0 else ''}{metric_value(value)}"
    return text if len(text) <= 6 else compact_number(value, 6)[:6]


def advantage(sample: Sample) -> str:
    """``+1.500``"""
    return figure(to_float(sample.get("advantage")), "+")


def block(value: float | None, low: float, high: float) -> str:
    """A value as a block of one of several heights."""
    if value is None or not low <= value <= high:
        return " "
    share = (value - low) / (high - low) if high > low else 0.0
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def tone(reward: float | None) -> str:
    """The variable of the theme for a reward: 0 is not good."""
    return "grpo-muted" if not reward else "chart-reward" if reward > 0 else "error"


def rewards_as_blocks(group: Group, width: int, low: float, high: float) -> list[tuple[str, float | None]]:
    """The rewards of a group's samples, with what each block stands for; ``?`` is one without a finite reward. Of more
    than ``width``, some in even distance, the first and the last among them: a mean would be a reward that none has."""
    rewards = [reward_of(one) for one in group.samples]
    if len(rewards) > width:
        rewards = [rewards[round(i * (len(rewards) - 1) / max(1, width - 1))] for i in range(width)]
    return [("?" if (text := block(value, low, high)) == " " else text, value) for value in rewards]


class RolloutsLine(Line):
    """One line: step, order, filter, how many samples."""

    def __init__(self, store: Store, reading: Reading, choices: RolloutChoices, *, id: str) -> None:
        super().__init__(store, id=id)
        self._reading, self._choices = reading, choices

    def state(self) -> object:
        return (self.render(), self.size.width)

    def render(self) -> Content:
        reader, choices = self._reading(), self._choices
        text = Content.from_markup("[bold $primary]rollouts[/]")
        if reader is None:
            return text
        if reader.rollouts.evaluation:
            text = Content.from_markup(
                "[bold $primary]evaluation[/] [$text-muted]of[/] $name", name=reader.rollouts.dataset
            )
        if reader.step is not None:
            text += Content.from_markup("   [$text-muted]step[/] $step", step=f"{reader.step:,}")
            if reader.rollouts.asked is not None:
                text += Content.from_markup("[$text-muted], the last one with completions at $asked[/]",
                                            asked=f"{reader.rollouts.asked:,}")  # fmt: skip
            elif reader.follows and not reader.rollouts.evaluation:
                text += Content.from_markup("[$text-muted] (following)[/]")
        if reader.flips:
            against = f"{reader.flips} against {shortened(reader.reference_name, 36)}"
            text += Content.from_markup("   [$text-muted]problems[/] $against", against=against)
        else:
            is_evaluation = bool(reader.rollouts.evaluation)
            label = order_label(choices.order, choices.is_reversed, wrong_first=is_evaluation)
            what = "problems" if is_evaluation else "groups"
            by = "" if is_evaluation and choices.order == ORDERS[0] else " by"
            text += Content.from_markup(f"   [$text-muted]{what}{by}[/] $order", order=label)
        if choices.filter:
            where = " in the whole file" if reader.searches_file else ""
            text += Content.from_markup(
                "   [$warning]/$filter[/][$text-muted]$where[/]", filter=choices.filter, where=where
            )
        if choices.saving:
            text += Content.from_markup("   [$warning]$saving[/]", saving=choices.saving)
        count = Content.from_markup("[$text-muted]$count[/]", count=self._count(reader))
        if not self.store.connected:
            count = Content.from_markup("[$error]$link[/]  ", link=link_age(self.store).text) + count
        gap = self.size.width - 2 - text.cell_length - count.cell_length
        return text + Content(" " * gap) + count if gap > 0 else text

    @staticmethod
    def _count(reader: RolloutReader) -> str:
        page, search = reader.rollouts.page, reader.search
        if search is not None and (search.step is None or not search.is_done or search.asking.problem):
            return search.words()
        if page is None:
            return reader.rollouts.of_step.words()
        total = counted(len(page.samples), "sample")
        if discarded := sum(bool(one.get("discarded")) for one in page.samples):
            total += f", {discarded:,} discarded"
        if page.count > len(page.samples):
            total = f"the first {len(page.samples):,} of {page.count:,} samples"
        return total if search is None else f"{len(search.matches):,} of {total}"
