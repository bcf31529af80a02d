"""Styles of the app beside those that Textual's own widgets bring."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

from textual import widgets
from textual.widget import Widget
from textual.widgets import ProgressBar

import grpo_tui
from grpo_tui.kit.bars import KeyBar, ViewBar
from tests.tui.conftest import Start


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def test_no_widget_has_the_name_of_one_of_textual() -> None:
    """Textual's default styles select by class name: they would apply to ours, once its widget is first used."""
    for package in (widgets, grpo_tui):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if package is widgets or re.search(r"\.(widgets|screens|views)\.", module.name):
                importlib.import_module(module.name)
    found = [kind for kind in subclasses(Widget) if not kind.__module__.startswith("tests")]
    theirs = {kind.__name__ for kind in found if kind.__module__.startswith("textual.")}
    assert not {kind.__name__ for kind in found if kind.__module__.startswith("grpo_tui.")} & theirs


async def test_a_progress_bar_leaves_the_key_bar_alone(start: Start) -> None:
    """As after the dialog of the first use: views that are opened later had a key bar of 32 columns."""
    async with start(wait="87/200") as session:
        await session.app.screen.mount(ProgressBar())
        await session.press("2")
        await session.until_text("range: ")
        width = session.app.size.width
        assert [session.app.screen.query_one(bar).size.width for bar in (KeyBar, ViewBar)] == [width, width]
