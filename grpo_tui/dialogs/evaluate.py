"""The evaluation form: checkpoints, dataset, sampling."""

from __future__ import annotations

import math

from textual import work
from textual.app import ComposeResult
from textual.suggester import SuggestFromList
from textual.widgets import Input, Select

from grpo_tui.box.formatting import counted, percent
from grpo_tui.dialogs.form import (
    FieldError,
    MissingField,
    Request,
    RequestFunction,
    RequestScreen,
    TaskNames,
    field,
    text_field,
)
from remote.protocol.jobs import EvaluateRequest


class EvalScreen(RequestScreen):
    """Dismissed with the box's reply."""

    VERB, OPERATION = "Evaluate", "evaluate"

    def __init__(self, request: RequestFunction, run: str, steps: list[int]) -> None:
        super().__init__(request, f"evaluate {run}")
        self.run_name, self.steps = run, steps
        """``steps`` of the complete checkpoints, ascending; at least one."""
        self.tasks = TaskNames(request)

    def compose_fields(self) -> ComposeResult:
        count = len(self.steps)
        choices = [
            (f"latest checkpoint (step {self.steps[-1]})", "latest"),
            (f"all checkpoints ({count})", "all"),
            (f"all checkpoints ({count}) and the starting model", ",".join(map(str, [0, *self.steps]))),
            *((f"step {step}", str(step)) for step in reversed(self.steps)),
            ("step 0: the starting model", "0"),
            ("a list of steps …", "list"),
        ]
        yield from field("steps", Select(choices, id="steps", compact=True, value="latest", allow_blank=False))
        yield from text_field("", "list", f"step numbers separated by commas: {','.join(map(str, self.steps[-4:]))}")
        yield from text_field("dataset", "dataset", "the task of the run, held-out problems")
        yield from text_field("data path", "path", "file or directory on the box; default: task.path, else the hub")
        yield from text_field("fraction", "fraction", "1 (all held-out problems); 0.1 = one tenth")
        yield from text_field("samples", "samples", "1 per problem; 8 adds pass@k and maj@k")
        yield from text_field("temperature", "temperature", "default of the task (0 = greedy; mbpp 0.2)")

    def on_mount(self) -> None:
        super().on_mount()
        self.show_row("list", False)
        self.suggest_tasks()
        self.focus_button_when_ready()

    def on_select_changed(self, event: Select.Changed) -> None:
        self.show_row("list", event.value == "list")
        super().on_select_changed(event)

    @work(group="tasks", exit_on_error=False, description="requesting task names")
    async def suggest_tasks(self) -> None:
        """Complete the name of a dataset while it is typed; the right arrow accepts."""
        if names := await self.tasks.known():
            self.query_one("#dataset", Input).suggester = SuggestFromList(names, case_sensitive=False)

    async def check(self, request: Request) -> str:
        assert isinstance(request, EvaluateRequest)
        if request.eval_dataset and (problem := await self.tasks.problem(request.eval_dataset)):
            raise FieldError(f"dataset: {problem}")
        return self._summary(request)

    def _summary(self, request: EvaluateRequest) -> str:
        """What is evaluated, on what and how, in one line."""
        named = {"latest": f"step {self.steps[-1]}", "all": counted(len(self.steps), "checkpoint")}
        asked = str(request.steps)
        steps = [step for step in asked.split(",") if step]
        which = named.get(asked) or ("step " if len(steps) == 1 else "steps ") + ", ".join(steps)
        if len(steps) > 8:
            which = counted(len(steps), "checkpoint")
        share = 1.0 if request.subset_frac is None else request.subset_frac
        problems = "all held-out problems" if share == 1 else f"{percent(share)} of the held-out problems"
        samples = counted(request.num_samples or 1, "sample") + " of each"
        drawn = "" if request.temperature is None else f" · temperature {request.temperature:g}"
        return f"{which} on {request.eval_dataset or 'the task of the run'} · {problems} · {samples}{drawn}"

    def build_request(self) -> Request:
        fraction = self._number("fraction")
        if fraction is not None and not 0 < fraction <= 1:
            raise FieldError(f"fraction: must be above 0 and at most 1, not {fraction:g}")
        samples = self._number("samples")
        if samples is not None and not (samples >= 1 and math.isfinite(samples) and samples == int(samples)):
            raise FieldError(f"samples: must be an integer of 1 or more, not {samples:g}")
        temperature = self._number("temperature")
        if temperature is not None and not 0 <= temperature < math.inf:
            raise FieldError(f"temperature: must be 0 (greedy) or more, not {temperature:g}")
        if samples is not None and samples > 1 and temperature == 0:
            raise FieldError("temperature: greedy samples are identical; use a temperature such as 0.6")
        return EvaluateRequest(
            run=self.run_name,
            steps=self._steps(),
            eval_dataset=self.value("dataset"),
            eval_path=self.value("path"),
            subset_frac=fraction,
            num_samples=None if samples is None else int(samples),
            temperature=temperature,
        )

    def _steps(self) -> str:
        """The chosen steps, as the engine takes them. Raises FieldError."""
        steps = str(self.query_one("#steps", Select).value)
        if steps != "list":
            return steps
        listed = self.value("list").replace(",", " ").split()
        if not listed:
            raise MissingField("steps: enter step numbers separated by commas, e.g. 1,5,10")
        for step in listed:
            if not (step.isascii() and step.isdigit()):
                raise FieldError(f"steps: '{step}' is not a step number; separate numbers with commas, e.g. 1,5,10")
            if int(step) not in {0, *self.steps}:
                shown = map(str, self.steps if len(self.steps) <= 8 else [*self.steps[:3], "…", *self.steps[-3:]])
                known = ", ".join(shown)
                raise FieldError(f"steps: step {int(step)} has no complete checkpoint (complete: {known})")
        return ",".join(dict.fromkeys(str(int(step)) for step in listed))

    def _number(self, field: str) -> float | None:
        """A number, or None if the field is empty. Raises FieldError."""
        text = self.value(field)
        try:
            return float(text) if text else None
        except ValueError:
            raise FieldError(f"{field}: must be a number, not {text!r}") from None
