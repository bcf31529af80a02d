"""Line sources: training log, console, rollouts, the latest completion, checkpoints with their evaluations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from rich.cells import cell_len, get_character_cell_size
from rich.text import Text
from textual.content import Content

from grpo_train.run_dir.display import metric_text
from grpo_tui.box.asking import NOT_READ
from grpo_tui.box.events import records_of, tone_of_level
from grpo_tui.box.formatting import metric_value, one_line
from grpo_tui.box.log import Item, LineBuffer, RolloutRow, RunLogs, TrainLogRow, row_time
from grpo_tui.box.rows import CheckpointView
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import LineSource, PageSource, Palette

_FIRST = ("reward", "loss", "completions/mean_length", "grad_norm", "time/step")
_SHORT = {"completions/mean_length": "len", "time/step": "s/step", "grad_norm": "grad"}
MARKS = {"bad": "✖", "warn": "▲", "muted": "·"}
"""Mark of a health condition by its tone, so that color never carries the meaning alone."""
_TAG = re.compile(r"</?[a-zA-Z_]+>")
_ERROR = re.compile(r"\b(Error|Exception|Traceback|FAILED|CRITICAL)\b")
_WARNING = re.compile(r"\b(warning|warn)\b", re.IGNORECASE)


def clock(seconds: float | None) -> str:
    """Local time of day, given seconds since the epoch."""
    return time.strftime("%H:%M:%S", time.localtime(seconds)) if seconds else "        "


@dataclass
class LogSource(Generic[Item]):
    """Items of one of the run's logs, one per line."""

    store: Store
    title: str
    """Name of the log."""
    nothing: str
    """What an empty log says."""
    items: Callable[[RunLogs], LineBuffer[Item]]
    format: Callable[[Item, int, Palette], Text] = lambda item, width, palette: Text()
    follows = True

    @property
    def empty(self) -> str:
        return self.nothing if self.store.connected else NOT_READ

    def state(self) -> object:
        return (self.store.log_version(self.title), self.store.connected)

    def bounds(self, width: int) -> tuple[int, int]:
        if self.store.logs is None:
            return 0, 0
        items = self.items(self.store.logs)
        return items.first, items.end

    def line(self, index: int, width: int, palette: Palette) -> Text:
        item = self.items(self.store.logs).get(index) if self.store.logs else None
        return Text() if item is None else self.format(item, width, palette)

    def item(self, index: int) -> object:
        return self.items(self.store.logs).get(index) if self.store.logs else None


class TrainLogSource(LogSource[TrainLogRow]):
    """The rows of the training log, with a mark where a health condition begins."""

    def line(self, index: int, width: int, palette: Palette) -> Text:
        rows = self.items(self.store.logs) if self.store.logs else None
        if rows is None or (row := rows.get(index)) is None:
            return Text()
        return _row_line(row, rows.get(index - 1) if index > rows.first else None, width, palette)


def log_sources(store: Store) -> list[LineSource]:
    """The training log, the console and the rollouts."""
    return [
        TrainLogSource(store, "train_log", "no steps yet", lambda logs: logs.rows),
        LogSource(store, "console", "no output yet", lambda logs: logs.console, _console_line),
        LogSource(store, "rollouts", "no completions yet", lambda logs: logs.completions, _completion_line),
    ]


def _row_line(row: TrainLogRow, before: TrainLogRow | None, width: int, palette: Palette) -> Text:
    """Time, step, a mark where a condition begins, then as many metrics as fit, the main ones first."""
    fields = row.fields
    text = Text(clock(row_time(fields)), style=palette["muted"], no_wrap=True)
    text.append(f"  step {fields.get('step', '?'):<4}", style="bold")
    known = {(one["code"], one["level"]) for one in records_of(before.fields.get("health"))} if before else ()
    begun = [one for one in records_of(fields.get("health")) if (one["code"], one["level"]) not in known]
    tone = next((tone_of_level(record["level"]) for record in begun), "muted")
    text.append(" " if tone == "muted" else MARKS[tone], style=palette[tone])
    rest = [key for key in fields if key not in (*_FIRST, "step", "time") and not key.startswith("time/")]
    for key in [key for key in _FIRST if key in fields] + rest:
        if isinstance(fields[key], (list, dict)):
            continue
        value, style = fields[key], "" if key in _FIRST else palette["muted"]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text_of_value = f"{metric_text(key, float(value)):<7}"
            if key == "reward":  # 0 is not good
                style = palette["reward" if value > 0 else "bad" if value < 0 else "muted"]
        else:
            text_of_value = one_line(str(value)[:24])
            style = palette["bad"] if value in ("NaN", "Infinity", "-Infinity") else style
        name = f" {_SHORT.get(key, key)} "
        if text.cell_len + len(name) + len(text_of_value.rstrip()) > width:
            break
        text.append(name, style=palette["muted"])
        text.append(text_of_value, style=style)
    text.rstrip()  # else the padding of the last value is truncated with an ellipsis
    return text


def _console_line(line: str, width: int, palette: Palette) -> Text:
    # Truncated before Rich sees it: a line may have thousands of characters.
    text = Text(line[: width + 1], no_wrap=True)
    if _ERROR.search(line):
        text.stylize(palette["bad"])
    elif _WARNING.search(line):
        text.stylize(palette["warn"])
    return text


def _completion_line(completion: RolloutRow, width: int, palette: Palette) -> Text:
    text = Text(clock(completion.time), style=palette["muted"], no_wrap=True)
    text.append(f"  step {completion.step:<5}", style="bold")
    text.append(" reward ", style=palette["muted"])
    reward = f"{'✔' if completion.is_good else '·'} {metric_value(completion.reward):<6}"
    text.append(reward, style=palette["good" if completion.is_good else "muted"])
    text.append(one_line(completion.prompt[-120:])[-40:], style=palette["muted"])
    text.append(" → ", style=palette["faint"])
    text.append(one_line(completion.text[: 4 * width])[:width])
    return text


class CompletionSource(PageSource):
    """The latest completion as a page: the end of its prompt, then its text. Left and right show other completions."""

    title = "completion"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.back = 0

    @property
    def empty(self) -> str:
        return self.store.no_completions if self.store.connected else NOT_READ

    @property
    def note(self) -> str:
        logs = self.store.logs
        if not logs or not len(logs.completions):
            return ""
        return f"[dim]← {self.back} back →[/]" if self.back else "[dim]← older[/]"

    def browse(self, by: int) -> None:
        """Show an older (-1) or newer (+1) completion."""
        logs = self.store.logs
        self.back = min(max(0, self.back - by), max(0, len(logs.completions) - 1)) if logs else 0

    def state(self) -> object:
        one = self.completion
        return (one.offset, one.step, self.back) if one else self.store.connected

    @property
    def completion(self) -> RolloutRow | None:
        logs = self.store.logs
        if logs is None:
            return None
        return logs.completions.get(max(logs.completions.first, logs.completions.end - 1 - self.back))

    def layout(self, width: int, palette: Palette) -> list[Text]:
        one = self.completion
        return completion_page(one, width, palette) if one and width >= 4 else []


def completion_page(one: RolloutRow, width: int, palette: Palette) -> list[Text]:
    """A completion as lines of ``width`` cells."""
    head = Text(no_wrap=True)
    reward = f"{'✔' if one.is_good else '✖'} reward {metric_value(one.reward)}"
    head.append(reward, style=f"bold {palette['good' if one.is_good else 'warn']}")
    if one.answer:
        head.append(f"   correct: {one_line(one.answer)[:40]}", style=palette["muted"])
    head.append(f"   step {one.step}", style=palette["muted"])
    prompt = one.prompt.strip()
    if len(prompt) > 320:
        prompt = "…" + prompt[-320:]
    lines = [head]
    lines += wrapped(Text(prompt.expandtabs(4), style=palette["muted"]), width)
    lines += wrapped(_tagged(one.text.strip().expandtabs(4) or "(empty)", palette), width)
    return lines


def _tagged(text: str, palette: Palette) -> Text:
    """Text with dim tags, a dim thinking part and a bright answer."""
    styled, style, end = Text(), "", 0
    for tag in _TAG.finditer(text):
        styled.append(text[end : tag.start()], style=style)
        styled.append(tag[0], style=palette["muted"])
        name = tag[0].strip("</>").lower()
        closing = tag[0].startswith("</")
        style = "" if closing else {"think": palette["think"], "answer": f"bold {palette['answer']}"}.get(name, style)
        end = tag.end()
    styled.append(text[end:], style=style)
    return styled


def wrapped(text: Text, width: int) -> list[Text]:
    """Wrap at words. A word longer than the line is split."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        if cell_len(line.plain) <= width:
            lines.append(line)
            continue
        lines += line.divide(_breaks(line.plain, width))
    return lines


def _breaks(plain: str, width: int) -> list[int]:
    """Where to break a line so that each part has at most ``width`` cells. Time is linear: a box sends the text."""
    found: list[int] = []
    start = 0
    while start < len(plain):
        end, cells = start, 0
        while end < len(plain) and (cells := cells + get_character_cell_size(plain[end])) <= width:
            end += 1
        end = max(end, start + 1)
        if end < len(plain):
            if (space := plain.rfind(" ", start + width // 3, end)) > 0:
                end = space + 1
            found.append(end)
        start = end
    return found


CHECKPOINT_LINES = 500
"""Lines of the list of checkpoints …"""
EVALUATION_LINES = 20
"""… and of one checkpoint in it."""


class CheckpointsSource(PageSource):
    """Checkpoints, newest first, with their evaluations."""

    title = "checkpoints"

    @property
    def empty(self) -> str:
        return "loading …" if self.store.shown_at is None and self.store.run else "no checkpoints yet"

    @property
    def note(self) -> str:
        text = self.store.evaluating()
        return f"[$secondary]◆ {Content(text).markup}[/]" if text else ""

    def state(self) -> object:
        return (self.store.selected, self.store.versions["shown"], self.store.shown_at is None)

    def layout(self, width: int, palette: Palette) -> list[Text]:
        checkpoints = self.store.checkpoints()
        lines: list[Text] = []
        for index, one in enumerate(checkpoints):
            if len(lines) >= CHECKPOINT_LINES:
                lines.append(Text(f"{len(checkpoints) - index:,} older checkpoints", style=palette["muted"]))
                break
            lines += _checkpoint(one, width, palette)[:EVALUATION_LINES]
        return lines


def _checkpoint(one: CheckpointView, width: int, palette: Palette) -> list[Text]:
    """Lines of a checkpoint: more than one if its evaluations do not fit."""
    head = Text(no_wrap=True)
    head.append("✔ " if not one.problem else "✖ ", style=palette["good" if not one.problem else "bad"])
    head.append(f"{one.name:<11} ", style="bold")
    if one.problem:
        problem = one.problem if one.step is None else f"incomplete: {one.problem}"
        return [head.append(one_line(problem), style=palette["bad"])]
    if not one.evaluations:
        return [head.append("not evaluated", style=palette["muted"])]
    lines, indent = [head], head.cell_len
    for index, result in enumerate(one.evaluations):
        entry = Text(result.figure, style=f"bold {palette['answer']}")
        if result.spread:
            entry.append(f" ±{result.spread}", style=palette["muted"])
        entry.append(f" {result.dataset}", style=palette["muted"])
        if index and lines[-1].cell_len + 2 + entry.cell_len > width:
            lines.append(Text(" " * indent, no_wrap=True))
        elif index:
            lines[-1].append("  ")
        lines[-1].append_text(entry)
    return lines
