"""The line above the rollouts view: what is shown, in which order, filtered how, and how many samples that are."""

from __future__ import annotations

from textual.content import Content

from grpo_tui.model.formatting import shortened
from grpo_tui.model.rollout_groups import order_label
from grpo_tui.model.rollout_reader import RolloutChoices, RolloutReader
from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import Line, link_age
from grpo_tui.widgets.rollout_lists import Reading


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
            label = order_label(choices.order, choices.is_reversed)
            text += Content.from_markup("   [$text-muted]groups by[/] $order", order=label)
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
        total = f"{len(page.samples):,} sample{'' if len(page.samples) == 1 else 's'}"
        if discarded := sum(bool(one.get("discarded")) for one in page.samples):
            total += f", {discarded:,} discarded"
        if page.count > len(page.samples):
            total = f"the first {len(page.samples):,} of {page.count:,} samples"
        return total if search is None else f"{len(search.matches):,} of {total}"
