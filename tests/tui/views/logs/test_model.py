from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.views.logs.model.logs import fields

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text("abc", min_size=1, max_size=4), VALUES, min_size=1, max_size=4)


def test_a_row_is_indented() -> None:
    row = {"step": 3, "loss": -0.5, "health": [{"code": "x", "level": "warning"}], "text": "a\nb", "ends": [1, 2]}
    assert fields(json.dumps(row)) == [
        "step: 3", "loss: -0.5", "health:", "  0:", "    code: x", "    level: warning", "text: a", "      b",
        "ends: [1, 2]",
    ]  # fmt: skip
    assert fields("step 3") is None
    assert fields("{'a': 1}") is None


def test_what_a_resume_changed_comes_before_ranges_of_bytes() -> None:
    row = {"event": "resumed", "superseded": {"train_log.jsonl": [1, 2]}, "changes": {"run.seed": [1, 2]}}
    found = fields(json.dumps(row)) or []
    assert found[:3] == ["event: resumed", "changes:", "  run.seed: [1, 2]"]
    assert found[3] == "superseded:"


def test_a_text_cannot_steer_the_terminal() -> None:
    assert fields(json.dumps({"a\x1b[31m": "\x1b]52;c;eA==\x07\u202e"})) == ["a: ·"]


def test_a_cut_text_shows_what_there_is() -> None:
    assert fields('{"step": 1, "text": "abc\\u00') == ["step: 1", "text: abc"]
    assert fields('{"step": 1, "list": [1, 2') == ["step: 1", '"list": [1, 2']
    assert fields('{"step": 1, "loss": 1.5e+') == ["step: 1", '"loss": 1.5e+']
    assert fields('{"step": 1, "tokens": 12') == ["step: 1", '"tokens": 12']


@given(OBJECTS, st.integers(0, 200), st.booleans())
def test_any_cut_is_shown(row: dict[str, Any], cut: int, ascii_only: bool) -> None:
    text = json.dumps(row, ensure_ascii=ascii_only)
    whole, part = fields(text), fields(text[:cut])
    assert whole
    if part:
        assert part[:-1] == whole[: len(part) - 1] or not text[:cut].isprintable()
