"""Lines of a process that is asked: what is a question, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grpo_train.run_dir.questions import AskedQuestion, BadQuestion


def test_a_question_is_read() -> None:
    row = {"id": "a", "prompt": "1+1", "count": 2, "temperature": 0.5, "seed": 3, "of_a_later_version": True}
    found = AskedQuestion.from_line(json.dumps(row).encode())
    assert found == AskedQuestion("a", "1+1", None, 2, 0.5, 3)
    assert AskedQuestion.from_line(b'{"id": "a", "index": 7}') == AskedQuestion("a", index=7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id": 1}, "'id' has the wrong type"),
        ({"prompt": None}, "'prompt' has the wrong type"),
        ({"index": "3"}, "'index' has the wrong type"),
        ({"index": True}, "'index' has the wrong type"),
        ({"count": True}, "'count' has the wrong type"),
        ({"count": 1.0}, "'count' has the wrong type"),
        ({"temperature": "hot"}, "'temperature' has the wrong type"),
        ({"temperature": False}, "'temperature' has the wrong type"),
        ({"count": 0}, "'count' must be 1 or more"),
        ({"seed": -1}, "'seed' and 'temperature' 0 or more"),
        ({"temperature": -0.5}, "'seed' and 'temperature' 0 or more"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadQuestion, match=message):
        AskedQuestion.from_line(json.dumps({"id": "a", **values}).encode())


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_question_is_quoted(line: bytes) -> None:
    with pytest.raises(BadQuestion, match="not a question"):
        AskedQuestion.from_line(line)
