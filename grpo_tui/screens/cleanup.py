"""The plan of a cleanup, and its confirmation."""

from __future__ import annotations

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Select

from grpo_tui.forms.form import field
from grpo_tui.model.asking import ENGINE_S
from grpo_tui.model.cleanup_plan import CleanUpPlan, cleanup_plan
from grpo_tui.model.formatting import byte_size, one_line
from grpo_tui.model.tasks import RequestFunction
from grpo_tui.screens.dialog import TextDialog
from grpo_tui.widgets.waiting import WaitingLine

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
        plan = self.request("plan_cleanup", timeout=ENGINE_S, run=self.run_name, keep=keep, to=self.destination)
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
