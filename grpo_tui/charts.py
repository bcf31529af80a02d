"""The charts of the home screen: metric, when it is shown, and colors. How runs differ in a chart. No Textual."""

from __future__ import annotations

from typing import NamedTuple


class Chart(NamedTuple):
    """One chart. Its theme color is ``$chart-ID``."""

    id: str
    metric: str
    shown: str
    """CSS class by the size of the terminal: "" (always), ``-not-short`` or ``-wide-only``."""
    dark: str
    light: str


CHARTS = (
    Chart("reward", "reward", "", "#3fd6a8", "#00775a"),
    Chart("loss", "loss", "-not-short", "#5cc8ff", "#0067a8"),
    Chart("length", "completions/mean_length", "", "#b79cff", "#6a3fc0"),
    Chart("grad", "grad_norm", "-not-short", "#ffb454", "#a85b00"),
    Chart("zero", "frac_reward_zero_std", "-wide-only", "#f58bb8", "#b0306e"),
    Chart("entropy", "entropy", "-wide-only", "#e8e06b", "#7a7000"),
)


class RunLook(NamedTuple):
    """How a run looks in a chart of several runs. Its theme color is ``$run-ID``."""

    id: str
    marker: str
    line: str
    """A solid, dashed or dotted line."""
    dark: str
    light: str

    @property
    def letter(self) -> str:
        return self.id.upper()


SOLID, DASHED, DOTTED = "━┅┄"
RUN_LOOKS = (
    RunLook("a", "●", SOLID, "#3fd6a8", "#00775a"),
    RunLook("b", "▲", DASHED, "#ffb454", "#a85b00"),
    RunLook("c", "■", DOTTED, "#5cc8ff", "#0067a8"),
    RunLook("d", "◆", SOLID, "#f58bb8", "#b0306e"),
    RunLook("e", "▼", DASHED, "#b79cff", "#6a3fc0"),
    RunLook("f", "✦", DOTTED, "#e8e06b", "#7a7000"),
    RunLook("g", "○", SOLID, "#ff6b5e", "#c02a1c"),
    RunLook("h", "△", DASHED, "#9be564", "#3f7200"),
    RunLook("i", "□", DOTTED, "#8fa8ff", "#3b4fc4"),
    RunLook("j", "◇", SOLID, "#d9a987", "#7a5230"),
    RunLook("k", "▽", DASHED, "#4fd8eb", "#006d7d"),
    RunLook("l", "✧", DOTTED, "#d6d6d6", "#4a515b"),
)
"""As many as can be compared."""
