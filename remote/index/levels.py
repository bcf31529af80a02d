"""Which lines of a log are warnings and errors."""

from __future__ import annotations

from remote.index.patterns import Pattern

_TEXT = {
    "error": r"\b(ERROR|CRITICAL|FATAL)\b|(Error|Exception|KeyboardInterrupt)\b(?!\()|\b[Ff]atal\b|\berror:"
    r"|Segmentation fault|✖",
    "warning": r"\bWARN(ING)?\b|Warning\b(?!\()|\bwarning:|▲",
}
"""A source line of a traceback, such as ``raise ValueError(…)``, is neither."""
_JSON = {
    "error": r'"level": ?"(alarm|error)"|"error": ?[{"][^"}]|"event": ?"(crashed|lost)"',
    "warning": r'"level": ?"warning"',
}
"""Rows: the texts in them are a model's."""


class Levels:
    """Tells the level of a line."""

    def __init__(self, is_json: bool) -> None:
        self.patterns = {level: Pattern(text) for level, text in (_JSON if is_json else _TEXT).items()}

    def of(self, line: bytes) -> str:
        """The level of a line: ``error``, ``warning`` or ``""``."""
        return next((level for level, pattern in self.patterns.items() if pattern.matches(line)), "")


def levels_of(path: str) -> Levels:
    """The levels of a file, by its name."""
    return _BY_KIND[path.endswith((".jsonl", ".json"))]


_BY_KIND = {is_json: Levels(is_json) for is_json in (False, True)}
