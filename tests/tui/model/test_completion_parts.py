"""Parts of a completion: reasoning, answer and code, and where two completions begin to differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.model.completion_parts import parts_of, same_beginning


@pytest.mark.parametrize(
    ("completion", "prompt", "parts"),
    [
        ("<think>a</think><answer>b</answer>", "", [("think", "a"), ("answer", "b")]),
        (" a </think>\n<answer> b", "… <think>", [("think", "a"), ("answer", "b")]),
        ("Here:\n```python\n  x = 1\ny\n```\nDone", "", [("text", "Here:"), ("code", "  x = 1\ny"), ("text", "Done")]),
        ("x = 1\n```\nso", "Code:\n```python\n", [("code", "x = 1"), ("text", "so")]),
        ("<think>```\nx\n```</think>", "", [("think", "```\nx\n```")]),
        ("<answer>\n```\nx\n```\n</answer>", "", [("code", "x")]),
        ("", "", []),
    ],
)
def test_parts_of_a_completion(completion: str, prompt: str, parts: list[tuple[str, str]]) -> None:
    assert [(part.kind, part.text) for part in parts_of(completion, prompt)] == parts


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "\n```\n", "\n```py\n", "a", " b\n"])
)


@given(PIECES.map("".join), st.sampled_from(["", "x <think>", "x\n```py\n"]))
def test_parts_are_where_they_say(text: str, prompt: str) -> None:
    parts = parts_of(text, prompt)
    end = 0
    for part in parts:
        assert part.start >= end
        assert text[part.start :].startswith(part.text)
        end = part.start + len(part.text)
    letters = "".join(part.text for part in parts)
    assert letters.count("b") == text.count(" b\n")


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_the_same_beginning(one: str, other: str) -> None:
    same = same_beginning(one, other)
    assert one[:same] == other[:same]
    assert one[same : same + 1] != other[same : same + 1] or same == len(one) == len(other)
