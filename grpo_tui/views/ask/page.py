"""Questions and their answers as a page: a column for each checkpoint where there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.text import Text
from textual.content import Content

from grpo_train.run_dir.display import metric_value
from grpo_train.run_dir.files import to_float
from grpo_tui.box.formatting import one_line
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import LinesPanel, PageSource, Palette, beside
from grpo_tui.kit.sources import wrapped
from grpo_tui.views.ask.model import AnsweredQuestion, AskLog, Drawn

SIDE_BY_SIDE = 70
"""Width from which two checkpoints stand side by side."""
DRAWING = 4_000
"""Characters of a completion in progress that are shown, its end: it is laid out several times a second."""
HINT = "type a question, or # and the number of a held-out problem"


class AskSource(PageSource):
    """The questions so far, the newest last."""

    follows = True
    title = "answers"
    empty = HINT

    def __init__(self, store: Store, log: Callable[[], AskLog], said: Callable[[], list[tuple[str, str]]]) -> None:
        super().__init__(store)
        self._log, self._said = log, said
        self._laid_out: dict[tuple[str, str, int], tuple[object, list[Text]]] = {}
        """Lines of each completion."""

    def state(self) -> object:
        return (id(self._log()), self._log().version, tuple(self._said()))

    def layout(self, width: int, palette: Palette) -> list[Text]:
        log, lines = self._log(), []
        known = {asked.id for asked in log.asked}
        self._laid_out = {place: kept for place, kept in self._laid_out.items() if place[0] in known}
        for asked in log.asked:
            lines += [*self._question(asked, width, palette), *self._answers(asked, log, width, palette), Text()]
        for text, tone in self._said():
            lines += wrapped(Text(text, style=palette[tone]), width)
        return lines if self._said() else lines[:-1]

    def _question(self, asked: AnsweredQuestion, width: int, palette: Palette) -> Iterator[Text]:
        text = Text()
        if asked.index is not None:
            text.append(f"#{asked.index}  ", style=f"bold {palette['key']}")
        text.append(asked.question.expandtabs(4) or "…", style="bold")
        if asked.gold:
            text.append(f"   expected {one_line(asked.gold)[:200]}", style=palette["answer"])
        yield from wrapped(text, width)
        for problem in asked.problems:
            yield from wrapped(Text(f"✖ {problem}", style=palette["bad"]), width)

    def _answers(self, asked: AnsweredQuestion, log: AskLog, width: int, palette: Palette) -> list[Text]:
        names = list(dict.fromkeys([*(name for name, _ in asked.drawn), *([] if asked.is_done else log.checkpoints)]))
        samples = sorted({sample for _, sample in asked.drawn})
        if len(names) < 2 or width < SIDE_BY_SIDE:
            lines = []
            for name in names:
                lines.append(self._name(name, width, palette))
                for sample in samples:
                    lines += self._one(asked, name, sample, width, palette)
            return lines
        room = (width - 3) // 2
        lines = beside([[self._name(name, room, palette)] for name in names[:2]], room, palette)
        for sample in samples:
            columns = [self._one(asked, name, sample, room, palette) for name in names[:2]]
            lines += beside(columns, room, palette)
        return lines

    @staticmethod
    def _name(name: str, width: int, palette: Palette) -> Text:
        text = Text(f"─ {name} ", style=f"bold {palette['key']}", no_wrap=True)
        return text.append("─" * max(0, width - text.cell_len))

    def _one(self, asked: AnsweredQuestion, name: str, sample: int, width: int, palette: Palette) -> list[Text]:
        drawn = asked.drawn.get((name, sample))
        if drawn is None:
            waiting = "" if asked.is_done else "waiting"
            return [Text(f"{sample + 1}  {waiting}", style=palette["muted"])] if waiting else [Text()]
        key = (drawn.characters, drawn.row is None, asked.is_done, width, palette)
        kept = self._laid_out.get((asked.id, name, sample))
        if kept is None or kept[0] != key:
            kept = (key, list(_completion(drawn, sample, asked.is_done, width, palette)))
            self._laid_out[asked.id, name, sample] = kept
        return kept[1]


def _completion(drawn: Drawn, sample: int, is_over: bool, width: int, palette: Palette) -> Iterator[Text]:
    head = Text(f"{sample + 1}  ", style=f"bold {palette['muted']}", no_wrap=True)
    text = drawn.text
    if drawn.row is None:
        head.append("cut off" if is_over else "▸ drawing", style=f"not bold {palette['muted']}")
        text = text[-DRAWING:]
        if (left := drawn.characters - len(text)) > 0:
            head.append(f"  … {left:,} characters before", style=f"not bold {palette['muted']}")
    else:
        head.append_text(_verdict(drawn.row, palette))
    yield from wrapped(head, width)
    body = text.expandtabs(4).strip("\n")
    yield from wrapped(Text(body), width) if body.strip() else [Text("(empty)", style=palette["muted"])]
    if drawn.row is not None and (left := drawn.characters - len(text)) > 0:
        yield Text(f"… {left:,} characters more", style=palette["muted"])


def _verdict(row: Mapping[str, Any], palette: Palette) -> Text:
    """``✔ right   accuracy 2   12 tokens``."""
    text = Text(style=f"not bold {palette['muted']}")
    correct = row.get("correct")
    if isinstance(correct, bool):
        tone, word = ("good", "✔ right") if correct else ("bad", "✖ wrong")
        text.append(word, style=f"bold {palette[tone]}").append("   ")
    reason = one_line(str(row.get("reason") or "")).replace("_", " ")[:80]
    if reason and reason != "wrong":
        text.append(f"{reason}   ")
    rewards = row.get("rewards")
    for name, value in list(rewards.items())[:8] if isinstance(rewards, dict) else ():
        text.append(f"{one_line(str(name))[:40]} {metric_value(to_float(value))}   ")
    if (length := to_float(row.get("length"))) is not None:
        text.append(f"{length:,.0f} tokens")
    if row.get("truncated"):
        text.append("   ✂ truncated", style=palette["warn"])
    return text


class AskPanel(LinesPanel):
    """The page; its frame says what the process does."""

    def __init__(self, store: Store, source: AskSource, status: Callable[[], Content], *, id: str) -> None:
        super().__init__(store, [source], id=id)
        self._status = status

    def refresh_titles(self) -> None:
        paused = Content.from_markup("[$warning]paused · end: follow[/]  ") if self._anchor is not None else Content()
        self.set_titles(self._status(), paused)
