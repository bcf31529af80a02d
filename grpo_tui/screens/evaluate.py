"""The evaluation form: which steps, on what, how much of it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input, Select

from grpo_tui.requests import EvalOrder, Order
from grpo_tui.screens.order import Ask, FieldError, OrderScreen, field


class EvalScreen(OrderScreen):
    """Dismissed with the box's answer."""

    HEADING = "evaluate"
    VERB = "Evaluate"

    def __init__(self, ask: Ask, run: str, steps: list[int]) -> None:
        super().__init__(ask)
        self.run_name, self.steps = run, steps

    def heading(self) -> str:
        return f"evaluate {self.run_name}"

    def compose_fields(self) -> ComposeResult:
        newest = f" (step {self.steps[-1]})" if self.steps else ""
        choices = [(f"the latest checkpoint{newest}", "latest"), (f"all {len(self.steps)} checkpoints", "all")]
        choices += [(f"step {step}", str(step)) for step in reversed(self.steps)]
        choices.append(("step 0: the model that the run started from", "0"))
        choices.append(("a list of steps …", "list"))
        yield from field("steps", Select(choices, id="steps", compact=True, value="latest", allow_blank=False))
        have = ",".join(map(str, self.steps[-4:])) or "1,5,10"
        yield from field("list", Input(id="list", placeholder=f"for “a list of steps”: {have}", compact=True))
        yield from field(
            "dataset", Input(id="dataset", placeholder="the run's own task, held-out problems", compact=True)
        )
        yield from field(
            "share", Input(id="share", placeholder="1 (all held-out problems); 0.1 = a tenth", compact=True)
        )

    def on_mount(self) -> None:
        super().on_mount()
        self._focus_go_again = True
        self.set_focus(None)

    def order(self) -> Order:
        steps = str(self.query_one("#steps", Select).value)
        if steps == "list":
            steps = "".join(self.query_one("#list", Input).value.split())
            if not steps:
                raise FieldError("list: steps with commas, e.g. 1,5,10")
        wrong = (
            [step for step in steps.split(",") if not step.isdigit()] if steps not in ("latest", "final", "all") else []
        )
        if wrong:
            raise FieldError(f"list: '{wrong[0]}' is no step number")
        numbers = [step for step in steps.split(",") if step.isdigit()]
        missing = [step for step in numbers if self.steps and int(step) not in {0, *self.steps}]
        if missing:
            have = ", ".join(map(str, self.steps))
            raise FieldError(f"step {missing[0]} has no complete checkpoint (there are: {have})")
        share = self.query_one("#share", Input).value.strip()
        try:
            fraction = float(share) if share else None
        except ValueError:
            raise FieldError(f"share: a number between 0 and 1, not {share!r}") from None
        if fraction is not None and not 0 < fraction <= 1:
            raise FieldError(f"share: above 0 and at most 1, not {share}")
        return EvalOrder(self.run_name, steps, self.query_one("#dataset", Input).value.strip(), fraction)
