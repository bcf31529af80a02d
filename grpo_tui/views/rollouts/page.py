"""One sample, or two of them against each other, as a page: prompt, parts of the completion, rewards."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.color import Color
from textual.content import Content

from grpo_train.run_dir.display import metric_value
from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import asking_words
from grpo_tui.box.formatting import one_line, shortened
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import LinesPanel, PageSource, Palette, beside
from grpo_tui.kit.sources import wrapped
from grpo_tui.views.rollouts.lists import advantage, figure
from grpo_tui.views.rollouts.model.reader import RolloutReader
from grpo_tui.views.rollouts.model.samples import literals, parts_of, same_beginning, why
from grpo_tui.views.rollouts.model.tokens import END, TITLES, Shade, legend_of, shade_of, text_of, values_of
from remote.protocol.logs import UNREADABLE

GUTTER = 8
"""Cells of the words before the parts."""
ROOMY = 56
"""Width below which words are shortened."""
SIDE_BY_SIDE = 96
"""Width from which two samples stand side by side."""
LEAST_SAME = 8
"""Characters of an equal beginning that is pointed out."""
PROMPT_LINES = 8
"""Of a prompt that is not shown in whole: its end has the question."""
FOOT = 4
"""Lines at most below the sample while tokens are colored."""
STYLES = {"think": "think", "code": "code", "answer": "answer", "text": ""}

Row = Mapping[str, Any]


class SamplePage(PageSource):
    """The sample under the cursor, and the marked one."""

    title = "sample"
    empty = ""

    def __init__(self, store: Store, reading: Callable[[], RolloutReader | None], message: Callable[[], str]) -> None:
        super().__init__(store)
        self._reading, self._message = reading, message
        self.shift = 0
        """Cells by which lines that are not wrapped are shifted to the left."""
        self._body: _Body | None = None
        """Of the sample under the cursor, while its tokens are colored."""

    def state(self) -> object:
        reader = self._reading()
        if reader is None or not reader.shown:
            return self._message()
        texts = tuple(id(reader.rollouts.text(place)) for place in reader.shown)
        choices = reader.choices
        return (
            id(reader), tuple(reader.shown), texts, choices.wraps, choices.filter, choices.whole_prompt, self.shift,
            reader.step, self._waiting(reader), choices.tokens,
        )  # fmt: skip

    @staticmethod
    def _waiting(reader: RolloutReader) -> str:
        missing = any(reader.rollouts.text(place) is None for place in reader.shown)
        return (reader.rollouts.of_texts.problem or reader.rollouts.of_texts.words()) if missing else ""

    def browse(self, by: int) -> None:
        """Show the sample before or after this one."""
        if (reader := self._reading()) is not None:
            reader.move_sample(by)

    def layout(self, width: int, palette: Palette) -> list[Text]:
        reader = self._reading()
        if reader is None or not reader.shown:
            return wrapped(Text(self._message(), style=palette["muted"]), width)
        rows = [reader.rollouts.text(place) for place in reader.shown]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return wrapped(Text(self._waiting(reader) or asking_words(), style=palette["muted"]), width)
        unreadable = next((row for row in known if UNREADABLE in row), None)
        if unreadable is not None:
            text = f"✖ this sample cannot be read: {unreadable[UNREADABLE]}"
            return wrapped(Text(text, style=palette["bad"]), width)
        page = _Page(reader, width, palette, self.shift)
        lines = page.one(known[0]) if len(known) == 1 else page.two(known[0], known[1])
        self._body = page.body
        if self._body is not None:
            marked = (at for at, line in enumerate(lines) if BODY in (line.style, *(span.style for span in line.spans)))
            self._body.top = next(marked)
        return lines

    def line(self, index: int, width: int, palette: Palette) -> Text:
        line, reader = super().line(index, width, palette), self._reading()
        if self._body is not None and reader is not None and (span := self._body.span(reader.token, index)):
            line.stylize("reverse", *span)
        return line

    def line_of_token(self, token: int) -> int | None:
        """The line of the page that a token begins on."""
        return None if self._body is None else self._body.line_of(token)

    def token_at(self, line: int, column: int) -> int | None:
        """The token at a place of the page."""
        return None if self._body is None else self._body.token_at(line, column)


BODY = "none"
"""The style of the first line of the first completion whose tokens are colored."""


class _Body:
    """A completion whose tokens are colored: its lines, and where its tokens are on them."""

    def __init__(self, text: Text, starts: Sequence[int], width: int, wraps: bool, shift: int) -> None:
        """``starts``: where each token begins in the text, and the last one ends."""
        self.starts, self.top = starts, 0
        self.lines: list[Text] = []
        self._firsts: list[int] = []
        """Where each line begins in the text."""
        at = 0
        for line in text.split("\n", allow_blank=True):
            hidden = min(len(line), 0 if wraps else shift)
            for part in wrapped(line, width) if wraps else [line[hidden:]]:
                self.lines.append(part)
                self._firsts.append(at + hidden)
                at += len(part)
            at += hidden + 1

    def line_of(self, token: int) -> int:
        return self.top + max(0, bisect_right(self._firsts, self.starts[token]) - 1)

    def span(self, token: int, line: int) -> tuple[int, int] | None:
        """The part of a line of the page that a token has; its next character if it has no text."""
        at = line - self.top
        if token + 1 >= len(self.starts) or not 0 <= at < len(self.lines):
            return None
        start, end = self.starts[token], max(self.starts[token] + 1, self.starts[token + 1])
        first, length = self._firsts[at], len(self.lines[at])
        start, end = max(0, start - first), min(length, end - first)
        return (start, end) if start < end else None

    def token_at(self, line: int, column: int) -> int | None:
        at = line - self.top
        if not 0 <= at < len(self.lines) or column >= self.lines[at].cell_len:
            return None
        plain = self.lines[at].plain
        cells = list(accumulate(map(cell_len, plain)))
        return bisect_right(self.starts, self._firsts[at] + bisect_right(cells, column)) - 1


@lru_cache(maxsize=64)
def _style(shade: Shade, palette: tuple[str, str]) -> str:
    """A shade as a Rich style. ``palette``: the background and the color of its tone."""
    background, tone = palette
    if not shade.strength:
        return tone if shade.tone else ""
    try:
        color = Color.parse(background).blend(Color.parse(tone), shade.strength).rgb
        return f"{shade.mark} on rgb({','.join(map(str, color))})".strip()
    except ValueError:  # a theme that takes the terminal's colors
        return f"{shade.mark} {tone}".strip()


def shade_style(shade: Shade, palette: Palette) -> str:
    """A shade as a Rich style."""
    return _style(shade, (palette["background"], palette[shade.tone] if shade.tone else ""))


class _Page:
    """Lays samples out in a width."""

    body: _Body | None = None
    """Of the first sample, if its tokens are colored."""

    def __init__(self, reader: RolloutReader, width: int, palette: Palette, shift: int) -> None:
        self.reader, self.width, self.palette, self.shift = reader, width, palette, shift
        self.choices = reader.choices
        words = "|".join(map(re.escape, literals(self.choices.filter)))
        self._found = re.compile(words, re.IGNORECASE) if words else None
        """What the filter searches."""

    def one(self, row: Row) -> list[Text]:
        return [*self.prompt(row, self.width), Text(), *self.sample(row, self.width)]

    def two(self, row: Row, other: Row) -> list[Text]:
        """Side by side if there is room, else one below the other."""
        same = same_beginning(str(row.get("completion") or ""), str(other.get("completion") or ""))
        same = same if same >= LEAST_SAME else 0
        one_prompt = row.get("prompt") == other.get("prompt")
        if self.width < SIDE_BY_SIDE:
            second = [] if one_prompt else [*self.prompt(other, self.width), Text()]
            return [
                *self.prompt(row, self.width), Text(), *self.sample(row, self.width, same), Text(), *second,
                *self.sample(other, self.width, same, self.reader.other_run),
            ]  # fmt: skip
        width = (self.width - 3) // 2
        columns = []
        for each, run in ((row, ""), (other, self.reader.other_run)):
            above = [] if one_prompt else [*self.prompt(each, width), Text()]
            columns.append([*above, *self.sample(each, width, same, run)])
        head = [*self.prompt(row, self.width), Text()] if one_prompt else []
        return [*head, *beside(columns, width, self.palette)]

    def prompt(self, row: Row, width: int) -> list[Text]:
        """The prompt; a long one is cut at its beginning."""
        muted = self.palette["muted"]
        text = Text(str(row.get("prompt") or "").strip().expandtabs(4), style=muted)
        lines = self._fold(self._pointed_out(text), width)
        head = Text("prompt", style=f"bold {muted}")
        hidden = len(lines) - PROMPT_LINES
        if hidden > 1 and not self.choices.whole_prompt:
            lines = lines[hidden:]
            head.append(f"   … {hidden:,} lines before", style=f"not bold {muted}")
        return [head, *lines]

    def sample(self, row: Row, width: int, same: int = 0, run: str = "") -> list[Text]:
        """Heading, parts, verdict and rewards. ``same``: characters that the other completion begins with, too;
        ``run``: the run of the sample if it is another one."""
        completion = str(row.get("completion") or "")
        lines = [self._rule(row, width, run)]
        if same:
            lines.append(Text(f"{'':<{GUTTER}}same beginning: {same:,} characters", style=self.palette["muted"]))
        answered, answer = False, row.get("answer")
        body = self._colored(row, completion, width)
        lines += body
        for kind, start, text in parts_of(completion, str(row.get("prompt") or "")) if not body else ():
            styled = Text(text, style=self.palette[STYLES[kind]] if STYLES[kind] else "")
            if same > start:
                styled.stylize(f"not bold {self.palette['muted']}", 0, same - start)
            if kind == "answer":
                styled.stylize("bold", max(0, same - start))
                if answer is None or one_line(text) == one_line(str(answer)):
                    styled.append_text(self._verdict(row))
                    answered = True
            lines += self._labeled(kind if kind != "text" else "", self._pointed_out(styled), width)
        if not completion.strip():
            lines += self._labeled("", Text("(empty)", style=self.palette["muted"]), width)
        cut = int(row.get("completion_length") or 0) - len(completion)
        if cut > 0:
            lines += self._labeled("", Text(f"… {cut:,} characters more", style=self.palette["muted"]), width)
        if not answered:
            graded = Text(one_line(str(answer)) if answer is not None else "none", style=self.palette["answer"])
            lines += self._labeled("answer", graded.append_text(self._verdict(row)), width)
        return [*lines, *self._facts(row, width)]

    def _colored(self, row: Row, completion: str, width: int) -> list[Text]:
        """The completion as it was logged, its tokens colored; [] if they are not, or not known."""
        tokens = self.reader.tokens_of(row).tokens if self.choices.tokens else []
        if not tokens:
            return []
        text, starts = Text(), [0]
        for at, token in enumerate(tokens):
            piece = completion[token.start : token.end].replace("\t", "→   ").replace("\n", "↵\n")
            if at == len(tokens) - 1 and token.start == token.end:
                piece = END
            text.append(piece, style=shade_style(shade_of(self.choices.tokens, token), self.palette))
            starts.append(len(text))
        body = _Body(self._pointed_out(text), starts, width, self.choices.wraps, self.shift)
        if self.body is None:
            self.body, body.lines[0].style = body, BODY
        return body.lines

    def _rule(self, row: Row, width: int, run: str = "") -> Text:
        number = row.get("sample")
        parts = [f"#{'–' if number is None else number}", *([shortened(run, width // 3)] if run else [])]
        if row.get("step") is not None and int(row["step"]) != self.reader.step:
            parts.append(f"step {int(row['step']):,}")
        word = "advantage" if width >= ROOMY else "adv"
        parts += [f"reward {figure(to_float(row.get('reward')))}", f"{word} {advantage(row)}"]
        text = Text("─ ", style=self.palette["muted"], no_wrap=True)
        text.append("  ".join(parts), style=f"bold {self.palette['key']}")
        if row.get("truncated"):
            text.append(" ── ").append("truncated", style=f"bold {self.palette['warn']}")
        if row.get("discarded"):
            text.append(" ── ").append("discarded", style=f"bold {self.palette['muted']}")
        text.append(" ")
        return text.append("─" * max(0, width - text.cell_len))

    def _verdict(self, row: Row) -> Text:
        correct = row.get("correct")
        if correct is None:
            return Text()
        tone, words = ("good", "✔ right") if correct else ("bad", "✖ wrong")
        return Text(f"   {words}", style=f"bold {self.palette[tone]}")

    def _facts(self, row: Row, width: int) -> list[Text]:
        """Every reward, length, reason, and what the task noted."""
        rewards = row.get("rewards") or {}
        entries = [(name, metric_value(to_float(value))) for name, value in rewards.items()]
        if row.get("length") is not None:
            entries.append(("length", f"{row['length']:,}"))
        if reason := why(row):
            entries.append(("reason", reason))
        if row.get("gold"):
            entries.append(("expected", one_line(str(row["gold"]))))
        entries += [
            (name, "yes" if row[name] else "no") for name in ("formatted", "flexible") if row.get(name) is not None
        ]
        if row.get("task"):
            entries.append(("task", one_line(str(row["task"]))))
        if row.get("role"):
            entries.append(("role", one_line(str(row["role"]))))
        facts = row.get("facts") or {}
        entries += [
            (str(name), one_line(str(value))) for name, value in facts.items() if value not in (None, "", [], {})
        ]
        return _entries(entries, width, self.palette["muted"])

    def _labeled(self, word: str, text: Text, width: int) -> list[Text]:
        """A part with its word before the first line."""
        text.expand_tabs(4)
        lines = []
        for index, line in enumerate(self._fold(text, max(8, width - GUTTER))):
            label = Text(
                f"{word if index == 0 else '':<{GUTTER}}", style=f"bold {self.palette[STYLES.get(word, '') or 'muted']}"
            )
            if line.style:
                line.stylize_before(line.style)
            lines.append(Text.assemble(label, line))
        return lines

    def _pointed_out(self, text: Text) -> Text:
        """The text with what the filter searches underlined."""
        for match in self._found.finditer(text.plain) if self._found is not None else ():
            text.stylize(f"bold underline {self.palette['key']}", match.start(), match.end())
        return text

    def _fold(self, text: Text, width: int) -> list[Text]:
        if self.choices.wraps:
            return wrapped(text, width)
        lines = list(text.split("\n", allow_blank=True))
        return [line[self.shift :] if self.shift and cell_len(line.plain) > self.shift else line for line in lines]


def _entries(entries: Sequence[tuple[str, str]], width: int, muted: str) -> list[Text]:
    """Names and values, as many on a line as fit."""
    lines = [Text(no_wrap=True)]
    for name, value in entries:
        entry = Text.assemble((f"{name} " if name else "", muted), value)
        if lines[-1].cell_len and lines[-1].cell_len + 3 + entry.cell_len > width:
            lines.append(Text(no_wrap=True))
        if lines[-1].cell_len:
            lines[-1].append("   ")
        lines[-1].append_text(entry)
    return [part for line in lines if line.cell_len for part in wrapped(line, width)]


class SamplePanel(LinesPanel):
    """The page of the sample; it begins at its top whenever another sample is shown."""

    BINDINGS: ClassVar = [
        ("shift+left", "shift(-20)"), ("shift+right", "shift(20)"),
        ("ctrl+left", "browse(-10)"), ("ctrl+right", "browse(10)"),
    ]  # fmt: skip

    def __init__(
        self, store: Store, source: SamplePage, reading: Callable[[], RolloutReader | None], *, id: str
    ) -> None:
        super().__init__(store, [source], id=id)
        self._reading = reading
        self._of: object = None

    def content_changed(self) -> None:
        reader = self._reading()
        shown = (id(reader), tuple(reader.shown)) if reader is not None else None
        if shown != self._of:
            self._of, self._anchor = shown, None
        super().content_changed()

    def refresh_titles(self) -> None:
        reader = self._reading()
        if reader is None or reader.sample is None:
            self.set_titles("sample", "")
            return
        rows = [reader.rollouts.text(place) for place in reader.shown]
        known = [row for row in rows if row is not None]
        names = [_name(row, reader.step) for row in known] or [_name(reader.sample, reader.step)]
        if reader.other_run and len(names) > 1:
            names[1] += f" of {shortened(reader.other_run, 24)}"
        gold = one_line(str(known[0].get("gold") or ""))[:30] if known else ""
        title = f"sample {' beside sample '.join(names)}"
        self.set_titles(Content(title), Content(f"{gold} is right" if gold else ""))

    # the cursor among the tokens --------------------------------------------------------------------------

    @property
    def _has_tokens(self) -> bool:
        reader = self._reading()
        return reader is not None and reader.tokens is not None and bool(reader.tokens.tokens)

    def state(self) -> object:
        reader = self._reading()
        return (super().state(), reader.token if reader is not None else 0, self.foot)

    def action_browse(self, by: int) -> None:
        """Left and right: the token before or after, while tokens are colored; else the sample."""
        reader = self._reading()
        if reader is None or not self._has_tokens:
            super().action_browse(by)
            return
        reader.move_token(by)
        self._show_token()

    def _show_token(self) -> None:
        """Scroll until the token under the cursor is seen."""
        source, reader = self.source, self._reading()
        self.tick()
        if not isinstance(source, SamplePage) or reader is None:
            return
        line, top = source.line_of_token(reader.token), round(self.scroll_offset.y)
        height = self.scrollable_content_region.height - self.foot
        if line is not None and not top <= line < top + height:
            self.go_to_top(min(self._bottom, max(0, line - height // 2)))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the token."""
        at, source, reader = event.get_content_offset_capture(self), self.source, self._reading()
        if isinstance(source, SamplePage) and reader is not None and (line := self.entry_at(at.y)) is not None:
            token = source.token_at(line, at.x)
            if token is not None:
                reader.move_token(token - reader.token)
                self._show_token()

    @property
    def foot(self) -> int:
        return len(self._foot())

    def foot_line(self, y: int, width: int) -> Text:
        return self._foot()[y]

    def _foot(self) -> list[Text]:
        """The legend and the token under the cursor, or why there is none."""
        reader = self._reading()
        found = reader.tokens if reader is not None else None
        if reader is None or found is None:
            return []
        palette, width, muted = self.palette, max(1, self.text_width), self.palette["muted"]
        if found.problem:
            return wrapped(Text(found.problem, style=muted), width)[:FOOT]
        mode, row = reader.choices.tokens, reader.rollouts.text(reader.shown[0]) or {}
        legend = Text.assemble((f"{TITLES.get(mode, mode)} ", muted), no_wrap=True)
        for shade in legend_of(mode, found.tokens):
            legend.append(f" {shade.label} ", style=shade_style(shade, palette))
        at = reader.token
        token = found.tokens[at]
        text = text_of(token, str(row.get("completion") or ""), at == len(found.tokens) - 1)
        head = Text.assemble(("token ", muted), f"{at + 1:,} of {len(found.tokens):,}  ", (text, "bold"), no_wrap=True)
        if token.is_written:
            head.append("  written by the environment", style=muted)
        values = values_of(token)
        if row.get("tokens_step") not in (None, row.get("step")):
            values.append(("of step", f"{row['tokens_step']:,.0f}"))
        lines = [legend, head, *_entries(values, width, muted)]
        return (lines + [Text()] * FOOT)[: FOOT if width < ROOMY else FOOT - 1]

    def action_shift(self, by: int) -> None:
        """Shift lines that are not wrapped."""
        source = self.source
        if isinstance(source, SamplePage) and (reader := self._reading()) is not None and not reader.choices.wraps:
            source.shift = max(0, source.shift + by)
            self.tick()


def _name(row: Row, shown: int | None) -> str:
    number, step = row.get("sample"), row.get("step")
    elsewhere = f" of step {int(step):,}" if step is not None and int(step) != shown else ""
    return f"{'–' if number is None else number}{elsewhere}"
