"""The two header lines: box and link; selected run, its device, progress, time left and cost."""

from __future__ import annotations

from textual.content import Content

from grpo_train.history.cost import dollars
from grpo_train.run_dir.display import duration
from grpo_tui.model import progress
from grpo_tui.model.formatting import byte_size, counted, money, one_line, shortened
from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import TONES, Line
from remote.events import Link

MUTED = "$text-muted"
SHORTEST_REASON, LONGEST_REASON, PRICE = 14, 60, 10
"""Cells of why the box cannot be terminated, and of the price beside it."""
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
        if store.link.state in (Link.LOST, Link.STALE) and store.live_runs():
            left.append(part(("; runs continue", MUTED)))
        lost = store.link.detail if store.link.state is Link.LOST else ""
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
        tone = "$success" if light.safe else "$error"
        text = "safe to terminate" if light.safe else "keep the box"
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
        if (seconds := progress.eta(store, row)) is not None and seconds > 0:
            right_parts.append(part(("ETA", MUTED), f" {duration(seconds)}"))
        if (spent := progress.cost(store, row)) is not None:
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
