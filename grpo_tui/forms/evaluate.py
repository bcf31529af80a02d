"""The evaluation form: which steps, on what, how much of it."""

from __future__ import annotations

import math

from textual import work
from textual.app import ComposeResult
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input, Select

from grpo_tui.forms.form import Ask, FieldError, OrderScreen, field
from grpo_tui.model.requests import EvalOrder, Order
from grpo_tui.model.tasks import TaskNames


class EvalScreen(OrderScreen):
    """Dismissed with the box's answer."""

    HEADING = "evaluate"
    VERB = "Evaluate"

    def __init__(self, ask: Ask, run: str, steps: list[int]) -> None:
        super().__init__(ask)
        self.run_name, self.steps = run, steps
        self.tasks = TaskNames(ask)

    def heading(self) -> str:
        return f"evaluate {self.run_name}"

    def compose_fields(self) -> ComposeResult:
        newest = f" (step {self.steps[-1]})" if self.steps else ""
        choices = [(f"the latest checkpoint{newest}", "latest"), (f"all {len(self.steps)} checkpoints", "all")]
        with_start = ",".join(map(str, [0, *self.steps]))
        choices.append((f"all {len(self.steps)} and the model that the run started from", with_start))
        choices += [(f"step {step}", str(step)) for step in reversed(self.steps)]
        choices.append(("step 0: the model that the run started from", "0"))
        choices.append(("a list of steps …", "list"))
        yield from field("steps", Select(choices, id="steps", compact=True, value="latest", allow_blank=False))
        have = ",".join(map(str, self.steps[-4:])) or "1,5,10"
        yield from field("", Input(id="list", placeholder=f"step numbers with commas: {have}", compact=True))
        yield from field(
            "dataset", Input(id="dataset", placeholder="the run's own task, held-out problems", compact=True)
        )
        yield from field(
            "its data",
            Input(id="path", placeholder="a file or directory on the box; else task.path, or the hub", compact=True),
        )
        yield from field(
            "share", Input(id="share", placeholder="1 (all held-out problems); 0.1 = a tenth", compact=True)
        )
        yield from field(
            "samples", Input(id="samples", placeholder="1 of each problem; 8 = also pass@k and maj@k", compact=True)
        )
        yield from field(
            "temperature", Input(id="temperature", placeholder="the task's own (0, greedy; mbpp 0.2)", compact=True)
        )

    def on_mount(self) -> None:
        super().on_mount()
        self._list_row.display = False
        self.suggest_tasks()
        self._focus_go_again = True
        self.set_focus(None)

    @property
    def _list_row(self) -> Widget:
        """The list of steps and its label, shown where a list was chosen."""
        row = self.query_one("#list").parent
        assert isinstance(row, Widget)
        return row

    def on_select_changed(self, event: Select.Changed) -> None:
        chosen = event.value == "list"
        if chosen != self._list_row.display:
            self._list_row.display = chosen
            if chosen:
                self.query_one("#list").focus()
        super().on_select_changed(event)

    @work(group="tasks", exit_on_error=False, description="the names of tasks")
    async def suggest_tasks(self) -> None:
        """While a dataset is typed, the rest of its name stands there; the right arrow takes it."""
        if names := await self.tasks.known():
            self.query_one("#dataset", Input).suggester = SuggestFromList(names, case_sensitive=False)

    async def check(self, order: Order) -> str:
        assert isinstance(order, EvalOrder)
        if order.dataset and (problem := await self.tasks.problem(order.dataset)):
            raise FieldError(f"dataset: {problem}")
        return ""

    def order(self) -> Order:
        steps = str(self.query_one("#steps", Select).value)
        if steps == "list":
            listed = self.query_one("#list", Input).value.replace(",", " ").split()
            if not listed:
                raise FieldError("steps: numbers with commas, e.g. 1,5,10")
            if wrong := [step for step in listed if not (step.isascii() and step.isdigit())]:
                raise FieldError(f"steps: '{wrong[0]}' is no step number; write them with commas, e.g. 1,5,10")
            steps = ",".join(dict.fromkeys(str(int(step)) for step in listed))
        numbers = [step for step in steps.split(",") if step.isdigit()]
        missing = [step for step in numbers if self.steps and int(step) not in {0, *self.steps}]
        if missing:
            have = ", ".join(map(str, self.steps))
            raise FieldError(f"step {missing[0]} has no complete checkpoint (there are: {have})")
        share = self._number("share", "a number between 0 and 1")
        if share is not None and not 0 < share <= 1:
            raise FieldError(f"share: above 0 and at most 1, not {share:g}")
        samples = self._number("samples", "how many completions of each problem")
        if samples is not None and not (samples >= 1 and samples == round(samples, 0) and math.isfinite(samples)):
            raise FieldError(f"samples: a whole number, 1 or more, not {samples:g}")
        temperature = self._number("temperature", "a number, 0 = greedy")
        if temperature is not None and not 0 <= temperature < float("inf"):
            raise FieldError(f"temperature: 0 (greedy) or more, not {temperature:g}")
        if samples is not None and samples > 1 and temperature == 0:
            raise FieldError("temperature: several samples of a greedy model are all the same; 0.6 is usual")
        return EvalOrder(
            self.run_name,
            steps,
            self.query_one("#dataset", Input).value.strip(),
            self.query_one("#path", Input).value.strip(),
            share,
            None if samples is None else int(samples),
            temperature,
        )

    def _number(self, name: str, what: str) -> float | None:
        """The number in a field; None where it is empty. Raises FieldError for anything else."""
        text = self.query_one(f"#{name}", Input).value.strip()
        try:
            return float(text) if text else None
        except ValueError:
            raise FieldError(f"{name}: {what}, not {text!r}") from None
