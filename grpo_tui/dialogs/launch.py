"""The launch form: config text, starting weights, processes, overrides, name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.widgets import Select, TextArea

from grpo_train.history.cost import Forecast
from grpo_tui.box.formatting import counted
from grpo_tui.dialogs.form import (
    FieldError,
    MissingField,
    Request,
    RequestFunction,
    RequestScreen,
    TaskNames,
    checked_config,
    field,
    text_field,
)
from remote.boxes import notify_overrides
from remote.protocol import RemoteError
from remote.protocol.jobs import LaunchRequest

if TYPE_CHECKING:
    from grpo_train.config.schema import Config
    from remote.protocol.jobs import JobOptions

PATH = "path"
"""Choice of the starting weights: a path typed by the user."""
RUNS_SEARCHED = 12
"""Checkpoints are offered of this many newest runs."""


@dataclass(frozen=True)
class ConfigChoice:
    """A config to launch, from the box's checkout or from this machine."""

    name: str
    on_box: bool
    text: str | None = None
    """None: read from the box when chosen."""

    @property
    def label(self) -> str:
        return f"{self.name}  ({'on the box' if self.on_box else 'this machine'})"


class LaunchScreen(RequestScreen):
    """Dismissed with the box's reply, which names the new run."""

    VERB, OPERATION = "Launch", "launch"

    def __init__(
        self,
        request: RequestFunction,
        box: str,
        configs: list[ConfigChoice],
        runs: list[str],
        preferred: str,
        notify: Mapping[str, Any] = MappingProxyType({}),
        job: JobOptions | None = None,
        price: float | None = None,
    ) -> None:
        """``job``: what a job of this box asks for; None on a box without a scheduler. ``price``: dollars per hour."""
        super().__init__(request, f"launch a run on {box}")
        self.configs, self.runs, self.preferred, self.notify_by = configs, runs, preferred, notify
        self.job, self.price = job, price
        self._config_price: float | None = None
        self._text_loaded = asyncio.Event()
        self._loading: tuple[ConfigChoice | None, object] = (None, object())
        self.tasks = TaskNames(request)

    def compose_fields(self) -> ComposeResult:
        options = [(Text(choice.label), index) for index, choice in enumerate(self.configs)]
        preferred = next((i for i, choice in enumerate(self.configs) if choice.name == self.preferred), 0)
        value = preferred if options else Select.NULL
        select = Select(
            options, id="config", compact=True, value=value, prompt="no configs found", allow_blank=not options
        )
        yield from field("config", select)
        yield TextArea("", id="text", tab_behavior="focus", compact=True, show_line_numbers=True, soft_wrap=False)
        weights = Select[str](
            [("a path on the box …", PATH)], id="ckpt", compact=True, prompt="the model of the config (model.backbone)"
        )
        yield from field("start from", weights)
        yield from text_field("", "ckpt-path", "adapter or model directory on the box, absolute or under its root")
        yield from text_field("processes", "nproc", "from the config (run.nproc)", type="integer")
        yield from text_field("overrides", "overrides", "e.g. run.total_steps=20 train.microbatch_size=4")
        if self.job is not None:
            yield from text_field("job", "job", "changes for this run: time=2:00:00 gpus=4")
        yield from text_field("run name", "run-name", "default: the time, e.g. run_2026-11-21_12-34-56")

    def on_mount(self) -> None:
        super().on_mount()
        self.show_row("ckpt-path", False)
        self._load_text()
        self.load_weights()
        self.focus_button_when_ready()

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.select.id == "config":
            self._load_text()
        else:
            self.show_row("ckpt-path", event.value == PATH)
        super().on_select_changed(event)

    @property
    def choice(self) -> ConfigChoice | None:
        value = self.query_one("#config", Select).value
        return self.configs[value] if isinstance(value, int) else None

    async def loaded(self) -> None:
        await self._text_loaded.wait()

    def _load_text(self) -> None:
        self._text_loaded.clear()
        self._loading = self.choice, object()
        self._show_text(self._loading)

    @work(exclusive=True, group="config", exit_on_error=False, description="loading the config")
    async def _show_text(self, loading: tuple[ConfigChoice | None, object]) -> None:
        try:
            if (choice := loading[0]) is not None:
                await self._load(choice)
        finally:
            if loading is self._loading:  # else another one has been chosen
                self._text_loaded.set()

    async def _load(self, choice: ConfigChoice) -> None:
        area = self.query_one("#text", TextArea)
        text = choice.text
        if text is None:
            area.text = ""
            try:
                text = str((await self.request("read_config", name=choice.name)).get("text", ""))
            except RemoteError as error:
                self.show_problem(error.message, error.hint)
                return
        area.text = text
        # Scroll past the leading comment, which is for readers of the file.
        lines = text.splitlines()
        first = next((i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)
        area.move_cursor((first, 0))
        self.call_after_refresh(area.scroll_to, y=first, animate=False)

    @work(group="weights", exit_on_error=False, description="requesting starting weights")
    async def load_weights(self) -> None:
        """Fill the list of starting weights: checkpoints of the newest runs, then other weights on the box."""
        options: list[tuple[Text | str, str]] = []  # Text, because a name may have square brackets
        for run in self.runs[:RUNS_SEARCHED]:
            for checkpoint in reversed((await self._request_or_empty("show_run", run=run)).get("checkpoints") or []):
                if not checkpoint.get("problem"):
                    options.append((Text(f"{run} / step_{checkpoint.get('step')}"), str(checkpoint.get("path"))))
        for weights in (await self._request_or_empty("list_weights")).get("weights") or []:
            options.append((Text(f"{weights.get('name')}  ({weights.get('kind')})"), str(weights.get("path"))))
        select = self.query_one("#ckpt", Select)
        value = select.value
        select.set_options([*options, ("a path on the box …", PATH)])
        if value == PATH:
            select.value = PATH

    async def _request_or_empty(self, op: str, **params: Any) -> dict[str, Any]:
        """Reply of the box, or {} if it refuses."""
        try:
            return await self.request(op, **params)
        except RemoteError:
            return {}

    def build_request(self) -> Request:
        choice = self.choice
        text = self.query_one("#text", TextArea).text
        if choice is None:
            raise FieldError("config: no configs found on this machine or on the box; see --config-dir")
        if not text.strip():
            raise FieldError(f"config: {choice.name} is empty")
        ckpt = self.query_one("#ckpt", Select).value
        if ckpt == PATH and not self.value("ckpt-path"):
            raise MissingField("start from: enter a directory on the box")
        overrides = self.overrides()
        self._job()
        return LaunchRequest(
            config_text=text,
            config_name=f"config/{choice.name}",
            ckpt=self.value("ckpt-path") if ckpt == PATH else ckpt if isinstance(ckpt, str) else "",
            nproc=self.count("nproc", "processes"),
            overrides=[*overrides, *notify_overrides(self.notify_by, text, overrides)],
            run_name=self.value("run-name"),
            slurm=self._job_words(),
        )

    def _job_words(self) -> list[str]:
        return self.value("job").split() if self.job is not None else []

    def _job(self) -> JobOptions | None:
        """What the job would ask for. Raises FieldError."""
        try:
            return self.job.with_words(self._job_words()) if self.job is not None else None
        except ValueError as error:
            raise FieldError(f"job: {error}") from error

    def as_shown(self, request: Request, reply: dict[str, Any]) -> Request:
        assert isinstance(request, LaunchRequest)
        return replace(request, run_name=request.run_name or str(reply.get("run") or ""))

    def notes_of(self, reply: dict[str, Any]) -> list[str]:
        return Forecast.from_json(reply.get("estimate") or {}).lines(self.price or self._config_price)

    async def check(self, request: Request) -> str:
        assert isinstance(request, LaunchRequest)
        nproc = [] if request.nproc is None else [f"run.nproc={request.nproc}"]
        overrides = [*request.overrides, *nproc]
        config = await asyncio.to_thread(checked_config, request.config_text, overrides, request.config_name)
        self._config_price = config.budget.price_per_hour
        tasks = [part.name for part in config.task.parts or [config.task]]
        labels = [part.part_label for part in config.task.parts]
        others = [name for name in config.eval.datasets if name not in labels]
        for key, names in (("task.name", tasks), ("eval.datasets", others)):
            for name in names:
                if problem := await self.tasks.problem(name):
                    raise FieldError(f"{key}: {problem}")
        if self.query_one("#ckpt", Select).value == PATH:
            reply = await self.request("check_weights", path=request.ckpt)
            if reply.get("problem"):
                raise FieldError(f"start from: {request.ckpt}: {reply['problem']}")
        job = self._job()
        asked = f" · job: {' '.join(job.words()) or 'defaults of the cluster'}" if job is not None else ""
        return summary_of(config) + asked


def summary_of(config: Config) -> str:
    """A run in one line: steps, batch, task, model, processes."""
    processes = counted(config.run.nproc, "process", "processes")
    trained = "LoRA" if config.model.adapter == "lora" else "all weights"
    return (
        f"{config.run.total_steps} steps of {config.rollout.buffer_size} prompts × {config.rollout.num_generations} on "
        f"{config.task.name} · {config.model.backbone}, {trained} · {processes} · saved every {config.run.save_every}"
    )
