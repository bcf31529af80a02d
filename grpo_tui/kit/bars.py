"""The first and the last lines: box, link and selected run; the keys of a view, and the views.

A terminal of few rows has one line: the views are digits at its end. A taller one has a line for the views, with the
keys of the program at its end, and the views with many keys have two lines for them. A message is on the last line of
the terminal, over what is there: nothing moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual import events
from textual.content import Content

from grpo_train.history.cost import dollars
from grpo_train.run_dir.display import duration
from grpo_tui.actions import Action, Situation, key_label
from grpo_tui.box.formatting import byte_size, counted, ending, money, one_line, shortened
from grpo_tui.box.store import Store, cost, eta
from grpo_tui.kit.panel import TONES, Line
from remote.events import Link

MUTED = "$text-muted"
SHORTEST_REASON, LONGEST_REASON, PRICE = 14, 60, 10
"""Cells of why the box cannot be terminated, and of the price beside it."""
REASON = 5
"""Cells about the reason of a broken link."""
FULL = 0.05
"""A disk with a smaller share left is pointed out."""
part = Content.assemble
"""Not markup, which would be parsed at every tick."""


class HeaderBar(Line):
    """Box and link on the first line, the selected run and its progress on the second."""

    def __init__(self, store: Store, readonly: bool, *, id: str) -> None:
        super().__init__(store, id=id)
        self.readonly = readonly
        self._said: tuple[int, Content] = (-1, Content(""))
        """The width at the last tick, and what the lines said."""

    def state(self) -> object:
        width = self.size.width
        self._said = (width, Content("\n").join([self._box_line(width), self._run_line(width)]))
        return self._said

    def render(self) -> Content:
        if self.size.width != self._said[0]:
            self.state()
        return self._said[1]

    def _box_line(self, width: int) -> Content:
        store = self.store
        label, tone = store.link_label()
        problem = store.topic_problem_now
        if problem and tone == "live":  # the link is fine, what comes over it is not
            tone = "warn"
        dot = {"live": "●", "warn": "◍", "bad": "✖", "busy": "◌", "rest": "○"}[tone]
        left = [
            part(" ", ("grpo", "bold $primary"), ("-tui", "bold $secondary"), " ", ("│", "$grpo-faint"), " "),
            part((store.box, "bold"), "  ", (f"{dot} {label}", TONES[tone])),
        ]
        lost = one_line(store.link.detail) if store.link.state is Link.LOST else ""
        if store.link.state in (Link.LOST, Link.STALE) and store.live_runs():
            left.append(part(("; runs continue", MUTED)))
            if sum(one.cell_length for one in left) + cell_len(lost) + REASON > width:  # why it broke says more
                left.pop()
        room = width - sum(one.cell_length for one in left) - REASON
        if cell_len(lost) > room:  # its end says most: it begins with the address
            lost = f"…{ending(lost, max(0, room - 1))}"
        if warning := lost or problem or store.warning():
            left.append(part("  ", (f"▲ {one_line(warning)}", "$warning")))
        said = part(*left)
        return _spread(said, self._facts(width - said.cell_length - 3), width)

    def _facts(self, room: int) -> Content:
        """What the box costs and has left, as far as there is room: the least telling leaves first."""
        store, history = self.store, self.app.history
        told: list[tuple[int, Content]] = []
        """Each with its rank: the highest leaves first."""
        if self.readonly:
            told.append((0, part(("read-only", "$warning"))))
        if (copy := self.app.copy_at_work) is not None:
            told.append((0, part((copy.progress.label(), "$primary"))))
        light, room = self._light(room)
        if store.runs:
            told.append((4, part((f"{len(store.live_runs())} live · {counted(len(store.runs), 'run')}", MUTED))))
        if (price := store.price_per_hour) is not None:
            told.append((1, part((f"{money(price)}/h", MUTED))))
            if (seconds := history.today_s(store.now())) is not None:
                told.append((2, part((f"today {money(dollars(price, seconds))}", MUTED))))
        if (disk := history.free()) is not None:
            free, total = disk
            is_full = free / total < FULL
            tone, mark = ("$error", "▲ ") if is_full else (MUTED, "")
            told.append((0 if is_full else 3, part((f"{mark}disk {byte_size(free)} free", tone))))
        between = part((" · ", "$grpo-faint"))
        while True:
            line = between.join([each for _, each in told])
            if line.cell_length <= room or not told:
                return between.join([line, light]) if told and light.plain else line + light
            told.remove(max(told, key=lambda one: one[0]))

    def _light(self, room: int) -> tuple[Content, int]:
        """Whether the box can be terminated, in full or only as the light; and the room left beside it."""
        termination = self.app.termination
        if not termination.wanted:
            return Content(""), room
        light = termination.light()
        tone, text = ("$success", "safe to terminate") if light.safe else ("$error", "keep the box")
        if light.is_empty:
            tone, text = "$warning", "no runs here"
        found = part(("■ ", tone), (text, MUTED))
        if light.reason and (left := min(room - found.cell_length - PRICE, LONGEST_REASON)) >= SHORTEST_REASON:
            found += Content(f": {light.reason}").truncate(left, ellipsis=True).stylize(MUTED)
        if found.cell_length > room:
            found = part(("■", tone))
        return found, room - found.cell_length - 3

    def _run_line(self, width: int) -> Content:
        store, row = self.store, self.store.run
        if row is None:
            return part(" ", ("·" if store.runs is None else "no run selected", MUTED))
        glyph, word, tone = row.label
        if row.is_live and not store.connected:
            word, tone = f"{word} when last seen", "rest"
        name = shortened(row.name, max(16, width // 2 - 8))
        left = part(" ", (glyph, TONES[tone]), " ", (name, "bold"), "  ", (word, TONES[tone]))
        if (verdict := row.verdict) is not None and verdict.tone != "good":
            left += part(" ", (f"{verdict.mark} {verdict.word}", TONES[verdict.tone]))
        if row.device:
            device = one_line(row.device.removeprefix("NVIDIA "))[:24]
            left += part(" ", (f"· {device}", MUTED))
        if row.restarts:
            left += part(" ", (f"restart {row.restarts}", "$warning"))
        if row.stage and row.stage != "train" and row.is_live:
            left += part(" ", (row.stage, MUTED))
        if row.reason and row.is_over:
            reason = Content(f"· {one_line(row.reason)}")
            left += part(" ") + reason.truncate(max(16, width // 3), ellipsis=True).stylize(MUTED)
        if store.logs and (level := store.logs.sandbox):
            left += part("  ", ("sandbox", MUTED), " ", (level, MUTED if level in ("strong", "full") else "$error"))
        total = row.total_steps
        step = store.step
        right_parts = [part((str(step), "bold"), (f"/{total if total is not None else '?'}", MUTED))]
        if (seconds := eta(store, row)) is not None and seconds > 0:
            right_parts.append(part(("ETA", MUTED), f" {duration(seconds)}"))
        if (spent := cost(store, row)) is not None:
            right_parts.append(part(("cost", MUTED), f" {money(spent)}"))
        right = Content("  ").join(right_parts)
        room = width - left.cell_length - right.cell_length - 6
        if total and room >= 8:
            share = min(1.0, step / total)
            filled = round(share * room)
            rule = part(("━" * filled, TONES[tone]), ("─" * (room - filled), "$grpo-faint"))
            return left + Content("  ") + rule + Content("  ") + right
        return _spread(left, right, width)


def _spread(left: Content, right: Content, width: int) -> Content:
    """Left and right part on one line. A line too narrow for both shows the left one."""
    gap = width - left.cell_length - right.cell_length - 1
    if gap < 1:
        return left.truncate(max(1, width - 1), ellipsis=True)
    return left + Content(" " * gap) + right


MARK = "▸"
"""Before the view that is shown."""
PROGRAM = "Program"
"""The group of the actions at the end of the line of the views …"""
PROGRAM_FROM = 112
"""… where the terminal has this many columns."""
ALWAYS = ("launch", "help", "quit")
"""Actions that are never left out."""
WIDE = 100
"""A narrower terminal has one cell between two keys."""
Span = tuple[int, int, int, str]
"""Line, columns and action of a text that can be clicked."""


def program_is_beside_views(width: int, is_short: bool) -> bool:
    """Whether the keys of the program are on the line of the views."""
    return width >= PROGRAM_FROM and not is_short


class ClickableLine(Line):
    """Texts that can be clicked. Not named Bar: Textual's styles of the Bar in a ProgressBar would apply to it."""

    spans: Sequence[Span] = ()

    async def on_click(self, event: events.Click) -> None:
        for line, start, end, action in self.spans:
            if line == event.y and start <= event.x < end:
                await self.screen.run_action(f"app.act('{action}')")

    def reasons(self, actions: Sequence[Action], view: str, readonly: bool) -> list[tuple[Action, str]]:
        """Each action, and why it is not available."""
        app = self.app
        situation = Situation(self.store, readonly, view, app.options.no_history)
        return [(action, action.reason(situation)) for action in actions]


class KeyBar(ClickableLine):
    """Made from the table of actions. An unavailable action is dim; its key shows why."""

    def __init__(self, store: Store, actions: tuple[Action, ...], readonly: bool, *, view: str, id: str) -> None:
        super().__init__(store, id=id)
        self.readonly, self.view = readonly, view
        shown = [action for action in actions if action.in_bar and action.is_in(view) and action.group != "Views"]
        # what only this view has, first; on Home, where runs are chosen, what can be done with them
        first = [one for one in shown if one.group == "Runs"] if view == "home" else []
        self.actions = first + sorted((one for one in shown if one not in first), key=lambda one: one.scope != view)
        self.views = [action for action in actions if action.group == "Views" and action.in_bar]

    def state(self) -> object:
        unavailable = tuple(bool(reason) for _, reason in self.reasons(self.actions, self.view, self.readonly))
        return (unavailable, self.size, self.has_views)

    @property
    def has_views(self) -> bool:
        """Whether it also shows the views, because the terminal is too short for a line of their own."""
        return self.screen.has_class("-short")

    def _lines(self, width: int) -> list[list[tuple[Action, str]]]:
        """The actions on each line. If not all fit, unavailable ones are dropped first, then from the end."""
        reasons = self.reasons(self.actions, self.view, self.readonly)
        if program_is_beside_views(self.size.width, self.has_views):
            reasons = [(action, reason) for action, reason in reasons if action.group != PROGRAM]
        drops = [action for action, reason in reasons if reason] + [action for action, _ in reversed(reasons)]
        for drop in [None, *drops]:
            if drop is None or drop.id not in ALWAYS:
                reasons = [(action, reason) for action, reason in reasons if action is not drop]
                if len(lines := _broken(reasons, width, self._gap)) <= max(1, self.size.height):
                    break
        return lines[: max(1, self.size.height)]

    @property
    def _gap(self) -> int:
        return 2 if self.size.width >= WIDE else 1

    def render(self) -> Content:
        views = self._digits() if self.has_views else []
        width = self.size.width - sum(part.cell_length for part, _ in views)
        lines, spans = [], []
        for row, actions in enumerate(self._lines(width)):
            parts, column = [Content(" ")], 1
            for action, reason in actions:
                part = key_and_label(action, reason)
                spans.append((row, column, column + part.cell_length, action.id))
                column += part.cell_length + self._gap
                parts += [part, Content(" " * self._gap)]
            if views:
                parts.append(Content(" " * (width - column)))
                column = max(column, width)
                for part, view in views:
                    spans.append((row, column, column + part.cell_length, view))
                    column += part.cell_length
                    parts.append(part)
            lines.append(Content.assemble(*parts))
        self.spans = spans
        return Content("\n").join(lines)

    def _digits(self) -> list[tuple[Content, str]]:
        """The key of each view, and the view; the one that is shown is marked."""
        return [
            (
                Content.from_markup(
                    f"[{'bold $primary' if view.id == self.view else '$grpo-muted'}]$mark$key[/]",
                    mark=MARK if view.id == self.view else " ", key=key_label(view.keys[0]),
                ),
                view.id,
            )
            for view in self.views
        ]  # fmt: skip


def _broken(actions: Sequence[tuple[Action, str]], width: int, gap: int) -> list[list[tuple[Action, str]]]:
    """Actions on lines of at most ``width`` cells, of which the first is empty."""
    lines: list[list[tuple[Action, str]]] = [[]]
    column = 1
    for action, reason in actions:
        needed = len(key_label(action.keys[0])) + 1 + len(action.label) + gap
        if column + needed > width and lines[-1]:
            lines.append([])
            column = 1
        lines[-1].append((action, reason))
        column += needed
    return lines


def key_and_label(action: Action, reason: str = "") -> Content:
    """``n launch``; dim if there is a reason why it is not available."""
    key = key_label(action.keys[0])
    if reason:
        return Content.from_markup("[$grpo-faint]$key $label[/]", key=key, label=action.label)
    tone = "$error" if action.dangerous else "$accent"
    return Content.from_markup(f"[bold {tone}]$key[/] [$grpo-muted]$label[/]", key=key, label=action.label)


class ViewBar(ClickableLine):
    """The views and their keys; the one that is shown stands out. Left out on a terminal of few rows."""

    def __init__(self, store: Store, actions: tuple[Action, ...], *, view: str, id: str) -> None:
        super().__init__(store, id=id)
        self.view = view
        self.actions = [action for action in actions if action.group == "Views" and action.in_bar]
        self.program = [action for action in actions if action.group == PROGRAM and action.in_bar]

    def state(self) -> object:
        return self.size.width

    def render(self) -> Content:
        parts, column, spans = [], 1, []
        for action in self.actions:
            is_shown = action.id == self.view
            tone = "bold $primary" if is_shown else "$grpo-muted"
            key = key_label(action.keys[0])
            part = Content.from_markup(f"[bold $accent]$key[/] [{tone}]$label[/]", key=key, label=action.label)
            spans.append((0, column, column + part.cell_length, action.id))
            parts += [Content.from_markup(f"[$primary]{MARK}[/]" if is_shown else " "), part, Content("  ")]
            column += part.cell_length + 3
        if program_is_beside_views(self.size.width, is_short=False):
            texts = [(key_and_label(action), action.id) for action in self.program]
            start = self.size.width - sum(part.cell_length + 2 for part, _ in texts)
            parts.append(Content(" " * (start - column + 1)))
            for part, name in texts:
                spans.append((0, start, start + part.cell_length, name))
                parts += [part, Content("  ")]
                start += part.cell_length + 2
        self.spans = spans
        return Content.assemble(*parts)


AGED_S = 10.0
"""A message that is older has its age."""
SHORTEST_TEXT = 24
"""Cells of a message for which its age and the number of unread ones give way."""


class StatusLine(Line):
    """The message of now, on the last line of every screen; a click opens the list of all."""

    def state(self) -> object:
        shown = self.app.messages.shown()
        age = int(self.store.now() - shown.at) if shown is not None else 0
        return (shown, shown.times, age if age >= AGED_S else 0, self._others) if shown is not None else None

    @property
    def _others(self) -> int:
        """How many unread warnings wait behind the one that is shown."""
        shown = self.app.messages.shown()
        return sum(one is not shown for one in self.app.messages.unread)

    def tick(self) -> None:
        """It is there only where there is something to say."""
        if self.is_attached:
            self.display = self.app.messages.shown() is not None
            super().tick()

    def on_mount(self) -> None:
        self.tick()

    def render(self) -> Content:
        width, shown = self.size.width, self.app.messages.shown()
        if shown is None:
            return Content("")
        title, text = shown.line()
        said = part(" ", (title, f"bold {TONES[shown.tone]}"), text, " ")
        age, others = self.store.now() - shown.at, self._others
        told = [part((f"{duration(age)} ago", MUTED))] if age >= AGED_S else []
        told += [part((f"+{others} unread", "$warning"))] if others else []
        beside = Content("  ").join(told)
        if others or said.cell_length + beside.cell_length + 1 > width:
            is_view = self.screen.has_class("view")  # a dialog has no palette: there the key alone opens the list
            told.append(part((f"{self.key('palette')}messages" if is_view else ": all messages", "bold $accent")))
            beside = Content("  ").join(told)
        room = width - beside.cell_length - 2
        if room < SHORTEST_TEXT:
            beside, room = Content(""), width
        return _spread(said.truncate(room, ellipsis=True), beside, width)

    async def on_mouse_down(self, event: events.MouseDown) -> None:
        event.stop()
        await self.app.run_action("app.show_messages")
