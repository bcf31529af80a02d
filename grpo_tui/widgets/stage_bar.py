"""Time of a step by stage: one bar, with a color and a name for each stage."""

from __future__ import annotations

from textual.content import Content

from grpo_tui.model.formatting import compact_number
from grpo_tui.widgets.panel import Line, from_markup

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
        if not named:
            return from_markup("[$text-muted]step time    no steps yet[/]")
        total = max(step or 0.0, named)
        if total - named > 0.02 * total:
            stages = [*stages, ("other", total - named)]
        head = from_markup(
            f"[$text-muted]step time[/]    [bold]{compact_number(round(total, 2))}[/] [$text-muted]s[/]  "
        )
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
