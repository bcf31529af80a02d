"""Conditions on samples: what :class:`remote.protocol.index.SearchRolloutsRequest` describes, as a function.

What the columns decide is decided first; a line is read only where a text is asked for.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from remote.index.completions import read_completion
from remote.index.lines import MISSING
from remote.index.rollouts import FLAGS, OTHER_REASON, Sample
from remote.protocol import RemoteError
from remote.protocol.index import IGNORE_CASE, SEARCHED

MAX_CONDITIONS = 64
MAX_DEPTH = 8
MAX_PATTERN = 1_000
EXCERPT = 60
"""Characters on each side of what was found."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_NUMBERS = {"step": 1, "group": 2, "sample": 3, "reward": 4, "advantage": 5, "length": 6}
_PLAIN = re.compile(r"[A-Za-z0-9 ]+")


class Candidate:
    """A sample that is examined."""

    def __init__(self, sample: Sample, reason: str | None, line: Callable[[], bytes | None]) -> None:
        self.sample, self.excerpt = sample, ""
        self._reason, self._read = reason, line
        self._line: bytes | None = None
        self._row: dict[str, Any] | None = None

    @property
    def line(self) -> bytes:
        if self._line is None:
            self._line = self._read() or b""
        return self._line

    def text(self, field: str) -> str | None:
        """A text of the sample; None if it has none."""
        if field == "reason" and self.sample[8] != OTHER_REASON:
            return self._reason
        if self._row is None:
            self._row = read_completion(self.line) or {}
        value = self._row.get(field)
        return None if value is None else str(value)


Condition = Callable[[Candidate], bool]


def compiled(where: list[Any]) -> Condition:
    """A condition as a function. Raises RemoteError ``bad_request``."""
    left = [MAX_CONDITIONS]
    return _compiled(where, MAX_DEPTH, left)[1]


def _compiled(where: Any, depth: int, left: list[int]) -> tuple[int, Condition]:
    """The cost of a condition (0: from the columns), and the condition."""
    left[0] -= 1
    if not isinstance(where, list) or not where or depth == 0 or left[0] < 0:
        raise _refused("a condition is a list, at most 8 deep and 64 in all")
    kind, *rest = where
    if kind in ("and", "or"):
        parts = sorted((_compiled(part, depth - 1, left) for part in rest), key=lambda part: part[0])
        conditions, cost = [condition for _, condition in parts], max((cost for cost, _ in parts), default=0)
        if kind == "and":
            return cost, lambda one: all(condition(one) for condition in conditions)
        return cost, lambda one: any(condition(one) for condition in conditions)
    if kind == "not":
        if len(rest) != 1:
            raise _refused("'not' has one condition")
        cost, inner = _compiled(rest[0], depth - 1, left)
        return cost, lambda one: not inner(one)
    if len(rest) != 2 or not isinstance(rest[0], str):
        raise _refused("a condition has a field, an operator and a value")
    return _comparison(kind, *rest)


def _comparison(field: Any, symbol: str, value: Any) -> tuple[int, Condition]:
    if field in SEARCHED["numbers"]:
        return 0, _on_number(_NUMBERS[field], symbol, value)
    if field in SEARCHED["flags"]:
        if symbol not in ("=", "!=") or not isinstance(value, bool):
            raise _refused(f"'{field}' is compared with true or false")
        shift, wanted = 2 * FLAGS.index(field), (1, 2)[value if symbol == "=" else not value]
        return 0, lambda one: one.sample[7] >> shift & 3 == wanted
    if field in SEARCHED["texts"]:
        if symbol not in ("=", "!=", "~") or not isinstance(value, str) or len(value) > MAX_PATTERN:
            raise _refused(f"'{field}' is compared with a text, by = != ~")
        fields = ("prompt", "completion") if field == "text" else (field,)
        return (1 if field == "reason" else 2), _on_text(fields, symbol, value)
    raise _refused(f"'{field}' is not a field of a sample")


def _on_number(place: int, symbol: str, value: Any) -> Condition:
    compare = _COMPARE.get(symbol)
    if compare is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refused("a number is compared with a number, by = != < <= > >=")
    absent = -1 if place in (2, 3, 6) else MISSING

    def holds(one: Candidate) -> bool:
        found = one.sample[place]
        return found != absent and compare(found, value)

    return holds


def _on_text(fields: tuple[str, ...], symbol: str, value: str) -> Condition:
    if symbol != "~":
        wanted = symbol == "="
        return lambda one: any(one.text(field) == value for field in fields) is wanted
    try:
        search = re.compile(value).search
    except (re.error, RecursionError, OverflowError) as error:
        raise _refused(f"invalid pattern: {error}") from None
    # most lines do not have a plain word anywhere; an escape could hide one
    plain = value.removeprefix(IGNORE_CASE)
    ignores_case = plain != value
    needle = plain.lower().encode() if ignores_case else plain.encode()
    is_plain = _PLAIN.fullmatch(plain) is not None and fields != ("reason",)

    def holds(one: Candidate) -> bool:
        if is_plain and b"\\u" not in one.line and needle not in (one.line.lower() if ignores_case else one.line):
            return False
        for field in fields:
            text = one.text(field)
            if text is not None and (found := search(text)):
                one.excerpt = _excerpt(text, found.start(), found.end())
                return True
        return False

    return holds


def _excerpt(text: str, start: int, end: int) -> str:
    low, high = max(0, start - EXCERPT), min(len(text), min(end, start + EXCERPT) + EXCERPT)
    return ("…" if low else "") + text[low:high] + ("…" if high < len(text) else "")


def _refused(message: str) -> RemoteError:
    return RemoteError("bad_request", message)
