"""The two header lines: box and link; selected run, its device, progress, time left and cost."""

from __future__ import annotations

from textual.content import Content

from grpo_train.run_dir.display import duration, state_label
from grpo_tui.model import progress
from grpo_tui.model.formatting import money, one_line, shortened
from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import TONES, Line
from remote.events import Link

MUTED = "$text-muted"
part = Content.assemble
"""Not markup, which would be parsed at every tick."""


class HeaderBar(Line):
    """Box and link on the first line, the selected run and its progress on the second."""

    def __init__(self, store: Store, readonly: bool, *, id: str) -> None:
        super().__init__(store, id=id)
        self.readonly = readonly

    def state(self) -> object:
        return self.render()

    def render(self) -> Content:
        width = self.size.width
        return Content("\n").join([self._box_line(width), self._run_line(width)])

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
        right = []
        if self.readonly:
            right.append(part(("read-only", "$warning")))
        live = len(store.live_runs())
        if live > 1:
            right.append(part((f"{live} runs live", MUTED)))
        if store.price_per_hour is not None:
            right.append(part((f"{money(store.price_per_hour)}/h", MUTED)))
        return _spread(Content.assemble(*left), Content("  ").join(right), width)

    def _run_line(self, width: int) -> Content:
        store, row = self.store, self.store.run
        if row is None:
            return part(" ", ("·" if store.runs is None else "no run selected", MUTED))
        glyph, word, tone = state_label(row.shown_state, row.host)
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
        if store.logs and (level := store.logs.sandbox):
            left += part("  ", ("sandbox", MUTED), " ", (level, MUTED if level in ("strong", "full") else "$error"))
        total = row.total_steps
        step = store.step
        right_parts = [part((str(step), "bold"), (f"/{total if total is not None else '?'}", MUTED))]
        if (eta := progress.eta(store, row)) is not None and eta > 0:
            right_parts.append(part(("ETA", MUTED), f" {duration(eta)}"))
        if (cost := progress.cost(store, row)) is not None:
            right_parts.append(part(("cost", MUTED), f" {money(cost)}"))
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
