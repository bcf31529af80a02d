"""The confirmation of an edited workflow before its run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Static

from grpo_tui.model.formatting import one_line
from grpo_tui.model.workflow import EditLine, edit_lines
from grpo_tui.screens.dialog import Question

STYLES = {"-": "$error", "+": "$success", "✔": "$grpo-muted", " ": "$grpo-muted", "?": "$warning"}
NEXT = 3
"""Stages that are named; further ones are counted."""


class WorkflowEditsScreen(Question):
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
