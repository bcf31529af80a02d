"""The forms of backups: what is backed up where, restored from what, and archived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.app import ComposeResult
from textual.widgets import Select

from grpo_train.run_dir.display import duration
from grpo_tui.forms.form import FieldError, Request, RequestScreen, field, text_field
from grpo_tui.model.formatting import byte_size
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.stored_runs import StoredRun
from grpo_tui.model.tasks import RequestFunction
from remote.protocol.backups import ArchiveRequest, BackUpRequest, RestoreRequest

LIST = "list"
WHOLE_RUN = "run"


class _StepsScreen(RequestScreen):
    """A form with a choice of steps, one of which is a list that is typed."""

    def compose_steps(self, choices: Sequence[tuple[str, str]]) -> ComposeResult:
        rows = [*choices, ("a list of steps …", LIST)]
        yield from field("steps", Select(rows, id="steps", compact=True, value=rows[0][1], allow_blank=False))
        yield from text_field("", "list", "step numbers separated by commas, e.g. 10,20")

    def on_mount(self) -> None:
        super().on_mount()
        self.show_row("list", False)
        self.focus_button_when_ready()

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.select.id == "steps":
            self.show_row("list", event.value == LIST)
        super().on_select_changed(event)

    def chosen_steps(self) -> str:
        """The steps, as the engine takes them. Raises FieldError."""
        steps = self.selected("steps")
        if steps != LIST:
            return steps
        words = self.value("list").replace(",", " ").split()
        if not words or not all(word.isascii() and word.isdecimal() for word in words):
            raise FieldError("steps: enter step numbers separated by commas, e.g. 10,20")
        return ",".join(dict.fromkeys(str(int(word)) for word in words))

    def selected(self, field: str) -> str:
        return str(self.query_one(f"#{field}", Select).value)


def destination_field(destinations: Sequence[dict[str, Any]]) -> ComposeResult:
    """The choice of a destination; the first is the default."""
    choices = [(f"{each['name']}  {each.get('where', '')}".rstrip(), str(each["name"])) for each in destinations]
    yield from field("destination", Select(choices, id="to", compact=True, value=choices[0][1], allow_blank=False))


class BackUpScreen(_StepsScreen):
    """Dismissed with the box's reply."""

    VERB, OPERATION = "Back up", "back_up"

    def __init__(self, request: RequestFunction, run: str, destinations: list[dict[str, Any]]) -> None:
        super().__init__(request, f"back up {run}")
        self.run_name, self.destinations = run, destinations

    def compose_fields(self) -> ComposeResult:
        yield from destination_field(self.destinations)
        yield from self.compose_steps(
            [
                ("all checkpoints that are not in the backup yet", "all"),
                ("the latest checkpoint", "latest"),
                ("the final checkpoint", "final"),
            ]
        )

    def build_request(self) -> Request:
        return BackUpRequest(self.run_name, self.chosen_steps(), self.selected("to"))


class ArchiveScreen(RequestScreen):
    """Dismissed with the box's reply. A live run can only have checkpoints archived."""

    VERB, OPERATION = "Archive", "archive"

    def __init__(
        self, request: RequestFunction, row: RunRow, steps: list[int], destinations: list[dict[str, Any]]
    ) -> None:
        super().__init__(request, f"archive {row.name}")
        self.row, self.steps, self.destinations = row, steps, destinations

    def compose_fields(self) -> ComposeResult:
        choices = [("the run: it moves to archive/completed_runs", WHOLE_RUN)] if self.row.is_over else []
        choices += [
            (f"a copy of step {step}, in archive/important_checkpoints", str(step)) for step in self.steps[::-1]
        ]
        yield from field("what", Select(choices, id="what", compact=True, value=choices[0][1], allow_blank=False))
        yield from text_field("note", "note", "why it is kept")
        yield from destination_field(self.destinations)

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#what").focus()

    def build_request(self) -> Request:
        what = str(self.query_one("#what", Select).value)
        step = None if what == WHOLE_RUN else int(what)
        return ArchiveRequest(self.row.name, step, self.value("note"), str(self.query_one("#to", Select).value))

    async def check(self, request: Request) -> str:
        assert isinstance(request, ArchiveRequest)
        moves = "the run leaves this list and can be restored" if request.step is None else "the run stays as it is"
        return f"backed up to {request.to} and read back first; {moves}"


class RestoreScreen(_StepsScreen):
    """Dismissed with the box's reply."""

    VERB, OPERATION = "Restore", "restore"

    def __init__(self, request: RequestFunction, stored: StoredRun) -> None:
        super().__init__(request, f"restore {stored.name}")
        self.stored = stored

    def compose_fields(self) -> ComposeResult:
        choices = [("the newest complete one", "")]
        for snapshot in self.stored.usable:
            saved = f"step {snapshot.steps[-1]}" if snapshot.steps else "logs"
            age = f"{duration(snapshot.age_s)} old"
            text = f"{snapshot.number}: {saved}, {byte_size(snapshot.bytes)}, {age}, {snapshot.run_state}"
            choices.append((text.rstrip(", "), str(snapshot.number)))
        yield from field("snapshot", Select(choices, id="snapshot", compact=True, value="", allow_blank=False))
        yield from self.compose_steps(
            [
                ("all checkpoints", "all"),
                ("the latest checkpoint", "latest"),
                ("none: logs, configuration and evaluations", "logs"),
            ]
        )
        own = "its own name: missing checkpoints are added" if self.stored.here else f"its own name: {self.stored.name}"
        yield from text_field("as", "as-name", own)
        resumes = [("no", "no"), ("yes, unless it was training elsewhere minutes ago", "yes")]
        yield from field("then resume", Select(resumes, id="resume", compact=True, value="no", allow_blank=False))

    def build_request(self) -> Request:
        number = self.selected("snapshot")
        return RestoreRequest(
            self.stored.full_name,
            self.stored.destination,
            int(number) if number else None,
            self.chosen_steps(),
            self.value("as-name"),
            self.selected("resume") == "yes",
        )

    async def check(self, request: Request) -> str:
        assert isinstance(request, RestoreRequest)
        if request.resume and request.steps == "logs":
            raise FieldError("then resume: needs a checkpoint; restore the latest one")
        if request.as_name:
            return f"a separate run {request.as_name}, without evaluations; every byte is hashed"
        what = "completes the run on this box" if self.stored.here else "with its evaluations"
        return f"{what}; every byte is hashed"
