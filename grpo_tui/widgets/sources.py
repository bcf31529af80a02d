"""The line sources: train_log rows, console, rollouts, the latest completion, checkpoints with their evaluations."""

from __future__ import annotations

import re
import time

from rich.cells import cell_len
from rich.text import Text

from grpo_tui.model.checkpoints import CheckpointView
from grpo_tui.model.formatting import figure, metric, one_line
from grpo_tui.model.health import sentences_of, tone_of
from grpo_tui.model.run_logs import Completion, Row, row_time
from grpo_tui.model.store import Store
from grpo_tui.widgets.lines_panel import Palette

_FIRST = ("reward", "loss", "completions/mean_length", "grad_norm", "time/step")
_SHORT = {"completions/mean_length": "len", "time/step": "s/step", "grad_norm": "grad"}
MARKS = {"bad": "✖", "warn": "▲", "muted": "·"}
"""Of a health sentence, by its tone: never colour alone."""
_TAG = re.compile(r"</?[a-zA-Z_]+>")


def clock(seconds: float | None) -> str:
    """Time of day here, of a moment."""
    return time.strftime("%H:%M:%S", time.localtime(seconds)) if seconds else "        "


class TrainSource:
    """The rows of train_log.jsonl and, between them, the run's events."""

    title, follows, empty = "train_log", True, "no step logged yet"

    def __init__(self, store: Store) -> None:
        self.store = store

    def state(self) -> object:
        logs = self.store.logs
        return (logs.run, logs.version["train_log"]) if logs else None

    def bounds(self, width: int) -> tuple[int, int]:
        logs = self.store.logs
        return (logs.rows.first, logs.rows.end) if logs else (0, 0)

    def line(self, number: int, width: int, palette: Palette) -> Text:
        logs = self.store.logs
        row = logs.rows.get(number) if logs else None
        return _row_line(row, width, palette) if row else Text()


def _row_line(row: Row, width: int, palette: Palette) -> Text:
    """Time, step, then as many metrics as fit, the telling ones first."""
    fields = row.fields
    text = Text(clock(row_time(fields)), style=palette["muted"], no_wrap=True)
    text.append(f"  step {fields.get('step', '?'):<4}", style="bold")
    tone = next((tone_of(sentence) for sentence in sentences_of(fields.get("health"))), "muted")
    text.append(" " if tone == "muted" else MARKS[tone], style=palette[tone])
    rest = [key for key in fields if key not in (*_FIRST, "step", "time") and not key.startswith("time/")]
    for key in [key for key in _FIRST if key in fields] + rest:
        if isinstance(fields[key], (list, dict)):  # no figure
            continue
        value, style = fields[key], "" if key in _FIRST else palette["muted"]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            words = f"{metric(float(value)):<7}"
            style = palette["reward"] if key == "reward" else style
        else:
            words = one_line(str(value)[:24])
            style = palette["bad"] if value in ("NaN", "Infinity", "-Infinity") else style
        name = f" {_SHORT.get(key, key)} "
        if text.cell_len + len(name) + len(words.rstrip()) > width:
            break
        text.append(name, style=palette["muted"])
        text.append(words, style=style)
    text.rstrip()  # or the padding of the last figure would be cut, with an ellipsis
    return text


class ConsoleSource:
    """All that the job printed."""

    title, follows, empty = "console", True, "nothing printed yet"

    def __init__(self, store: Store) -> None:
        self.store = store

    def state(self) -> object:
        logs = self.store.logs
        return (logs.run, logs.version["console"]) if logs else None

    def bounds(self, width: int) -> tuple[int, int]:
        logs = self.store.logs
        return (logs.console.first, logs.console.end) if logs else (0, 0)

    def line(self, number: int, width: int, palette: Palette) -> Text:
        logs = self.store.logs
        line = (logs.console.get(number) if logs else None) or ""
        # Cut before Rich sees it: a line may have thousands of characters, the panel a hundred.
        text = Text(line[: width + 1], no_wrap=True)
        if re.search(r"\b(Error|Exception|Traceback|FAILED|CRITICAL)\b", line):
            text.stylize(palette["bad"])
        elif re.search(r"\b(warning|warn)\b", line, re.IGNORECASE):
            text.stylize(palette["warn"])
        return text


class RolloutsSource:
    """One completion a line."""

    title, follows, empty = "rollouts", True, "no completion yet"

    def __init__(self, store: Store) -> None:
        self.store = store

    def state(self) -> object:
        logs = self.store.logs
        return (logs.run, logs.version["rollouts"]) if logs else None

    def bounds(self, width: int) -> tuple[int, int]:
        logs = self.store.logs
        return (logs.completions.first, logs.completions.end) if logs else (0, 0)

    def line(self, number: int, width: int, palette: Palette) -> Text:
        logs = self.store.logs
        one = logs.completions.get(number) if logs else None
        if one is None:
            return Text()
        text = Text(clock(one.time), style=palette["muted"], no_wrap=True)
        text.append(f"  step {one.step:<5}", style="bold")
        text.append(" reward ", style=palette["muted"])
        good = one.reward is not None and one.reward > 0
        text.append(f"{'✔' if good else '·'} {figure(one.reward):<6}", style=palette["good" if good else "muted"])
        text.append(one_line(one.prompt[-120:])[-40:], style=palette["muted"])
        text.append(" → ", style=palette["faint"])
        text.append(one_line(one.text[: 4 * width])[:width])
        return text


class CompletionSource:
    """The latest completion, read as a page: the prompt's end, then what the model said. ← → turn to others."""

    title, follows, empty = "completion", False, "no completion yet"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.back = 0
        self._page: tuple[object, list[Text]] = (None, [])

    @property
    def note(self) -> str:
        logs = self.store.logs
        if not logs or not len(logs.completions):
            return ""
        return f"[dim]← {self.back} back →[/]" if self.back else "[dim]← older[/]"

    def browse(self, by: int) -> None:
        """Turn to an older (-1) or newer (+1) completion."""
        logs = self.store.logs
        self.back = min(max(0, self.back - by), max(0, len(logs.completions) - 1)) if logs else 0

    def state(self) -> object:
        one = self.completion
        return (one.offset, one.step, self.back) if one else None

    @property
    def completion(self) -> Completion | None:
        logs = self.store.logs
        if logs is None:
            return None
        return logs.completions.get(max(logs.completions.first, logs.completions.end - 1 - self.back))

    def bounds(self, width: int) -> tuple[int, int]:
        return 0, len(self._lines(width, Palette()))

    def line(self, number: int, width: int, palette: Palette) -> Text:
        lines = self._lines(width, palette)
        return lines[number].copy() if number < len(lines) else Text()

    def _lines(self, width: int, palette: Palette) -> list[Text]:
        one = self.completion
        if one is None or width < 4:
            return []
        key = (one.offset, one.step, width, tuple(palette.items()))
        if key != self._page[0]:
            self._page = (key, completion_page(one, width, palette))
        return self._page[1]


def completion_page(one: Completion, width: int, palette: Palette) -> list[Text]:
    """A completion laid out to a width."""
    good = one.reward is not None and one.reward > 0
    head = Text(no_wrap=True)
    head.append(
        f"{'✔' if good else '✖'} reward {figure(one.reward)}", style=f"bold {palette['good' if good else 'warn']}"
    )
    head.append(f"   step {one.step}", style=palette["muted"])
    if one.answer:
        head.append(f"   right answer {one_line(one.answer)[:40]}", style=palette["muted"])
    prompt = one.prompt.strip()
    if len(prompt) > 320:
        prompt = "…" + prompt[-320:]
    lines = [head]
    lines += wrapped(Text(_clean(prompt), style=palette["muted"]), width)
    lines += wrapped(_tagged(_clean(one.text.strip()) or "(nothing)", palette), width)
    return lines


def _clean(text: str) -> str:
    return "".join(character if character.isprintable() or character == "\n" else "·" for character in text)


def _tagged(text: str, palette: Palette) -> Text:
    """Tags faint, thinking in the colour of thought, the answer bright."""
    styled, style, at = Text(), "", 0
    for tag in _TAG.finditer(text):
        styled.append(text[at : tag.start()], style=style)
        styled.append(tag[0], style=palette["faint"])
        name = tag[0].strip("</>").lower()
        closing = tag[0].startswith("</")
        style = "" if closing else {"think": palette["think"], "answer": f"bold {palette['answer']}"}.get(name, style)
        at = tag.end()
    styled.append(text[at:], style=style)
    return styled


def wrapped(text: Text, width: int) -> list[Text]:
    """Wrap at words; a word longer than the line is cut."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        if cell_len(line.plain) <= width:
            lines.append(line)
            continue
        start, plain = 0, line.plain
        while start < len(plain):
            end = min(len(plain), start + width)
            while end > start + 1 and cell_len(plain[start:end]) > width:
                end -= 1
            if end < len(plain) and (space := plain.rfind(" ", start + width // 3, end)) > 0:
                end = space + 1
            lines.append(line[start:end])
            start = end
    return lines


class CheckpointsSource:
    """Complete and incomplete checkpoints, newest first, each with its evaluations, on further lines where need be."""

    title, follows, empty = "checkpoints", False, "none saved yet"

    def __init__(self, store: Store) -> None:
        self.store = store
        self._page: tuple[object, list[Text]] = (None, [])

    @property
    def note(self) -> str:
        return "[$secondary]◆ evaluating …[/]" if self.store.evaluating() else ""

    def state(self) -> object:
        return (self.store.selected, self.store.versions["shown"])

    def bounds(self, width: int) -> tuple[int, int]:
        return 0, len(self._lines(width, Palette()))

    def line(self, number: int, width: int, palette: Palette) -> Text:
        lines = self._lines(width, palette)
        return lines[number].copy() if number < len(lines) else Text()

    def _lines(self, width: int, palette: Palette) -> list[Text]:
        key = (self.state(), width, tuple(palette.items()))
        if key != self._page[0]:
            self._page = (key, [line for one in self.store.checkpoints() for line in _checkpoint(one, width, palette)])
        return self._page[1]


def _checkpoint(one: CheckpointView, width: int, palette: Palette) -> list[Text]:
    """A checkpoint's line, and more of them where its evaluations do not fit."""
    head = Text(no_wrap=True)
    head.append("✔ " if not one.problem else "✖ ", style=palette["good" if not one.problem else "bad"])
    head.append(f"{one.name:<11} ", style="bold")
    if one.problem:
        return [head.append(f"incomplete: {one.problem}", style=palette["bad"])]
    if not one.evaluations:
        return [head.append("not evaluated", style=palette["faint"])]
    lines, indent = [head], head.cell_len
    for index, result in enumerate(one.evaluations):
        words = Text(result.figure, style=f"bold {palette['answer']}")
        if result.spread:
            words.append(f" ±{result.spread}", style=palette["muted"])
        words.append(f" {result.dataset}", style=palette["muted"])
        if index and lines[-1].cell_len + 2 + words.cell_len > width:
            lines.append(Text(" " * indent, no_wrap=True))
        elif index:
            lines[-1].append("  ")
        lines[-1].append_text(words)
    return lines
