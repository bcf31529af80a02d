"""The charts of the home screen: metric, when it is shown, and colors. No Textual."""

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
