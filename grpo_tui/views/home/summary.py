"""The selected run in a few lines: model, step time by stage, checkpoints with a cursor, health."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.message import Message

from grpo_train.run_dir.verdict import RunVerdict
from grpo_tui.box.asking import asking_words
from grpo_tui.box.formatting import compact_number, cut, one_line, shortened
from grpo_tui.box.rows import CheckpointView, Transfer, WorkflowPart, transfer_lines, workflow_parts
from grpo_tui.box.run_columns import ADAPTERS, base_name
from grpo_tui.box.run_facts import KnownFacts
from grpo_tui.box.store import Store
from grpo_tui.kit.panel import Line, StoreView, from_markup, toned
from grpo_tui.views.home.panels import LABEL, HealthLine

_TONES = {"bad": "bold $error", "warn": "$warning", "good": "$success"}


def _labeled(label: str, text: Content) -> Content:
    return from_markup("[$text-muted]$label[/]", label=f"{label:<{LABEL}}") + text


class ModelLine(Line):
    """``Qwen2.5-1.5B · LoRA r=64 · 64 prompts × 8``."""

    def __init__(self, store: Store, facts: Callable[[], KnownFacts]) -> None:
        super().__init__(store)
        self._facts = facts

    def state(self) -> object:
        return (self.store.selected, self._facts().version, self._facts().asking.problem, self.size)

    def render(self) -> Content:
        facts = self._facts()
        config = facts.configs.get(self.store.selected or "")
        if config is None:
            text = facts.asking.problem or (asking_words() if self.store.connected and self.store.selected else "")
            return from_markup("[$text-muted]$text[/]", text=text)
        return Content(shortened(one_line(about(config)) or "no configuration yet", max(9, self.size.width)))


def about(config: Mapping[str, Any]) -> str:
    """Task, model, adapter, prompts and completions of a configuration."""
    rank = config.get("model.lora_rank")
    adapter = ADAPTERS.get(str(config.get("model.adapter")), "")
    prompts, samples = config.get("rollout.buffer_size"), config.get("rollout.num_generations")
    parts = [
        str(config.get("task.name") or ""),
        base_name(str(config.get("model.backbone") or "")),
        f"{adapter} r={rank}" if adapter == "LoRA" and rank else adapter,
        f"{prompts} prompts × {samples}" if prompts and samples else "",
    ]
    return " · ".join(part for part in parts if part)


class NoteLine(Line):
    """The note on the run."""

    def state(self) -> object:
        return (self.note, self.size)

    @property
    def note(self) -> str:
        return self.store.run.note if self.store.run else ""

    def render(self) -> Content:
        return _labeled("note", Content(self.note)).truncate(max(1, self.size.width), ellipsis=True)


class VerdictLine(Line):
    """``▼ collapsed  reward 1.84 ▼ 0.00, steps 41–50, 1 step after learning_rate 0.0001→0.002``, in one or two rows."""

    @property
    def verdict(self) -> RunVerdict | None:
        return self.store.run.verdict if self.store.run else None

    def lines(self) -> int:
        """Rows of the line."""
        return min(2, len(self._wrapped()))

    def _wrapped(self) -> list[str]:
        return wrap(self.verdict.text, max(10, self.size.width - LABEL)) if self.verdict is not None else []

    def state(self) -> object:
        return (self.verdict, self.size)

    def render(self) -> Content:
        verdict = self.verdict
        if verdict is None:
            return Content()
        word = from_markup(f"[{_TONES[verdict.tone]}]$word[/]", word=f"{f'{verdict.mark} {verdict.word}':<{LABEL}}")
        return in_rows(word, self._wrapped(), self.size, "$foreground")


def in_rows(label: Content, lines: Sequence[str], size: Size, style: str) -> Content:
    """Lines of text after a label, in one row or two."""
    first, *rest = lines or [""]
    if size.height == 1 and rest:
        first, rest = " ".join([first, *rest]), []
    room = max(1, size.width - label.cell_length)
    rows = [label + from_markup(f"[{style}]$text[/]", text=cut(first, room))]
    rows += [_labeled("", from_markup(f"[{style}]$text[/]", text=cut(" ".join(rest), room)))] if rest else []
    return Content("\n").join([row.truncate(max(1, size.width), ellipsis=True) for row in rows])


class NextLine(Line):
    """``next         r: resume at 40, learning_rate 1e-4``, of a run that is not well, in one or two rows."""

    def __init__(self, store: Store, next_of: Callable[[str], str]) -> None:
        super().__init__(store)
        self._next_of = next_of

    def lines(self) -> int:
        """Rows of the line."""
        return min(2, len(self._wrapped()))

    def _wrapped(self) -> list[str]:
        return wrap(self._next_of(self.store.selected or ""), max(10, self.size.width - LABEL))

    def state(self) -> object:
        return (self._next_of(self.store.selected or ""), self.size)

    def render(self) -> Content:
        return in_rows(_labeled("next", Content()), self._wrapped(), self.size, "b")


class WorkflowLine(Line):
    """``3 of 9 done · ▸ evaluate step 100 · then back up at step 100, train to step 150 …``."""

    COLORS: ClassVar = {"done": "$success", "now": "$primary", "bad": "$error", "muted": "$text-muted"}

    @property
    def parts(self) -> list[WorkflowPart]:
        return workflow_parts(self.store.shown.get("workflow") or {}, self.store.run)

    def state(self) -> object:
        return (tuple(self.parts), self.size)

    def render(self) -> Content:
        shown = [from_markup(f"[{self.COLORS[part.tone]}]$text[/]", text=part.text) for part in self.parts]
        line = _labeled("workflow", from_markup("[$grpo-faint] · [/]").join(shown))
        return line.truncate(max(1, self.size.width), ellipsis=True)


class TransferLine(Line):
    """The command at work on the run's backups; of one that failed, its error and the command that continues."""

    @property
    def transfer(self) -> Transfer | None:
        return self.store.run.transfer if self.store.run else None

    def lines(self) -> int:
        return 0 if self.transfer is None else len(transfer_lines(self.transfer, self.size.width))

    def state(self) -> object:
        return (self.transfer, self.size)

    def render(self) -> Content:
        transfer, width = self.transfer, max(1, self.size.width)
        if transfer is None:
            return Content()
        color = "$error" if transfer.has_failed else "$secondary"
        first, *rest = transfer_lines(transfer, width - LABEL)
        shown = [_labeled(transfer.command, from_markup(f"[{color}]$text[/]", text=first))]
        shown += [_labeled("", from_markup("[$grpo-muted]$text[/]", text=line)) for line in rest]
        return Content("\n").join([line.truncate(width, ellipsis=True) for line in shown])


class SummaryPanel(StoreView, Vertical, can_focus=True):
    """The lines in one frame. Without room for it, a transfer takes a line, and a verdict or a warning does.

    With the keys, left and right move over the checkpoints.
    """

    ALLOW_MAXIMIZE = False
    BINDINGS: ClassVar = [("left", "checkpoint(-1)"), ("right", "checkpoint(1)")]

    def __init__(
        self, store: Store, facts: Callable[[], KnownFacts], next_of: Callable[[str], str], *, id: str
    ) -> None:
        super().__init__(store, id=id, classes="panel")
        self._facts, self._next_of = facts, next_of

    def compose(self) -> ComposeResult:
        yield VerdictLine(self.store)
        yield NextLine(self.store, self._next_of)
        yield ModelLine(self.store, self._facts)
        yield StageBar(self.store, id="stages")
        yield CheckpointsLine(self.store)
        yield WorkflowLine(self.store)
        yield TransferLine(self.store)
        yield NoteLine(self.store)
        yield HealthLine(self.store, id="health")

    def heights(self, is_line: bool) -> tuple[int, ...]:
        """Rows of each line, in their order; 0: it is not shown."""
        logs, told = self.store.logs, self.query_one(VerdictLine)
        is_bad = told.verdict is not None and told.verdict.tone != "good"
        verdict, after = told.lines(), self.query_one(NextLine).lines()
        transfer, workflow = self.query_one(TransferLine).lines(), bool(self.query_one(WorkflowLine).parts)
        if is_line:
            is_warned = logs is not None and logs.health.tone != "muted" and not is_bad
            rows: dict[type[Line], int] = {
                VerdictLine: int(is_bad), NextLine: int(is_bad and after > 0), TransferLine: min(1, transfer),
                HealthLine: int(is_warned),
            }  # fmt: skip
        else:
            health = self.query_one(HealthLine).lines() if logs is not None and logs.health.is_logged else 0
            rows = {
                VerdictLine: verdict, NextLine: after, ModelLine: 1, StageBar: 1, CheckpointsLine: 1,
                WorkflowLine: int(workflow), TransferLine: transfer, NoteLine: int(bool(self.query_one(NoteLine).note)),
                HealthLine: health,
            }  # fmt: skip
        return tuple(rows.get(type(line), 0) for line in self.query(Line))

    def show_as(self, heights: tuple[int, ...], is_line: bool) -> None:
        """Show all lines in a frame, or what is urgent alone without one."""
        self.set_class(is_line, "-line")
        self.can_focus = not is_line
        for line, height in zip(self.query(Line), heights, strict=True):
            line.display = height > 0
            line.styles.height = max(1, height)

    def state(self) -> object:
        return None

    def refresh_titles(self) -> None:
        line = self.query_one(CheckpointsLine)
        line.has_cursor = self.has_focus
        below = toned(self.store.freshness())
        if self.has_focus and line.current is not None:
            hint = from_markup("[$text-muted]$key opens the completions[/]  ", key=self.key("open"))
            below = hint + below
        self.set_titles(from_markup("$name", name=shortened(self.store.selected or "", 60)), below)

    @property
    def checkpoint(self) -> CheckpointView | None:
        """The checkpoint under the cursor."""
        return self.query_one(CheckpointsLine).current

    def action_checkpoint(self, by: int) -> None:
        """Move the cursor over the checkpoints."""
        self.query_one(CheckpointsLine).move(int(by))


_COLORS = {
    "rollout": "$chart-reward", "train": "$chart-loss", "save": "$chart-length", "score": "$chart-grad",
    "reward": "$chart-entropy", "other": "$grpo-faint",
}  # fmt: skip
"""By name, so that stages of similar length keep their colors from step to step."""


class StageBar(Line):
    """``step time 3.1 s ▐ rollout 1.9 ▌▐ train 1.1 ▌``, the mean of the last 15 steps."""

    def state(self) -> object:
        return self.store.log_version("train_log")

    def render(self) -> Content:
        stages = self.store.logs.stage_times() if self.store.logs else []
        step = self.store.logs.recent("time/step") if self.store.logs else None
        named = sum(seconds for _, seconds in stages)
        total = max(step or 0.0, named)
        if not total:
            said = "no steps yet" if not (self.store.run and self.store.run.step) else "not logged"
            return from_markup(f"[$text-muted]step time    {said}[/]")
        if named and total - named > 0.02 * total:
            stages = [*stages, ("other", total - named)]
        head = from_markup(
            f"[$text-muted]step time[/]    [bold]{compact_number(round(total, 2))}[/] [$text-muted]s[/]  "
        )
        if not named:
            return head + from_markup("[$text-muted](its stages are not logged)[/]")
        room = max(0, self.size.width - head.cell_length)
        parts = [head]
        used = 0
        for name, seconds in stages:
            width = min(room - used, max(1, round(room * seconds / total)))
            if width <= 0:
                break
            used += width
            start = "▏" if used > width else " "  # a line between two stages: colors are not seen everywhere
            label = f"{start}{name} {compact_number(round(seconds, 2))}"
            label = label if len(label) < width else f"{start}{name}" if len(name) + 1 < width else start.strip()
            color = _COLORS.get(name, "$chart-zero")
            parts.append(from_markup(f"[$background on {color}]$label[/]", label=f"{label:<{width}}"))
        return Content.assemble(*parts)


GAP = 2


class CheckpointsLine(Line):
    """``checkpoints  step_30 .830  step_20 .710 (2 more)``, the newest first. A click opens one."""

    class Opened(Message):
        """A checkpoint was clicked."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.has_cursor = False
        """Whether its panel has the keys."""
        self._cursor: tuple[str, int] | None = None
        """Run and step under the cursor; None: the newest."""
        self._spans: list[tuple[int, int, int]] = []
        """Where each step is."""

    @property
    def views(self) -> list[CheckpointView]:
        return [view for view in self.store.checkpoints() if view.step is not None]

    @property
    def current(self) -> CheckpointView | None:
        """The checkpoint under the cursor."""
        views = self.views
        return views[self._place(views)] if views else None

    def _place(self, views: list[CheckpointView]) -> int:
        wanted = self._cursor[1] if self._cursor is not None and self._cursor[0] == self.store.selected else None
        return next((index for index, view in enumerate(views) if view.step == wanted), 0)

    def move(self, by: int) -> None:
        """Move the cursor: to the right are the older ones."""
        views = self.views
        if views and self.store.selected is not None:
            view = views[min(len(views) - 1, max(0, self._place(views) + by))]
            assert view.step is not None
            self._cursor = (self.store.selected, view.step)
            self.tick()

    def state(self) -> object:
        store = self.store
        return (
            store.versions["shown"], store.versions["sessions"], store.selected, self.size, self.has_cursor,
            self._cursor, self.app.theme,
        )  # fmt: skip

    def render(self) -> Content:
        views = self.views
        label = Content.from_markup("[$text-muted]$label[/]", label=f"{'checkpoints':<{LABEL}}")
        if not views:
            is_over = self.store.run is not None and self.store.run.is_over
            unknown = "" if self.store.shown_at is None else "none saved" if is_over else "none saved yet"
            self._spans = []
            return label + Content.from_markup("[$text-muted]$text[/]", text=unknown)
        place = self._place(views) if self.has_cursor else 0
        parts = [self._part(view, self.has_cursor and index == place) for index, view in enumerate(views)]
        first = 0
        while (shown := self._fitting(parts[first:])) <= place - first and first < place:
            first += 1
        text = label + Content("… " if first else "")
        self._spans = []
        for view, part in zip(views[first:], parts[first : first + shown], strict=False):
            text += Content(" " * GAP) if self._spans else Content()
            self._spans.append((text.cell_length, text.cell_length + part.cell_length, view.step or 0))
            text += part
        if working := self.store.evaluating():
            text += Content.from_markup("  [$secondary]◆ $working[/]", working=working)
        if left := len(views) - first - shown:
            text += Content.from_markup(" [$text-muted]($left more)[/]", left=str(left))
        return text

    def _fitting(self, parts: list[Content]) -> int:
        """How many of the parts fit; one in any case."""
        working = self.store.evaluating()
        room = self.size.width - LABEL - 11 - (cell_len(working) + 4 if working else 0)
        count = used = 0
        for part in parts:
            used += part.cell_length + 3
            if used > room:
                break
            count += 1
        return max(1, count)

    @staticmethod
    def _part(view: CheckpointView, is_current: bool) -> Content:
        figure = next((result.figure for result in view.evaluations if result.spread), "")
        tone = "[reverse]" if is_current else "[$warning]" if view.problem else "[$foreground]"
        name = Content.from_markup(f"{tone}$name[/]", name=view.name)
        return name + Content.from_markup("[bold]$figure[/]", figure=f" {figure}" if figure else "")

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset_capture(self).x
        for start, end, step in self._spans:
            if start <= at < end:
                self.post_message(self.Opened(step))
