"""Charts in block characters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.files import Preferences
from grpo_tui.kit.plot import bars_in_blocks, lines_in_blocks
from tests.tui.conftest import Start
from tests.tui.fake import FakeClient
from tests.tui.test_palette import find
from tests.tui.views.box.test_screen import gpu_box
from tests.tui.views.compare.test_screen import box as three_runs

BRAILLE = [chr(0x2800 + dots) for dots in range(1, 256)]
QUARTERS = {  # upper left, upper right, lower left, lower right
    " ": "", "▘": "0", "▝": "1", "▀": "01", "▖": "2", "▌": "02", "▞": "12", "▛": "012", "▗": "3", "▚": "03",
    "▐": "13", "▜": "013", "▄": "23", "▙": "023", "▟": "123", "█": "0123",
}  # fmt: skip
DOTS = (0x01, 0x02, 0x04, 0x40, 0x08, 0x10, 0x20, 0x80)
"""The dots of a braille cell: the left column from the top, then the right one."""


@given(st.integers(0, 255))
def test_two_dots_make_a_pixel(dots: int) -> None:
    quarters = {str(index // 4 + 2 * (index % 4 // 2)) for index, bit in enumerate(DOTS) if dots & bit}
    assert set(QUARTERS[lines_in_blocks(chr(0x2800 + dots))]) == quarters


def test_a_bar_is_as_high_as_its_highest_dot() -> None:
    assert bars_in_blocks("⣀⡠⠔⠒⠊⠉ ⣤⣶⣿⡀⢸") == "▂▄▆▆██ ▄▆█▂█"


def test_other_text_is_kept() -> None:
    assert lines_in_blocks("reward 1.2 │┤") == bars_in_blocks("reward 1.2 │┤") == "reward 1.2 │┤"


DRAWN = (set(QUARTERS) | set("▂▆")) - set(" ▌")
"""The characters of charts; the cursor of a list is one, too."""


def has_braille(text: str) -> bool:
    return any(character in text for character in BRAILLE)


def several(client: FakeClient) -> None:
    """Runs to compare, and a GPU."""
    gpu_box(client)
    sessions, gpus = client.sessions, client.gpus
    three_runs(client)
    client.sessions, client.gpus = sessions, gpus


@pytest.mark.parametrize("chosen", [False, True], ids=["remembered", "chosen"])
async def test_no_view_draws_braille_then(start: Start, chosen: bool) -> None:
    if not chosen:
        kept = Preferences(charts="blocks")
        kept.save()
    async with start(several, size=(120, 50), wait="87/200") as session:
        trends = session.app.home.runs.trends
        await session.until(lambda: trends.of("run_2026-11-20_22-10-41"), "the trends")
        if chosen:
            await session.until(lambda: has_braille(session.text()), "braille")
            await find(session, "draw charts in blocks", "for a font without braille")
        marked: Sequence[str] = ("space", "down", "space")
        for keys, title in (
            (marked, "2 marked"), (("2",), "range: 1–"), (("6",), "2 runs (A pinned)"), (("5",), "CPU 14 %"),
        ):  # fmt: skip
            await session.press(*keys)
            await session.until_text(title)
            await session.until(lambda: DRAWN & set(session.text()) and not has_braille(session.text()), title)
    assert Preferences.load().charts == "blocks"
