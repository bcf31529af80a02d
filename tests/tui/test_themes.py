from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from textual.css.stylesheet import Stylesheet

from grpo_tui.box.charts import CHARTS, RUN_LOOKS
from grpo_tui.files import Preferences
from grpo_tui.kit.theme import THEMES
from tests.tui.conftest import Start

SHOWN = """
import asyncio
from grpo_tui.app import GrpoApp
from grpo_tui.files import Options
from remote.boxes import Box

async def main():
    app = GrpoApp(Options(Box("x", host="y")), make_client=lambda box, on_event: None)
    async with app.run_test():
        print(app.theme, app.theme_variables["background"])

asyncio.run(main())
"""


def shown(state: Path, **environment: str) -> str:
    """Theme and background of a started app."""
    kept = {name: value for name, value in os.environ.items() if name != "TEXTUAL_THEME"}
    kept |= {"XDG_STATE_HOME": str(state)} | environment
    return subprocess.run([sys.executable, "-c", SHOWN], env=kept, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_a_theme_of_the_environment_is_shown(tmp_path: Path, theme: object) -> None:
    name, background = theme.name, theme.background  # type: ignore[attr-defined]
    assert shown(tmp_path, TEXTUAL_THEME=name).lower() == f"{name} {background}\n"


async def test_a_chosen_theme_is_remembered(start: Start) -> None:
    async with start(wait="87/200") as session:
        assert session.app.theme == "grpo-dark"
        session.app.theme = "grpo-light"
        await session.until(lambda: Preferences.load().theme == "grpo-light")
    async with start(wait="87/200") as session:
        assert session.app.theme == "grpo-light"


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colors (WCAG 2.1, 1.4.3)."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_labels_can_be_read(theme: object) -> None:
    variables, background = theme.variables, theme.background  # type: ignore[attr-defined]
    under = [background, theme.surface, theme.panel, variables["grpo-cursor"]]  # type: ignore[attr-defined]
    tones = [getattr(theme, name) for name in ("primary", "secondary", "accent", "success", "warning", "error")]
    for tone in [*tones, variables["grpo-muted"], theme.foreground]:  # type: ignore[attr-defined]
        assert min(contrast(tone, each) for each in under) >= 4.5, tone
    assert contrast(variables["grpo-faint"], background) >= 3
    assert all(contrast(variables[f"chart-{chart.id}"], background) >= 3 for chart in CHARTS)
    assert all(contrast(variables[f"run-{look.id}"], background) >= 4.5 for look in RUN_LOOKS)


def test_compared_runs_differ_in_every_way() -> None:
    for theme in THEMES:
        assert len({theme.variables[f"run-{look.id}"] for look in RUN_LOOKS}) == len(RUN_LOOKS)
    assert len({look.letter for look in RUN_LOOKS}) == len(RUN_LOOKS)


async def test_style_sheets_are_parsed_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Stylesheet] = []
    reparse = Stylesheet.reparse
    monkeypatch.setattr(Stylesheet, "reparse", lambda self: (parsed.append(self), reparse(self)))
    async with start(wait="87/200") as session:
        assert not parsed, "for a theme that is chosen before there is a screen"
        session.app.theme = "grpo-light"
        await session.until(lambda: parsed, "the colors of the other theme")
