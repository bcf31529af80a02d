"""The resume form, and what is asked before a run is resumed with other code or an edited workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Select, Static

from grpo_tui.box.formatting import one_line
from grpo_tui.box.rows import EditLine, RunRow, edit_lines
from grpo_tui.dialogs.form import (
    FieldError,
    MissingField,
    Request,
    RequestFunction,
    RequestScreen,
    checked_config,
    field,
    parameters,
    text_field,
)
from grpo_tui.kit.dialog import ConfirmDialog, TextDialog
from remote.protocol import RemoteError
from remote.protocol.copies import NOW, THEN
from remote.protocol.jobs import ResumeRequest


class CodeDiffersScreen(TextDialog[str]):
    """Dismissed with ``then``, ``now``, or None. The code of the run has the focus."""

    heading = "the code differs"
    TONE = "-warning"

    def __init__(self, message: str, box: str) -> None:
        super().__init__()
        self.message, self.box = message, box

    def compose_text(self) -> ComposeResult:
        yield Static(Content(one_line(self.message)), classes="message")
        text = f"A resume can take either. The other one stays on {self.box or 'the box'}."
        yield Static(Content.from_markup("[$grpo-muted]$text[/]", text=text), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Code of the run", id=THEN, variant="primary", compact=True)
        yield Button("Synced code", id=NOW, variant="warning", compact=True)

    def on_mount(self) -> None:
        self.query_one(f"#{THEN}").focus()

    def chosen(self, button: str) -> None:
        self.dismiss(button)


STYLES = {"-": "$error", "+": "$success", "✔": "$grpo-muted", " ": "$grpo-muted", "?": "$warning"}
NEXT = 3
"""Stages that are named; further ones are counted."""


class WorkflowEditsScreen(ConfirmDialog):
    """What changed in the stages of a run, and what would run. Cancel has the focus."""

    heading = "edited workflow"
    TONE = "-warning"

    def __init__(self, plan: Mapping[str, Any], box: str) -> None:
        super().__init__()
        self.plan, self.box = plan, box
        """``plan``: a reply to ``plan_resume``."""

    def compose_text(self) -> ComposeResult:
        yield Static(self._text(), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Resume with the edits", id="yes", variant="warning", compact=True)

    def _text(self) -> Content:
        plan = self.plan
        host = plan["host"] if self.box in ("", plan["host"]) else f"{plan['host']} ({self.box})"
        left = plan["left"]
        following = ", ".join(left[:NEXT]) + (f" and {len(left) - NEXT:,} more" if len(left) > NEXT else "")
        head = Content.from_markup("The stages of [bold]$run[/] were edited since its last start.", run=plan["run"])
        facts = (
            ("host", host),
            ("run", plan["run"]),
            ("continues", f"from step {plan['step']:,.0f}, up to step {plan['total_steps']:,.0f}"),
            ("would run", following or "nothing"),
        )
        lines = [head, Content(), *(_fact(label, text) for label, text in facts), Content()]
        return Content("\n").join([*lines, *map(_line, edit_lines(plan["edits"]))])


def _fact(label: str, text: str) -> Content:
    return Content.from_markup("[$grpo-muted]$label[/]$text", label=f"{label:<12}", text=one_line(text))


def _line(line: EditLine) -> Content:
    style = STYLES[line.sign]
    text = Content.from_markup(f"[{style}]$sign $text[/]", sign=line.sign, text=line.text)
    return text + Content.from_markup(" [$grpo-muted]($note)[/]", note=line.note) if line.note else text


class ResumeScreen(RequestScreen):
    """Dismissed with the box's reply."""

    VERB, OPERATION = "Resume", "resume"

    def __init__(
        self,
        request: RequestFunction,
        row: RunRow,
        steps: list[int],
        logged: int,
        config_text: str,
        box: str = "",
        has_workflow: bool = False,
    ) -> None:
        super().__init__(request, f"resume {row.name}")
        self.row, self.steps, self.logged, self.config_text = row, steps, logged, config_text
        """``steps`` of the complete checkpoints, ascending; at least one. ``logged``: last step of the log."""
        self.box, self.has_workflow = box, has_workflow
        self._confirmed: ResumeRequest | None = None
        """The last request whose edits of the workflow were confirmed."""

    def compose_fields(self) -> ComposeResult:
        choices = [(f"latest checkpoint (step {self.steps[-1]})", "latest")]
        choices += [(f"step {step}", str(step)) for step in reversed(self.steps)]
        yield from field("from", Select(choices, id="from", compact=True, value="latest", allow_blank=False))
        total = self.row.total_steps
        end = f"none: continue to step {total}" if total else "none: continue to the last step"
        if total is not None and self.steps[-1] >= total:
            end = f"required: it has reached its last step, {total}"
        yield from text_field("more steps", "more", end, type="integer")
        processes = f"unchanged ({self.row.nproc})" if self.row.nproc else "unchanged"
        yield from text_field("processes", "nproc", processes, type="integer")
        yield from text_field("overrides", "overrides", "e.g. run.save_every=10 optimizer.learning_rate=1e-5")

    def on_mount(self) -> None:
        super().on_mount()
        if self.row.total_steps and self.steps[-1] >= self.row.total_steps:
            self.query_one("#more").focus()  # required
        else:
            self.focus_button_when_ready()

    def build_request(self) -> Request:
        return ResumeRequest(
            self.row.name,
            str(self.query_one("#from", Select).value),
            self.count("more", "more steps"),
            self.count("nproc", "processes"),
            self.overrides(),
        )

    async def check(self, request: Request) -> str:
        assert isinstance(request, ResumeRequest)
        total = self.row.total_steps
        start = self.steps[-1] if request.from_step == "latest" else int(request.from_step)
        only_trains = not self.has_workflow and not any(word.startswith("workflow") for word in request.overrides)
        if only_trains and request.additional_steps is None and total and start >= total:
            raise MissingField(f"more steps: enter how many; step {start} is the last step of the run")
        if request.overrides:
            await asyncio.to_thread(self._check_overrides, request.overrides)
        end = start + request.additional_steps if request.additional_steps else total
        summary = f"from step {start}" + (f" to {end}" if end else "")
        if start < self.logged:
            summary += f"; replaces steps {start + 1} to {self.logged} of the log"
        return summary

    async def deliver(self, request: Request) -> dict[str, Any] | None:
        """Ask which code to take where it differs, and to confirm an edited workflow, once; the answers go along."""
        assert isinstance(request, ResumeRequest)
        if self._confirmed is not None and replace(self._confirmed, confirmation="", code="") == request:
            request = self._confirmed
        while True:
            try:
                return await super().deliver(request)
            except RemoteError as error:
                if error.code not in ("workflow_edited", "code_differs"):
                    raise
                differs = error.message if error.code == "code_differs" else ""
            if differs:
                chosen = await self.app.push_screen_wait(CodeDiffersScreen(differs, self.box))
                if chosen is None:
                    return None
                request = replace(request, code=chosen)
                continue
            self._confirmed = None
            asked = parameters(replace(request, confirmation="", code=""), dry_run=False)
            asked.pop("dry_run")
            plan = await self.request("plan_resume", reply_s=60.0, **asked)
            if not await self.app.push_screen_wait(WorkflowEditsScreen(plan, self.box)):
                return None
            request = self._confirmed = replace(request, confirmation=plan["confirmation"])

    def _check_overrides(self, overrides: list[str]) -> None:
        source = f"config.yaml of {self.row.name}"
        try:
            checked_config(self.config_text, [], source)
        except FieldError:
            return  # the run of another version: its own engine decides
        checked_config(self.config_text, overrides, source)
