"""Two themes, for dark and for light terminals. Tones also differ in lightness, and every tone has a glyph."""

from __future__ import annotations

from typing import Any

from textual.theme import Theme

from grpo_tui.box.charts import CHARTS, RUN_LOOKS


def _theme(name: str, own: dict[str, str], selection: str, **colors: Any) -> Theme:
    """A theme whose scrollbars, cursors and frames use its own colors."""
    background, primary = colors["background"], colors["primary"]
    derived = {
        "text-muted": own["grpo-muted"],
        "border": primary,
        "block-cursor-background": primary,
        "block-cursor-foreground": background,
        "input-selection-background": f"{primary} {selection}",
        "scrollbar": own["grpo-border"],
        "scrollbar-hover": own["grpo-faint"],
        "scrollbar-active": primary,
        "scrollbar-background": background,
        "scrollbar-background-hover": background,
        "scrollbar-background-active": background,
        "scrollbar-corner-color": background,
    }
    return Theme(name, **colors, variables=own | derived)


DARK = _theme(
    "grpo-dark",
    {
        "grpo-muted": "#8fa0b5",
        "grpo-faint": "#62738a",
        "grpo-track": "#1b2738",
        "grpo-border": "#26344a",
        "grpo-cursor": "#1d3550",
        "grpo-think": "#9db2cc",
        "grpo-answer": "#ffd27a",
        **{f"chart-{chart.id}": chart.dark for chart in CHARTS},
        **{f"run-{look.id}": look.dark for look in RUN_LOOKS},
    },
    selection="35%",
    dark=True,
    primary="#5cc8ff",
    secondary="#b79cff",
    accent="#ffb454",
    success="#3fd6a8",
    warning="#ffb454",
    error="#ff7468",
    foreground="#dbe4ee",
    background="#0b1017",
    surface="#0f1620",
    panel="#172130",
)

LIGHT = _theme(
    "grpo-light",
    {
        "grpo-muted": "#52606e",
        "grpo-faint": "#76808b",
        "grpo-track": "#e2ded2",
        "grpo-border": "#cfcabd",
        "grpo-cursor": "#d3e6f3",
        "grpo-think": "#4d6280",
        "grpo-answer": "#8a5a00",
        **{f"chart-{chart.id}": chart.light for chart in CHARTS},
        **{f"run-{look.id}": look.light for look in RUN_LOOKS},
    },
    selection="30%",
    dark=False,
    primary="#0067a8",
    secondary="#6a3fc0",
    accent="#965000",
    success="#006b51",
    warning="#965000",
    error="#b82618",
    foreground="#1d2733",
    background="#fbfaf7",
    surface="#f4f2ec",
    panel="#e9e6dd",
)

THEMES = (DARK, LIGHT)
OWN_VARIABLES = tuple(name for name in DARK.variables if name.startswith(("grpo-", "chart-", "run-")))
"""Variables that other themes lack and borrow from ours with the same lightness."""
