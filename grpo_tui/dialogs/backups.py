"""Dialogs of backups: forms, stored runs, the plan of a cleanup, what forbids the end of a box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Button, OptionList, Select, Static
from textual.widgets.option_list import Option

from grpo_train.run_dir.display import duration
from grpo_tui.background import refresh_termination
from grpo_tui.box.asking import ENGINE_S
from grpo_tui.box.backups import (
    NOTHING,
    SHOWN_KINDS,
    CleanUpPlan,
    StoredRun,
    cleanup_plan,
    first_reason,
    is_without_runs,
    stored_runs,
    unsent_runs,
)
from grpo_tui.box.formatting import byte_size, counted, one_line, padded, short_age, shortened
from grpo_tui.box.rows import RunRow
from grpo_tui.dialogs.form import FieldError, Request, RequestFunction, RequestScreen, field, text_field
from grpo_tui.kit.dialog import ConfirmDialog, Dialog, TextDialog
from grpo_tui.kit.panel import WaitingLine
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


HOW_ALL = (
    "Runs, evaluations and sweeps one after the other, in tmux on the box: the app may be closed. Runs that train "
    "continue. The list of runs shows the progress of each."
)


class BackUpAllScreen(ConfirmDialog):
    """Asks the engine what a backup of all runs would send; enter starts it then."""

    heading, TONE = "back up all runs", "-warning"

    def __init__(self, request: RequestFunction, to: dict[str, Any], box: str) -> None:
        super().__init__()
        self.request, self.to, self.box = request, to, box

    def compose_text(self) -> ComposeResult:
        yield WaitingLine(id="plan")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Back up", id="yes", variant="primary", compact=True, disabled=True)

    def on_mount(self) -> None:
        super().on_mount()
        self.ask()

    @work(exclusive=True, group="plan", exit_on_error=False, description="planning the backup")
    async def ask(self) -> None:
        """Ask for the plan; nothing can be confirmed meanwhile."""
        line = self.query_one(WaitingLine)
        plan = await line.wait(self.request("plan_back_up_all", reply_s=ENGINE_S, to=str(self.to["name"])))
        if plan is None:
            return
        count, others = int(plan["runs"]), int(plan["others"])
        more = f", {counted(others, 'evaluation or sweep', 'evaluations and sweeps')}" if others else ""
        head = Content.from_markup(
            "Back up [bold]$runs[/]$more: [bold]$size[/]?", runs=counted(count, "run"), more=more,
            size=byte_size(plan["bytes"]),
        )  # fmt: skip
        if not count + others:
            head = Content("Nothing to send: the backup has everything.")
        problems = [_fact("left out", problem) for problem in plan["problems"][:MOST_KEPT]]
        facts = [_fact("from", self.box), _fact("to", f"{self.to['name']}  {self.to.get('where', '')}"), *problems]
        how = Content.from_markup("[$grpo-muted]$how[/]", how=HOW_ALL)
        line.update(Content("\n").join([head, Content(), *facts, Content(), how]))
        button = self.query_one("#yes", Button)
        button.disabled = not count + others
        if not button.disabled:
            button.focus()


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
        reply = await about.wait(self.request("list_backups", reply_s=ENGINE_S, source=source))
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


KEPT = (1, 2, 3, 5, 10, 20)
MOST_KEPT = 6
"""Lines about checkpoints that stay; further ones are counted."""


class CleanUpScreen(TextDialog[CleanUpPlan]):
    """Dismissed with the plan that the user has confirmed. Cancel has the focus."""

    TONE = "-danger"

    def __init__(self, request: RequestFunction, run: str, destination: str, box: str) -> None:
        super().__init__()
        self.heading = f"clean up {run}"
        self.request, self.run_name, self.destination, self.box = request, run, destination, box
        self.plan: CleanUpPlan | None = None
        self._keep = 0
        """Of the plan that was asked for last."""

    def compose_body(self) -> ComposeResult:
        choices = [("the newest checkpoint", 1), *((f"the newest {count} checkpoints", count) for count in KEPT[1:])]
        yield from field("keep", Select(choices, id="keep", compact=True, value=1, allow_blank=False))
        yield from super().compose_body()

    def compose_text(self) -> ComposeResult:
        yield WaitingLine(id="plan")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Remove", id="remove", variant="error", compact=True, disabled=True)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()
        self.ask()

    def on_select_changed(self) -> None:
        if self._keep != self.query_one("#keep", Select).value:
            self.ask()

    @work(exclusive=True, group="plan", exit_on_error=False, description="planning the cleanup")
    async def ask(self) -> None:
        """Ask the engine for the plan; nothing can be confirmed meanwhile."""
        keep = self._keep = int(str(self.query_one("#keep", Select).value))
        self._show(None)
        plan = self.request("plan_cleanup", reply_s=ENGINE_S, run=self.run_name, keep=keep, to=self.destination)
        if (reply := await self.query_one(WaitingLine).wait(plan)) is not None:
            self._show(cleanup_plan(reply, keep))

    def _show(self, plan: CleanUpPlan | None) -> None:
        self.plan = plan
        button = self.query_one("#remove", Button)
        button.disabled = plan is None or not plan.steps
        button.label = f"Remove {plan.count}" if plan is not None and plan.steps else "Remove"
        button.refresh(layout=True)
        if button.disabled and button.has_focus:
            self.query_one("#cancel").focus()
        if plan is not None:
            self.query_one(WaitingLine).update(self._text(plan))

    def _text(self, plan: CleanUpPlan) -> Content:
        if plan.steps:
            head = Content.from_markup(
                "Remove [bold]$count[/], [bold]$size[/], from the disk of [bold]$host[/]?",
                count=plan.count, size=byte_size(plan.bytes), host=plan.host,
            )  # fmt: skip
        else:
            head = Content("Nothing can be removed: every checkpoint here stays.")
        host = plan.host if self.box in ("", plan.host) else f"{plan.host} ({self.box})"
        lines = [head, Content(), _fact("host", host), _fact("run", plan.run)]
        if plan.steps:
            lines.append(_fact("steps", plan.ranges))
        lines.append(_fact("backup", f"snapshot {plan.snapshot} in {plan.destination} ({plan.store})"))
        lines.append(_fact("read back", plan.read_back))
        for step, reason in plan.kept[-MOST_KEPT:]:
            lines.append(_fact("stays", f"step {step}: {reason}"))
        if more := len(plan.kept[:-MOST_KEPT]):
            lines.append(_fact("", f"and {more} more"))
        if plan.steps:
            note = "Each is read back from the backup and hashed once more before it is removed."
            lines += [Content(), Content.from_markup("[$grpo-muted]$note[/]", note=note)]
        return Content("\n").join(lines)

    def chosen(self, button: str) -> None:
        if self.plan is not None and self.plan.steps:
            self.dismiss(self.plan)


def _fact(label: str, text: str) -> Content:
    return Content.from_markup("[$grpo-muted]$label[/]$text", label=f"{label:<12}", text=one_line(text))


class TerminationScreen(Dialog[bool]):
    """Asks the box now. Nothing is ended from here. Dismissed with True for a backup of all runs."""

    heading = "safe to terminate?"
    BINDINGS: ClassVar = [Binding("y", "copy", show=False), Binding("B", "back_up_all", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def compose_body(self) -> ComposeResult:
        yield WaitingLine(id="about")
        yield OptionList(id="choices")
        yield Static("", id="ends-it", classes="command")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy the command", id="copy", compact=True)
        yield Button("Back up all …", id="all", variant="primary", compact=True)

    @property
    def unsent(self) -> list[str]:
        """The runs that a backup of all would send."""
        return unsent_runs(self.rows)

    def on_mount(self) -> None:
        self._show_rows()
        self.app.work("safe to terminate", self._request)
        self.query_one("#cancel").focus()

    async def _request(self) -> None:
        about, termination = self.query_one(WaitingLine), self.app.termination
        await about.wait(refresh_termination(self.app, now=True))
        if not self.is_mounted:
            return
        if (reply := termination.reply) is None:
            why = one_line(termination.asking.problem or "not connected to the box")
            text = Content.from_markup("[$error]■[/] [bold]keep the box[/]: not known: $why", why=why)
        else:
            self.rows, text = [row for row in reply["obstacles"] if row.get("code") != NOTHING], _verdict(reply)
        about.update(text)
        self._show_rows()

    def _show_rows(self) -> None:
        choices = self.query_one(OptionList)
        choices.display = bool(self.rows)
        choices.add_options(Option(self._line(row)) for row in self.rows)
        if self.rows:
            choices.highlighted = 0
            choices.focus()
        self._show_command()

    def _line(self, row: dict[str, Any]) -> Content:
        room = min(self.app.size.width, 96) - 8
        name = max(12, room * 2 // 5)
        reason = one_line(str(row.get("reason") or row.get("unreadable") or ""))
        line = Content.from_markup(
            "$name  [$grpo-muted]$reason[/]", name=padded(shortened(str(row["name"]), name), name), reason=reason
        )
        return line.truncate(room, ellipsis=True)

    @property
    def command(self) -> str:
        """What ends the obstacle under the cursor; "" without one."""
        at = self.query_one(OptionList).highlighted
        return str(self.rows[at].get("command") or "") if at is not None and at < len(self.rows) else ""

    def _show_command(self) -> None:
        shown = self.query_one("#ends-it", Static)
        shown.display = self.query_one("#copy").display = bool(self.command)
        shown.border_title = "on the box"
        shown.update(Content(self.command))
        count = len(self.unsent)
        self.query_one("#all").display = bool(count)
        keys = [f"B backs up all {counted(count, 'run')} without one" if count else "", "y copies" * bool(self.command)]
        self.query_one("#dialog").border_subtitle = Content(" · ".join([*filter(None, keys), "esc closes"]))

    def on_option_list_option_highlighted(self) -> None:
        self._show_command()

    def on_option_list_option_selected(self) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        """Copy the command that ends the obstacle under the cursor."""
        if self.command:
            self.app.copy(self.command, "command for the box")

    def action_back_up_all(self) -> None:
        """Continue with the backup of all runs, which asks first."""
        if self.unsent:
            self.dismiss(True)

    def chosen(self, button: str) -> None:
        if button == "all":
            self.action_back_up_all()
        else:
            self.action_copy()


def _verdict(reply: dict[str, Any]) -> Content:
    if not reply["safe"]:
        if is_without_runs(reply):
            text = f"{first_reason(reply)}. Nothing is lost if no run was launched."
            return Content.from_markup("[$warning]■[/] [bold]no runs here[/]: $text", text=text)
        count = int(reply["count"])
        more = f"; the first {len(reply['obstacles']):,} are listed" if count > len(reply["obstacles"]) else ""
        text = f"{count:,} thing{'s' if count != 1 else ''} would be lost or cut off{more}"
        return Content.from_markup("[$error]■[/] [bold]keep the box[/]: $text", text=text)
    verdict = Content.from_markup("[$success]■[/] [bold]safe to terminate[/]")
    if reply["obstacles"]:
        return verdict + Content(": kept on the mount only; what is listed has no second copy")
    return verdict + Content(f": every run is backed up and was read back (checked {_age(reply)})")


def _age(reply: dict[str, Any]) -> str:
    age = float(reply["age_s"])
    return "just now" if age < 60 else f"{duration(age)} ago"
