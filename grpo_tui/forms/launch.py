"""The launch form: a config (its text can be changed), a checkpoint to start from, processes, overrides, a name."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.widgets import Input, Select, TextArea

from grpo_tui.forms.form import Ask, FieldError, OrderScreen, field
from grpo_tui.model.requests import LaunchOrder, Order, new_key
from grpo_tui.model.tasks import TaskNames
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_train.config.schema import Config


@dataclass(frozen=True)
class ConfigChoice:
    """A config one can launch: of the box's checkout, or of this machine."""

    name: str
    place: str
    """``box`` or ``here``."""
    text: str | None = None
    """None: to be read from the box."""

    @property
    def label(self) -> str:
        return f"{self.name}  ({'on the box' if self.place == 'box' else 'this machine'})"


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint a run can start from."""

    label: str
    path: str


class LaunchScreen(OrderScreen):
    """Dismissed with the box's answer: the new run's name."""

    HEADING = "launch a run"
    VERB = "Launch"

    def __init__(self, ask: Ask, box: str, configs: list[ConfigChoice], runs: list[str], prefer: str = "") -> None:
        super().__init__(ask)
        self.box, self.configs, self.runs, self.prefer = box, configs, runs, prefer
        self.key = new_key()
        self.tasks = TaskNames(ask)

    def heading(self) -> str:
        return f"launch a run on {self.box}"

    def compose_fields(self) -> ComposeResult:
        options = [(choice.label, index) for index, choice in enumerate(self.configs)]
        preferred = next((i for i, choice in enumerate(self.configs) if choice.name == self.prefer), 0)
        value = preferred if options else Select.NULL
        select = Select(
            options, id="config", compact=True, value=value, prompt="no config found", allow_blank=not options
        )
        yield from field("config", select)
        area = TextArea("", id="text", tab_behavior="focus", compact=True, show_line_numbers=True, soft_wrap=False)
        yield area
        yield from field(
            "start from", Select[str]([], id="ckpt", compact=True, prompt="the config's own model (model.backbone)")
        )
        yield from field(
            "processes", Input(id="nproc", placeholder="as in the config (run.nproc)", compact=True, type="integer")
        )
        yield from field(
            "overrides", Input(id="overrides", placeholder="run.total_steps=20 train.microbatch_size=4", compact=True)
        )
        yield from field(
            "run name", Input(id="run-name", placeholder="the time, e.g. run_2026-11-21_12-34-56", compact=True)
        )

    def on_mount(self) -> None:
        super().on_mount()
        self._load_text()
        self.load_checkpoints()
        # With the config chosen already, one more Enter launches.
        if self.prefer:
            self._focus_go_again = True
            self.set_focus(None)
        else:
            self.query_one("#config").focus()

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.select.id == "config":
            self._load_text()
        super().on_select_changed(event)

    @property
    def choice(self) -> ConfigChoice | None:
        value = self.query_one("#config", Select).value
        return self.configs[value] if isinstance(value, int) else None

    @work(exclusive=True, group="config", exit_on_error=False, description="the text of a config")
    async def _load_text(self) -> None:
        choice, area = self.choice, self.query_one("#text", TextArea)
        if choice is None:
            return
        text = choice.text
        if text is None:
            area.text = ""
            try:
                text = str((await self.ask("read_config", name=choice.name)).get("text", ""))
            except RemoteError as error:
                self.say_problem(error.message, error.hint)
                return
        area.text = text
        # The comment on top is for readers of the file; here one wants the keys.
        lines = text.splitlines()
        first = next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)
        area.move_cursor((first, 0))
        self.call_after_refresh(area.scroll_to, y=first, animate=False)

    @work(group="checkpoints", exit_on_error=False, description="checkpoints a run can start from")
    async def load_checkpoints(self) -> None:
        """Fill the list of checkpoints from the newest runs of the box."""
        choices: list[CheckpointChoice] = []
        for run in self.runs[:12]:
            try:
                shown = await self.ask("show_run", run=run)
            except RemoteError:
                continue
            for one in reversed(shown.get("checkpoints") or []):
                if not one.get("problem"):
                    path = str(one.get("path") or f"training_runs/{run}/training_state/step_{one.get('step')}")
                    choices.append(CheckpointChoice(f"{run} / step_{one.get('step')}", path))
        if choices:
            self.query_one("#ckpt", Select).set_options([(choice.label, choice.path) for choice in choices])

    def order(self) -> Order:
        choice = self.choice
        text = self.query_one("#text", TextArea).text
        if choice is None:
            raise FieldError("no config: none is in config/ here, and the box has none")
        if not text.strip():
            raise FieldError(f"{choice.name} is empty")
        nproc = self.query_one("#nproc", Input).value.strip()
        if nproc and (not nproc.isdigit() or int(nproc) < 1):
            raise FieldError(f"processes: a whole number from 1, not {nproc}")
        ckpt = self.query_one("#ckpt", Select).value
        return LaunchOrder(
            config_text=text,
            config_name=f"config/{choice.name}",
            ckpt=ckpt if isinstance(ckpt, str) else "",
            nproc=int(nproc) if nproc else None,
            overrides=overrides_of(self.query_one("#overrides", Input).value),
            run_name=self.query_one("#run-name", Input).value.strip(),
            idempotency_key=self.key,
        )

    async def check(self, order: Order) -> str:
        assert isinstance(order, LaunchOrder)
        config = await asyncio.to_thread(config_of, order)
        for key, names in (("task.name", [config.task.name]), ("eval.datasets", config.eval.datasets)):
            for name in names:
                if problem := await self.tasks.problem(name):
                    raise FieldError(f"{key}: {problem}")
        return summary_of(config)


def overrides_of(text: str) -> tuple[str, ...]:
    """``KEY=VALUE`` words as a shell would split them. Raises FieldError for a quote that is not closed."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        problem = str(error).lower()  # "No closing quotation", "No escaped character"
        raise FieldError(f"overrides: {problem}; a value with spaces goes in quotes: 'task.path=/my data'") from error


def config_of(order: LaunchOrder) -> Config:
    """An order's config, checked as the engine will. Raises FieldError."""
    from grpo_train.config import ConfigError, load_config

    overrides = list(order.overrides)
    if order.nproc is not None:
        overrides.append(f"run.nproc={order.nproc}")
    try:
        return load_config(order.config_text, overrides, order.config_name)
    except ConfigError as error:
        raise FieldError(str(error)) from error


def summary_of(config: Config) -> str:
    """What a launch amounts to, in words."""
    processes = "1 process" if config.run.nproc == 1 else f"{config.run.nproc} processes"
    trained = "LoRA" if config.model.adapter == "lora" else "all weights"
    return (
        f"{config.run.total_steps} steps of {config.rollout.buffer_size} prompts × {config.rollout.num_generations} on "
        f"{config.task.name} · {config.model.backbone}, {trained} · {processes} · saved every {config.run.save_every}"
    )
