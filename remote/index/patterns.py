r"""Regular expressions over blocks of lines, at the speed of a search for fixed text; warnings and errors.

``re`` examines about 100 MB/s with an expression that begins with a choice, and a search for fixed bytes 1 GB/s. Any
match of ``OutOfMemory|step \d+ failed`` has one of two texts in it, so only lines with one of these are examined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from remote.protocol import RemoteError

try:
    ops, parser = import_module("re._constants"), import_module("re._parser")
except ImportError:  # Python 3.10
    ops, parser = import_module("sre_constants"), import_module("sre_parse")

SHORTEST = 3
"""Bytes of a text that is searched for; of a shorter one there are too many."""
MOST = 32
"""Texts."""
MAX_SPANS = 50
_SEES_BEYOND_THE_LINE = re.compile(r"\\[AZ]|\(\?(?!:|P<|[aimsx]+\))")
"""Expressions that may match a line alone, and not where other lines surround it."""


class Pattern:
    """A regular expression that is searched for in each line. Without a capital letter, it matches both cases."""

    def __init__(self, text: str) -> None:
        """Raises RemoteError ``bad_request``."""
        self.source = text
        self.ignores_case = text == text.lower() or re.sub(r"\\.", "", text).islower()
        flags = re.IGNORECASE if self.ignores_case else 0
        try:
            self._text = re.compile(text, flags)
            tree = parser.parse(text, flags)
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            raise RemoteError("bad_request", f"not a regular expression: {error}") from None
        self._bytes = re.compile(text.encode(), flags | re.MULTILINE) if text.isascii() else None
        folds = bool(tree.state.flags & re.IGNORECASE)
        found = None if folds and not text.isascii() else _required(tree)
        required = sorted({_encoded(one, folds) for one in found or ()})
        is_usable = 0 < len(required) <= MOST and min(map(len, required)) >= SHORTEST
        self._folds = folds
        self._required = required if is_usable else None
        self._by_line = self._bytes is None or _SEES_BEYOND_THE_LINE.search(text) is not None

    def matches(self, line: bytes) -> bool:
        """Whether a line matches."""
        if self._bytes is not None:
            return self._bytes.search(line) is not None
        return self._text.search(line.decode(errors="replace")) is not None

    def spans(self, text: str) -> list[list[int]]:
        """Where a text matches, as pairs of first and last character, not included."""
        found = []
        for match in self._text.finditer(text):
            if match.end() > match.start():
                found.append([match.start(), match.end()])
            if len(found) == MAX_SPANS:
                break
        return found

    def lines(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Begin and end of each matching line of a block, which begins with a line."""
        begin = 0
        for place in self._candidates(block):
            if place < begin:
                continue
            begin, end = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
            end = len(block) if end < 0 else end
            if self.matches(block[begin:end]):
                yield begin, end
            begin = end + 1

    def _candidates(self, block: bytes) -> Iterator[int]:
        """Places in the lines that may match, in order; the rest of a line is passed over."""
        if self._required is not None:
            yield from _places(block.lower() if self._folds else block, self._required)
        elif self._by_line or self._bytes is None:
            begin = 0
            while begin < len(block):
                yield begin
                end = block.find(b"\n", begin)
                begin = len(block) if end < 0 else end + 1
        else:
            begin = 0
            while begin < len(block) and (match := self._bytes.search(block, begin)):
                yield match.start()
                end = block.find(b"\n", match.start())
                begin = len(block) if end < 0 else end + 1


def _places(block: bytes, texts: list[bytes]) -> Iterator[int]:
    """Where a line has one of some texts, in order, at most once a line."""
    following = {text: block.find(text) for text in texts}
    following = {text: place for text, place in following.items() if place >= 0}
    while following:
        place = min(following.values())
        yield place
        end = block.find(b"\n", place)
        if end < 0:
            return
        for text, known in list(following.items()):
            if known <= end:
                if (later := block.find(text, end)) < 0:
                    del following[text]
                else:
                    following[text] = later


def _encoded(text: str, folds: bool) -> bytes:
    return (text.lower() if folds else text).encode(errors="surrogatepass")


def _required(items: Any) -> list[str] | None:
    """Texts of which any match has one, the longest that are found; None without any."""
    found: list[list[str]] = []
    run = ""
    for op, value in items:
        if op is ops.LITERAL:
            run += chr(value)
            continue
        found.append([run])
        run = ""
        if op is ops.SUBPATTERN:
            found.append((not value[1] and _required(value[-1])) or [""])  # unless it has flags of its own
        elif op is ops.BRANCH:
            branches = [_required(branch) for branch in value[1]]
            found.append([text for branch in branches for text in branch or [""]])
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT) and value[0]:
            found.append(_required(value[2]) or [""])
    found.append([run])
    best = max(found, key=_shortest)
    return best if _shortest(best) else None


def _shortest(texts: list[str]) -> int:
    return min((len(text) for text in texts), default=0)


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
