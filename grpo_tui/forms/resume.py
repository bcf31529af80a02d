"""The resume form: from which checkpoint, and how many steps more."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input, Select

from grpo_tui.forms.form import Ask, FieldError, OrderScreen, field
from grpo_tui.model.requests import Order, ResumeOrder


class ResumeScreen(OrderScreen):
    """Dismissed with the box's answer."""

    HEADING = "resume"
    VERB = "Resume"

    def __init__(self, ask: Ask, run: str, steps: list[int], total: int | None, reached: int) -> None:
        super().__init__(ask)
        self.run_name, self.steps, self.total, self.reached = run, steps, total, reached

    def heading(self) -> str:
        return f"resume {self.run_name}"

    def compose_fields(self) -> ComposeResult:
        newest = f" (step {self.steps[-1]})" if self.steps else ""
        choices = [(f"the latest checkpoint{newest}", "latest")]
        choices += [(f"step {step}", str(step)) for step in reversed(self.steps)]
        yield from field("from", Select(choices, id="from", compact=True, value="latest", allow_blank=False))
        whole = f"none: up to its total of {self.total}" if self.total else "none: up to its total"
        yield from field("more steps", Input(id="more", placeholder=whole, compact=True, type="integer"))

    def on_mount(self) -> None:
        super().on_mount()
        if self.total and self.steps and self.steps[-1] >= self.total:
            self.query_one("#more").focus()  # nothing can be resumed without it
        else:
            self._focus_go_again = True
            self.set_focus(None)

    def order(self) -> Order:
        more = self.query_one("#more", Input).value.strip()
        if more and (not more.isdigit() or int(more) < 1):
            raise FieldError(f"more steps: a whole number from 1, not {more}")
        return ResumeOrder(self.run_name, str(self.query_one("#from", Select).value), int(more) if more else None)

    async def check(self, order: Order) -> str:
        assert isinstance(order, ResumeOrder)
        start = int(order.from_step) if order.from_step.isdigit() else (self.steps[-1] if self.steps else 0)
        end = (start if order.additional_steps else self.total or 0) + (order.additional_steps or 0)
        words = f"from step {start}" + (f" to {end}" if end else "")
        if order.additional_steps is None and self.total and start >= self.total:
            raise FieldError(f"step {start} is the run's last: say how many steps more")
        if start < self.reached:
            words += f"; steps {start + 1} to {self.reached} of the log are replaced"
        return words
