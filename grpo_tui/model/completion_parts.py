"""A completion in parts: reasoning, code, answer, other text. No Textual."""

from __future__ import annotations

import re
from typing import NamedTuple

_MARK = re.compile(r"</?think>|</?answer>|^[ \t]*```[^\n`<]*(?=\n|<|\Z)", re.MULTILINE)
_OPENED = re.compile(r"(<think>|<answer>|^[ \t]*```[^\n`]*)\s*\Z", re.MULTILINE)


class Part(NamedTuple):
    """A part of a completion, without the marks around it."""

    kind: str
    """``think``, ``code``, ``answer`` or ``text``."""
    start: int
    """Where it is in the completion."""
    text: str


def parts_of(completion: str, prompt: str = "") -> list[Part]:
    """The parts in order, without empty ones; a part without its end goes on to the end.

    ``prompt``: one that ends with an opening mark begins the completion's first part.
    """
    opened = _OPENED.search(prompt)
    outer, in_code = "text", False
    if opened is not None:
        outer = opened[1].strip("<>") if opened[1].startswith("<") else "text"
        in_code = not opened[1].startswith("<")
    parts: list[Part] = []
    begin = 0

    def add(end: int) -> None:
        text = completion[begin:end]
        rest = text.lstrip("\r\n") if in_code else text.lstrip()  # the first line of code keeps its indentation
        if rest.strip():
            parts.append(Part("code" if in_code else outer, begin + len(text) - len(rest), rest.rstrip()))

    for mark in _MARK.finditer(completion):
        name = mark[0].strip("</>")
        if name in ("think", "answer"):
            add(mark.start())
            outer, in_code = "text" if mark[0].startswith("</") else name, False
        elif outer != "think":
            add(mark.start())
            in_code = not in_code
        else:
            continue
        begin = mark.end()
    add(len(completion))
    return parts


def same_beginning(one: str, other: str) -> int:
    """Characters at the beginning of two texts that are equal."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
