"""Values of a run's resolved config, by ``section.key``. Standard library only: a box may have no YAML reader.

It reads the block style that the engine writes. What it cannot read is left out, never guessed: texts of several lines,
lists of objects, flow style other than ``[]`` and ``{}``.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

Value: TypeAlias = str | float | bool | None
MAX_KEYS = 400
MAX_TEXT = 120
"""Characters of a value; a longer one is cut."""
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63}):(?: +(.*))?")
_NUMBER = re.compile(r"[-+]?(?:\d+|(?:\d+\.\d*|\.\d+)(?:[eE][-+]\d+)?)")
"""As YAML 1.1 writes numbers: ``1e5`` is a text."""
_WORDS = {"null": None, "~": None, "true": True, "false": False}


def config_values(text: str) -> dict[str, Value]:
    """The scalars of a config and its lists of scalars, which become ``a, b``."""
    found: dict[str, Value] = {}
    lists: dict[str, list[str]] = {}
    path: list[tuple[int, str]] = []
    broken: set[str] = set()
    last = ""
    """The value or list of the last line, which a deeper line continues, and so makes unreadable."""
    deeper_than: int | None = None
    for line in text.splitlines():
        rest = line.lstrip(" ")
        indent = len(line) - len(rest)
        if not rest or rest.startswith("#") or len(found) >= MAX_KEYS:
            continue
        if deeper_than is not None and indent > deeper_than:  # also a line that looks like an item: the text continues
            broken.add(last)
            continue
        if rest.startswith("- ") and path and indent >= path[-1][0]:
            last = ".".join(name for _, name in path)
            lists.setdefault(last, []).append(rest[2:])
            deeper_than = indent
            continue
        if (match := _KEY.fullmatch(rest)) is None:
            continue
        while path and path[-1][0] >= indent:
            path.pop()
        name, value = match[1], match[2]
        if value is None:
            path.append((indent, name))
            deeper_than = None
            continue
        deeper_than, last = indent, ".".join([*(parent for _, parent in path), name])
        readable, scalar = _scalar(value)
        if readable and str(scalar).isprintable():
            found[last] = scalar
    for name, items in lists.items():
        scalars = [_scalar(item) for item in items]
        text = ", ".join(str(scalar) for _, scalar in scalars)[:MAX_TEXT]
        plain = all(readable and not _KEY.fullmatch(item) for (readable, _), item in zip(scalars, items, strict=True))
        if plain and text.isprintable():
            found[name] = text
    return {name: value for name, value in found.items() if name not in broken}


def _scalar(text: str) -> tuple[bool, Value]:
    """Whether a value is read, and the value."""
    if text in _WORDS:
        return True, _WORDS[text]
    if _NUMBER.fullmatch(text):
        number = float(text)
        return abs(number) <= 1e15, int(number) if number.is_integer() and "." not in text else number
    if text in ("[]", "{}"):
        return True, ""
    if text.startswith("'"):
        inner = text[1:-1]
        closed = len(text) >= 2 and text.endswith("'") and "'" not in inner.replace("''", "")
        return closed, inner.replace("''", "'")[:MAX_TEXT]
    if text.startswith('"'):
        try:
            value = json.loads(text)
        except ValueError:
            return False, None
        return isinstance(value, str), value[:MAX_TEXT]
    return text[0] not in "[{|>&*!%@`" and not text.startswith("- "), text[:MAX_TEXT]
