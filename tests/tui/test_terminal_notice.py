"""What the terminal is told: sequences that no text can break out of."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as some

from grpo_tui.box.events import WAYS
from grpo_tui.kit.terminal import notification

TEXT = r"([^\x00-\x1f\x7f-\x9f;]*)"
NOTICE = re.compile(rf"\x1b\]9;{TEXT}\x07\x1b\]777;notify;{TEXT};{TEXT}\x07")


def test_notifications_of_each_way() -> None:
    assert notification(("bell",), "box", "crashed", {}) == ""
    assert notification(("osc9",), "box", "night; crashed", {}) == "\x1b]9;box: night, crashed\x07"
    assert notification(("osc777",), "box", "crashed", {}) == "\x1b]777;notify;box;crashed\x07"
    wrapped = notification(("osc9",), "box", "crashed", {"TMUX": "/tmp/tmux-0/default,1,0"})
    assert wrapped == "\x1bPtmux;\x1b\x1b]9;box: crashed\x07\x1b\\"


@given(some.text(max_size=40), some.text(alphabet="\x07\x1b\x9c\\;]\n4a", max_size=40))
def test_no_text_breaks_out(title: str, body: str) -> None:
    assert NOTICE.fullmatch(notification(WAYS, title, body, {}))
    wrapped = notification(WAYS, title, body, {"TMUX": "x"})
    inner = wrapped.removeprefix("\x1bPtmux;").removesuffix("\x1b\\")
    assert "\x1b\\" not in inner.replace("\x1b\x1b", "")
    assert NOTICE.fullmatch(inner.replace("\x1b\x1b", "\x1b"))
