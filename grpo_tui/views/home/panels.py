"""Panels of Home: health of the selected run, what needs the user, notices in place of the list."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from textwrap import wrap
from typing import Any, ClassVar

from rich.text import Text
from textual.content import Content
from textual.message import Message

from grpo_train.run_dir.display import duration, metric_text, state_label
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.installation import install_command
from grpo_tui.box.events import Condition
from grpo_tui.box.formatting import cut, one_line, shortened
from grpo_tui.box.needs import GLYPHS, Need, Needs
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import ListPanel, PageSource, Palette
from grpo_tui.kit.panel import TONES, Line, Panel, from_markup
from grpo_tui.kit.plot import lines_in_blocks
from grpo_tui.kit.sources import MARKS, wrapped
from remote.events import Link
from remote.protocol.rows import UNREADABLE

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
        wrapped, rows = self._wrapped(), max(1, self.size.height)
        first, *rest = [*wrapped[: rows - 1], " ".join(map(str.strip, wrapped[rows - 1 :]))]
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
            text = one_line(str(value)[:40]) if number is None else metric_text(key, number)
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


INDENT = 9
"""Cells before the text: mark and time."""
LEAST_DETAIL = 12
"""Cells below which what happened is left out for what to do."""


class NeedsPanel(ListPanel):
    """The cursor stays on its entry."""

    COMPONENT_CLASSES: ClassVar = {"needs--bad", "needs--warn", "needs--good"}

    class Opened(Message):
        """An entry was clicked."""

        def __init__(self, need: Need) -> None:
            super().__init__()
            self.need = need

    def __init__(self, store: Store, needs: Callable[[], Needs], *, id: str) -> None:
        super().__init__(store, id=id)
        self._needs = needs

    @property
    def entries(self) -> list[Need]:
        return self._needs().entries

    @property
    def current(self) -> Need | None:
        """The entry under the cursor."""
        at = self.cursor
        return self.entries[at // 2] if at >= 0 else None

    @property
    def lines_wanted(self) -> int:
        """Rows of content."""
        return 2 * len(self.entries)

    @property
    def count(self) -> int:
        return 2 * len(self.entries)

    def identity(self, index: int) -> object:
        return None if index % 2 else self.entries[index // 2].key

    def clicked(self, index: int) -> None:
        self.move_to(index - index % 2, 1)
        self.post_message(self.Opened(self.entries[index // 2]))

    def state(self) -> object:
        return (tuple(self.entries), self.cursor, self.size, self.app.theme, self.has_focus)

    def refresh_titles(self) -> None:
        count = len(self.entries)
        title = from_markup("needs you [$text-muted]$count[/]", count=str(count))
        keys = from_markup(
            "[$text-muted]$open opens · $dismiss dismisses[/]", open=self.key("open"), dismiss=self.key("dismiss")
        )
        shown = self.current or next(iter(self.entries), None)
        if self.size.height == 1 and shown is not None and shown.then:  # there is no row for it
            keys = from_markup("[b]$then[/] [$text-muted]· $open opens[/]", then=shown.then, open=self.key("open"))
        self.set_titles(title, keys)

    def line(self, index: int, width: int) -> Text:
        need = self.entries[index // 2]
        muted = self.get_component_rich_style("list--muted", partial=True)
        if index % 2:
            room = width - INDENT - len(need.then) - 2
            if need.then and room < LEAST_DETAIL:
                return Text(" " * INDENT + cut(need.then, width - INDENT), no_wrap=True)
            detail = cut(need.detail, room if need.then else width - INDENT)
            text = Text(" " * INDENT + detail, no_wrap=True)
            return text.append(f"; {need.then}" if need.then and need.detail else need.then)
        today = time.localtime(self.store.now())[:3] == time.localtime(need.at)[:3]
        at = time.strftime("%H:%M" if today else "%m-%d", time.localtime(need.at))
        tone = self.get_component_rich_style(f"needs--{need.tone}", partial=True)
        text = Text(no_wrap=True)
        text.append(f"{GLYPHS[need.tone]} ", style=tone)
        text.append(f"{at}  ", style=muted)
        text.append(need.text)
        return text


_CURVE = "⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⢀⣀⡠⠤⠔⠒⠒⠊⠉⠉\n⠀⠀⠀⠀⠀⢀⡠⠔⠊⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀\n⣀⡠⠤⠒⠊⠁⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀"


WELCOME = 76
"""Cells of the lines of the first screen."""
_CHECK_KEYS = ("name", "detail", "hint")
_RETRIES = Content("Runs on the box continue. The list is requested again every few seconds.")


@dataclass(frozen=True)
class _Message:
    tone: str
    headline: str
    text: Content
    keys: Content = field(default_factory=Content)
    curve: bool = False


class Notice(Line):
    """One of: connecting, unreachable, not connected, the box cannot train, no runs yet, a first start."""

    launch_hint = ""
    """Shown while there are no runs, instead of the key that launches one (markup)."""

    @property
    def wanted(self) -> bool:
        """Whether the notice replaces the panels."""
        return not self.store.runs or self.store.link.state is Link.REFUSED

    def state(self) -> object:
        return self._message()

    def _message(self) -> _Message:
        store, link = self.store, self.store.link
        detail = Content(link.detail)
        if link.state is Link.REFUSED:
            return _Message("$error", f"not connected to {store.box}", detail, self._keys())
        if store.runs is None and link.state in (Link.LOST, Link.CLOSED):
            label, _ = store.link_label()
            text = _paragraphs(detail, Content(f"{label}\nRuns on the box continue."))
            return _Message("$error", f"cannot reach {store.box}", text, self._keys())
        if store.runs is None and (problem := store.topic_problem("runs")):
            text = _paragraphs(Content(problem), _RETRIES)
            return _Message("$warning", f"{store.box} cannot list its runs", text, self._keys(again=False))
        if store.runs is None:
            waited = store.now() - store.link_since
            elapsed = Content(duration(waited) if waited >= 3 else "")
            return _Message("$secondary", f"connecting to {store.box} …", detail or elapsed, curve=True)
        if self.app.is_first_start and not self.launch_hint:
            return _Message("$primary", "Welcome to grpo-tui", self._welcome(), curve=True)
        if check := store.failed_check():
            text, keys = _check_text(check), self._keys()
            return _Message("$warning", "this box cannot train yet", text, keys)
        hint = self.launch_hint or f"press [bold $primary]{self.key('launch')}[/] to launch a run"
        return _Message("$primary", "no runs yet", Content.from_markup(hint), curve=True)

    def _welcome(self) -> Content:
        """What a newcomer can do, in lines of one width: the notice is centered."""
        add, launch = (f"[bold $primary]{self.key(name)}[/]" for name in ("boxes", "launch"))
        up, demo = ("[bold $accent]grpo-tui up --box NAME[/]", "[bold $accent]grpo-tui --demo[/]")
        width, check = min(max(20, self.size.width), WELCOME), self.store.failed_check()
        demo = f"{demo}, in a shell: a tiny model learns to add, in minutes"
        here = [f"{launch} launches a run here", demo]
        if self._no_engine:
            here = [f"{demo}. It needs the engine first: [bold $accent]$install[/]"]
        elif check is not None:
            here = ["[$warning]▲ it cannot train yet:[/] $check", demo]
        sections = {
            "Reinforcement learning for language models on a GPU box, in four steps": [
                "rent a machine with an NVIDIA GPU, Python 3.10, git, tmux and SSH",
                f"{add} adds it here: a name and an address are enough",
                f"{up} in your clone installs the engine there",
                f"{launch} launches your own config",
            ],
            "On this machine, without a GPU": here,
        }
        texts = {"install": self._no_engine, "check": " · ".join(filter(None, map((check or {}).get, _CHECK_KEYS)))}
        lines: list[Content] = []
        for heading, steps in sections.items():
            lines += [Content()] * bool(lines) + Content.from_markup(f"[bold]{heading}[/]").wrap(width)
            for number, step in enumerate(steps, 1):
                mark = str(number) if steps is not here else "·"
                wrapped_step = Content.from_markup(step, **texts).wrap(width - 3)
                lines += [Content.styled(f"{mark}  ", "$text-muted") + wrapped_step[0]]
                lines += [Content("   ") + line for line in wrapped_step[1:]]
        room = max(line.cell_length for line in lines)
        return Content("\n").join([line + Content(" " * (room - line.cell_length)) for line in lines])

    @cached_property
    def _no_engine(self) -> str:
        """The command that installs the engine on this machine; "" where it is."""
        return "" if find_spec("torch") is not None else install_command("train")

    def _keys(self, again: bool = True) -> Content:
        """The keys that lead out."""
        labels = {"boxes": "choose or change the box", "reconnect": "try again", "quit": "quit"}
        keys = [
            Content.from_markup("[bold $primary]$key[/] $label", key=self.key(action), label=label)
            for action, label in labels.items()
            if again or action != "reconnect"
        ]
        return Content("   ").join(keys)

    def render(self) -> Content:
        message, (width, height) = self._message(), self.size
        parts = []
        if message.curve and height >= 9:
            curve = lines_in_blocks(_CURVE) if self.in_blocks else _CURVE
            parts.append(Content.from_markup(f"[$grpo-faint]{curve}[/]\n\n"))
        headline = Content.from_markup(f"[bold {message.tone}]$headline[/]", headline=message.headline)
        text = [Content.assemble(*parts, headline), *([message.text] if message.text else [])]
        if not message.keys:
            return _paragraphs(*text)
        keys = message.keys.wrap(max(1, width))
        lines = _paragraphs(*text).wrap(max(1, width))
        room = height - len(keys) - 1  # a long text must not push the keys off the screen
        if 1 < room < len(lines):
            lines = [*lines[: room - 1], lines[room - 1].truncate(width - 1) + "…"]
        return Content("\n").join([*lines, Content(), *keys])


def _check_text(check: dict[str, Any]) -> Content:
    """A failed check and the command that fixes it."""
    detail, hint = check.get("detail", ""), check.get("hint", "")
    text = Content.from_markup("[$grpo-muted]$name:[/] $detail", name=check["name"], detail=detail)
    return _paragraphs(text, Content.from_markup("[bold $accent]$hint[/]", hint=hint)) if hint else text


def _paragraphs(*parts: Content) -> Content:
    return Content("\n\n").join(parts)


SUMMARY_LINES = 5
SUMMARY_LENGTH = 4_000


class ErrorPanel(Panel):
    """Shown only if the selected run failed with an error or cannot be read."""

    @property
    def wanted(self) -> bool:
        row = self.store.run
        return bool(row and row.error and row.state in ("crashed", "killed", "lost", UNREADABLE))

    def state(self) -> object:
        return (self.store.versions["runs"], self.store.versions["shown"], self.store.selected, self.size)

    def refresh_titles(self) -> None:
        row = self.store.run
        if row is None:
            return
        facts = []
        if (rank := row.error.get("rank")) is not None:
            facts.append(f"rank {rank}")
        if signal := row.error.get("signal"):
            facts.append(signal)
        glyph, word, tone = state_label(row.state)
        title = Content.from_markup(f"[{TONES[tone]}]$state[/]", state=f"{glyph} {word}")
        if facts:
            title += Content.from_markup(" [$text-muted]$facts[/]", facts=" · ".join(facts))
        hint = Content()
        if row.is_over and self.store.complete_steps():
            text = "[$text-muted]press $key to resume from the last checkpoint[/]"
            hint = Content.from_markup(text, key=self.key("resume"))
        self.set_titles(title, hint)

    def lines_wanted(self) -> int:
        return len(self._summary(SUMMARY_LINES)) + min(7, len(self._tail()))

    def _summary(self, most: int) -> list[str]:
        """The summary, wrapped to at most ``most`` lines."""
        row, width = self.store.run, max(20, self.size.width)
        summary = row.error.get("summary") or "unknown" if row else "unknown"
        lines = wrap(one_line(summary[:SUMMARY_LENGTH]), width)
        return [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines or ["unknown"]

    def _tail(self) -> list[str]:
        """The last lines of the console."""
        row = self.store.run
        lines = row.error.get("console_tail") or () if row else ()
        return [line.expandtabs(4)[:400] for line in lines if line.strip()]

    def render(self) -> Content:
        row = self.store.run
        if row is None:
            return Content()
        width, height = self.size
        summary = self._summary(SUMMARY_LINES if height > SUMMARY_LINES else max(1, height))
        lines = [Content.from_markup("[bold]$line[/]", line=line) for line in summary]
        room = max(0, height - len(lines))
        shown = self._tail()[-room:] if room else []
        lines += [Content.from_markup("[$text-muted]$line[/]", line=line) for line in shown]
        return Content("\n").join([line.truncate(max(1, width), ellipsis=True) for line in lines])
