"""The checkpoints that nothing needs, by run: what they take, and where they are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from grpo_tui.model.asking import ENGINE_S
from grpo_tui.model.formatting import byte_size, one_line, padded, shortened
from grpo_tui.model.spare import SpareRun, spare_runs
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.waiting import WaitingLine

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


LISTED = 500


class SpareScreen(Dialog[None]):
    """Lists them; ``y`` copies the paths of those of the run under the cursor. Nothing is removed from here."""

    heading = "checkpoints that can go"
    BINDINGS: ClassVar = [Binding("y", "copy", show=False)]

    def __init__(self, root: str) -> None:
        super().__init__()
        self.root = root
        self.runs: list[SpareRun] = []

    def compose_body(self) -> ComposeResult:
        yield WaitingLine(id="about")
        yield OptionList(id="choices")
        yield Static("", id="spare-paths", classes="command")
        note = "kept: the last, the best evaluated, milestones, and what an evaluation or a run uses · y or enter: copy"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy the paths", id="copy", variant="primary", compact=True)

    def on_mount(self) -> None:
        self._show_found(False)
        self.app.work("spare checkpoints", partial(self._request, self.app))
        self.query_one("#cancel").focus()

    def _show_found(self, found: bool) -> None:
        for name in ("#choices", "#spare-paths", "#copy"):
            self.query_one(name).display = found

    async def _request(self, app: Desk) -> None:
        asked = app.request("spare_checkpoints", timeout=ENGINE_S)
        reply = await self.query_one(WaitingLine).wait(asked, failed="not listed: ")
        if reply is not None and self.is_mounted:
            self._fill(reply)

    def _fill(self, reply: dict[str, Any]) -> None:
        self.runs = spare_runs(reply["spare"])
        count, size = sum(len(run.steps) for run in self.runs), sum(run.size for run in self.runs)
        if self.runs:
            text = Content.from_markup(
                "[bold]$size[/] in $count checkpoints of $runs",
                size=byte_size(size), count=f"{count:,}",
                runs=f"{len(self.runs):,} runs" if len(self.runs) > 1 else "one run",
            )  # fmt: skip
        else:
            text = Content("no checkpoint can go: each is the last, the best evaluated, a milestone or in use")
        if more := int(reply["more"]):
            text += Content.from_markup("[$warning]; $more more are not listed[/]", more=f"{more:,}")
        for problem in reply["problems"][:3]:
            text += Content.from_markup("\n[$warning]▲ $problem[/]", problem=one_line(problem))
        self.query_one(WaitingLine).update(text)
        self._show_found(bool(self.runs))
        if self.runs:
            choices = self.query_one(OptionList)
            choices.add_options(Option(self._line(run)) for run in self.runs[:LISTED])
            choices.highlighted = 0
            choices.focus()

    def _line(self, run: SpareRun) -> Content:
        room = min(self.app.size.width, 96) - 8
        name = max(12, room * 2 // 5)
        return Content.from_markup(
            "$name  [bold]$size[/]  [$grpo-muted]$steps[/]",
            name=padded(shortened(run.name, name), name), size=f"{byte_size(run.size):>6}",
            steps=f"steps {run.ranges()}",
        )  # fmt: skip

    @property
    def current(self) -> SpareRun | None:
        at = self.query_one(OptionList).highlighted
        return self.runs[at] if at is not None and at < len(self.runs) else None

    def on_option_list_option_highlighted(self) -> None:
        if (run := self.current) is not None:
            paths = self.query_one("#spare-paths", Static)
            paths.border_title = "on the box"
            paths.update(Content(run.paths(self.root)))

    def on_option_list_option_selected(self) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        """Copy the paths of the checkpoints of the run under the cursor."""
        if (run := self.current) is not None:
            self.app.copy(run.paths(self.root), f"paths of {len(run.steps)} checkpoints")

    def chosen(self, button: str) -> None:
        self.action_copy()
