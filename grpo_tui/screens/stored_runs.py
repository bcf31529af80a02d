"""The runs that a destination holds, to choose one to restore."""

from __future__ import annotations

from typing import Any

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, OptionList, Select
from textual.widgets.option_list import Option

from grpo_tui.forms.backups import destination_field
from grpo_tui.model.asking import ENGINE_S
from grpo_tui.model.formatting import byte_size, one_line, padded, short_age, shortened
from grpo_tui.model.stored_runs import SHOWN_KINDS, StoredRun, stored_runs
from grpo_tui.model.tasks import RequestFunction
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.waiting import WaitingLine

LISTED = 1_000


class StoredRunsScreen(Dialog[StoredRun]):
    """Dismissed with a run that can be restored."""

    heading = "restore a run from a backup"

    def __init__(self, request: RequestFunction, destinations: list[dict[str, Any]]) -> None:
        super().__init__()
        self.request, self.destinations = request, destinations
        self.runs: list[StoredRun] = []
        self._source = ""
        """The destination that was asked last."""

    def compose_body(self) -> ComposeResult:
        yield from destination_field(self.destinations)
        yield WaitingLine(id="about")
        yield OptionList(id="choices")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Choose", id="choose", variant="primary", compact=True)

    def on_mount(self) -> None:
        self._show_found([])
        self.query_one("#cancel").focus()
        self.call_after_refresh(self.app.release_keys)
        self.load()

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.value != self._source:
            self.load()

    @work(exclusive=True, group="stored", exit_on_error=False, description="listing backups")
    async def load(self) -> None:
        """List the runs of the chosen destination."""
        source = self._source = str(self.query_one("#to", Select).value)
        self._show_found([])
        about = self.query_one(WaitingLine)
        reply = await about.wait(self.request("list_backups", timeout=ENGINE_S, source=source))
        if reply is None:
            return
        found = stored_runs(reply["backups"], source)
        count = "no run" if not found else "one run" if len(found) == 1 else f"{len(found):,} runs"
        about.update(Content.from_markup(f"{count}[$grpo-muted]; those that are not on this box come first[/]"))
        self._show_found(found)

    def _show_found(self, found: list[StoredRun]) -> None:
        self.runs = found[:LISTED]
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(Option(self._line(run), disabled=bool(run.problem)) for run in self.runs)
        choices.display = bool(found)
        self.query_one("#choose", Button).disabled = not any(not run.problem for run in self.runs)
        if found:
            choices.highlighted = next((index for index, run in enumerate(self.runs) if not run.problem), None)
            choices.focus()

    def _line(self, run: StoredRun) -> Content:
        room = min(self.app.size.width, 96) - 8
        width = max(12, room * 2 // 5)
        newest = run.newest
        if newest is None:
            facts = run.problem
        else:
            saved = f"step {newest.steps[-1]}" if newest.steps else "logs"
            facts = f"{saved:<11}{byte_size(newest.bytes):>7}  {short_age(newest.age_s):>4}"
        notes = [SHOWN_KINDS.get(run.kind, ""), "on this box" if run.here else "", "same disk" if run.same_disk else ""]
        return Content.from_markup(
            "$name  $facts  [$grpo-muted]$notes[/]",
            name=padded(shortened(run.name, width), width), facts=one_line(facts) if newest is None else facts,
            notes=", ".join(note for note in notes if note),
        )  # fmt: skip

    def on_option_list_option_selected(self) -> None:
        self.chosen("choose")

    def chosen(self, button: str) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self.runs) and not self.runs[at].problem:
            self.dismiss(self.runs[at])
