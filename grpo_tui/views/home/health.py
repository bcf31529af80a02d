"""Health of the run: a line with the worst condition of the newest step, and a page with all conditions."""

from __future__ import annotations

from textwrap import wrap

from rich.text import Text
from textual.content import Content
from textual.message import Message

from grpo_train.run_dir.files import to_float
from grpo_tui.model.formatting import metric_value, one_line, shortened
from grpo_tui.model.health import Condition
from grpo_tui.widgets.lines_panel import PageSource, Palette
from grpo_tui.widgets.panel import Line, from_markup
from grpo_tui.widgets.sources import MARKS, wrapped

_COLORS = {"bad": "$error", "warn": "$warning", "muted": "$text-muted"}
_ELSEWHERE = ("time", "completions")
"""Families of metrics (the family of ``time/step`` is ``time``) that other panels show."""
_ORDER = (
    "groups", "hacking", "sandbox", "", "ess", "clip_ratio", "mismatch", "gns", "ratio", "logp_difference", "accuracy",
    "rewards", "memory",
)  # fmt: skip
"""Order of the other families. Unlisted ones, such as a task's, take the place of "": home shows only six lines."""
LABEL = 13
"""Cells of the labels in the summary of a run."""
_MARGIN = 16
_GAP = 3
"""Cells between two metrics on a line."""


class HealthLine(Line):
    """``health  ▲ warning: 62 % of groups carry no signal (…)  +2``. A click opens the page."""

    class Opened(Message):
        """The line was clicked."""

    def state(self) -> object:
        return self.store.log_version("train_log")

    def lines(self) -> int:
        """Rows of the line: a long condition has two."""
        return len(self._wrapped())

    def _wrapped(self) -> list[str]:
        now = self.store.logs.health.now if self.store.logs else []
        text = f"{MARKS[now[0].tone]} {_labeled(now[0])}" if now else "✔ healthy"
        room = max(10, self.size.width - LABEL)
        lines = wrap(text, room, subsequent_indent="  ")
        return [*lines[:1], " ".join([lines[1], *map(str.strip, lines[2:])])] if len(lines) > 1 else lines

    def render(self) -> Content:
        now = self.store.logs.health.now if self.store.logs else []
        color = _COLORS[now[0].tone] if now else "$text-muted"
        more = from_markup(f"[$text-muted]  +{len(now) - 1}[/]" if len(now) > 1 else "")
        first, *rest = self._wrapped()[: max(1, self.size.height)]
        label = from_markup("[$text-muted]$label[/]", label=f"{'health':<{LABEL}}")
        shown = [label + from_markup(f"[{color}]$text[/]", text=first)]
        shown += [Content(" " * LABEL) + from_markup(f"[{color}]$text[/]", text=line) for line in rest]
        shown[-1] = shown[-1].truncate(max(1, self.size.width - more.cell_length), ellipsis=True) + more
        return Content("\n").join(shown)

    def on_click(self) -> None:
        self.post_message(self.Opened())


class HealthSource(PageSource):
    """Conditions with the step since which they hold, past conditions, and the metrics behind them."""

    title, empty = "health", "no health logged"

    def state(self) -> object:
        return self.store.log_version("train_log")

    def layout(self, width: int, palette: Palette) -> list[Text]:
        if self.store.logs is None or width < 2 * _MARGIN:
            return []
        sections = [self._now(width, palette), self._past(width, palette), self._metrics(width, palette)]
        return [line for section in sections if section for line in (Text(), *section)][1:]

    def _now(self, width: int, palette: Palette) -> list[Text]:
        health = self.store.logs.health if self.store.logs else None
        if health is None or not health.is_logged:
            return []
        if not health.now:
            return [Text("✔ healthy", style=palette["good"])]
        lines: list[Text] = []
        for one in health.now:
            # of a long log only the end is here: what held in its first row may have begun earlier
            begun = "since" if one.since != self.store.logs.health_from else "before"  # type: ignore[union-attr]
            lines += _entry(f"{begun} {one.since}", _toned(one, palette), width, palette)
        return lines

    def _past(self, width: int, palette: Palette) -> list[Text]:
        lines: list[Text] = []
        for one in self.store.logs.health.past if self.store.logs else ():
            text = Text().append(f"{MARKS[one.tone]} {_labeled(one)}", style=palette["muted"])
            if one.steps > 1:
                text.append(f" · {one.steps} steps since {one.first}", style=palette["muted"])
            lines += _entry(f"last {one.last}", text, width, palette)
        return lines

    def _metrics(self, width: int, palette: Palette) -> list[Text]:
        """Metrics of the newest row by family; ``tictactoe/X/reward`` is listed under ``tictactoe/X``."""
        row = self.store.logs.rows.last if self.store.logs else None
        families: dict[tuple[str, str], list[Text]] = {}
        for key, value in (row.fields if row else {}).items():
            family, _, name = key.partition("/")
            number = to_float(value)
            if not name or family in _ELSEWHERE or (number is None and not isinstance(value, str)):
                continue
            subfamily, _, name = name.rpartition("/")
            text = one_line(str(value)[:40]) if number is None else metric_value(number)
            entry = Text(f"{one_line(name)} ", style=palette["muted"], no_wrap=True)
            entry.append(text, style=palette["muted"] if number == 0 or number != number else "bold")
            families.setdefault((one_line(family), one_line(subfamily)), []).append(entry)
        lines: list[Text] = []
        previous = ""
        ordered = sorted(families, key=lambda names: (_ORDER.index(names[0] if names[0] in _ORDER else ""), names))
        for family, subfamily in ordered:
            entries = families[family, subfamily]
            if subfamily:
                entries.insert(0, Text(subfamily, style=palette["muted"]))
            head = "" if family == previous else shortened(family, _MARGIN - 1)
            lines += _headed(head, _side_by_side(entries, width - _MARGIN), palette)
            previous = family
        return lines


def _labeled(one: Condition) -> str:
    """``warning: …``; information has no label."""
    return one.message if one.tone == "muted" else f"{one.level}: {one.message}"


def _toned(one: Condition, palette: Palette) -> Text:
    """A condition after its mark; the label of an alarm or a warning is colored."""
    if one.tone == "muted":
        return Text().append(f"{MARKS[one.tone]} {one.message}", style=palette["muted"])
    label = Text().append(f"{MARKS[one.tone]} {one.level}:", style=f"bold {palette[one.tone]}")
    return label.append(f" {one.message}")


def _side_by_side(entries: list[Text], width: int) -> list[Text]:
    """Entries on as few lines as possible; none is split."""
    lines: list[Text] = []
    for entry in entries:
        if lines and lines[-1].cell_len + _GAP + entry.cell_len <= width:
            lines[-1].append(" " * _GAP).append_text(entry)
        else:
            lines.append(Text(no_wrap=True).append_text(entry))
    return lines


def _entry(head: str, text: Text, width: int, palette: Palette) -> list[Text]:
    """Text, wrapped, beside a margin with its head."""
    return _headed(head, wrapped(text, width - _MARGIN), palette)


def _headed(head: str, lines: list[Text], palette: Palette) -> list[Text]:
    """Lines beside a margin with their head."""
    entries = []
    for index, line in enumerate(lines):
        entry = Text(no_wrap=True)
        entry.append(f"{'' if index else head:<{_MARGIN}}", style=palette["muted"])
        entries.append(entry.append_text(line))
    return entries
