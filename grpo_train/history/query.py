"""The language of the filters: text in, a tree out. No Textual.

======================  ==========================================================================
``wrong wait``          words; what a word is compared with is decided by the list
``reward<1``            FIELD OPERATOR VALUE, with ``= != < <= > >=``, ``~`` (regular expression),
                        ``:`` (contains); spaces may surround the operator
``state:running,lost``  one of several
``a b``, ``a and b``    both; spaces mean *and*, which binds more tightly than *or*
``a or b``, ``not a``   ``and``, ``or`` and ``not`` in any case; parentheses group
``"it's (72)"``         quotes keep spaces, parentheses and the words above; ``\\"`` is a quote
======================  ==========================================================================
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from functools import lru_cache
from typing import NoReturn

OPERATORS = ("!=", "<=", ">=", "=", "<", ">", "~", ":")
"""Longer ones first."""
KEYWORDS = ("and", "or", "not")
MAX_DEPTH = 16
"""Of parentheses and ``not``."""
MAX_LENGTH = 2_000
"""Characters of a filter."""
TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_SPACE = re.compile(r"\s*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_WORD = re.compile(r'(?:[^\s()"=<>~:!]|!(?!=))+')
_VALUE = re.compile(r'[^\s()"]+')
_LISTED = re.compile(r'[^\s()",]+')


class QueryError(ValueError):
    """A filter that cannot be read: what is wrong, and where."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        """Index of the character that is wrong; the length of the text if something is missing at its end."""


@dataclass(frozen=True)
class Word:
    """A word, or a quoted text."""

    text: str
    is_quoted: bool = False
    column: int = with_default(default=0, compare=False)


@dataclass(frozen=True)
class FieldCondition:
    """A field that is compared with a value."""

    field: str
    operator: str
    """One of OPERATORS."""
    value: str
    """As it was written, without quotes."""
    is_quoted: bool = False
    """Quoted values are not numbers."""
    column: int = with_default(default=0, compare=False)
    """Of the field."""
    value_column: int = with_default(default=0, compare=False)

    @property
    def number(self) -> float | None:
        """The value as a number; None if it is not written as one."""
        return float(self.value) if not self.is_quoted and _NUMBER.match(self.value) else None

    @property
    def truth(self) -> bool | None:
        """The value as true or false; None if it is neither."""
        return TRUTHS.get(self.value.lower())


@dataclass(frozen=True)
class And:
    """All of its parts; without parts, everything."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Or:
    """One of its parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Not:
    part: Node


Leaf = Word | FieldCondition
Node = Word | FieldCondition | And | Or | Not
EVERYTHING = And()


def parse_filter(text: str) -> Node:
    """The tree of a filter; an empty one is :data:`EVERYTHING`. Raises QueryError."""
    if len(text) > MAX_LENGTH:
        raise QueryError(f"a filter has at most {MAX_LENGTH:,} characters", MAX_LENGTH)
    return _Parser(text).parse()


def render(node: Node) -> str:
    """A filter that is parsed to the same tree."""
    return _render(node, inside=False)


def all_of(parts: Sequence[Node]) -> Node:
    """The parts joined by *and*."""
    return parts[0] if len(parts) == 1 else And(tuple(_flat(And, parts)))


def any_of(parts: Sequence[Node]) -> Node:
    """The parts joined by *or*; at least one."""
    return parts[0] if len(parts) == 1 else Or(tuple(_flat(Or, parts)))


def leaves(node: Node) -> Iterable[Leaf]:
    """The words and comparisons of a filter, from left to right."""
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from leaves(part)
    elif isinstance(node, Not):
        yield from leaves(node.part)
    else:
        yield node


def matches(node: Node, leaf: Callable[[Leaf], bool]) -> bool:
    """Whether a filter holds, where ``leaf`` says whether a word or a comparison does."""
    if isinstance(node, And):
        return all(matches(part, leaf) for part in node.parts)
    if isinstance(node, Or):
        return any(matches(part, leaf) for part in node.parts)
    return not matches(node.part, leaf) if isinstance(node, Not) else leaf(node)


def meets(comparison: FieldCondition, found: str | float | bool | None) -> bool:
    """Whether a value meets a comparison. A missing value never does. ``:`` ignores case, ``=`` and ``~`` do not."""
    if found is None:
        return False
    operator, number = comparison.operator, comparison.number
    if isinstance(found, bool):
        if operator in ("=", ":", "!=") and comparison.truth is not None:
            return (comparison.truth is found) is (operator != "!=")
        found = str(found).lower()
    if isinstance(found, str) and number is not None and _NUMBER.match(found):
        found = float(found)
    if isinstance(found, str) or number is None or operator == "~":
        text = found if isinstance(found, str) else f"{found:.15g}"
        return _compare_texts(operator, text, comparison.value)
    return _compare(operator, found, number)


def _compare_texts(operator: str, found: str, wanted: str) -> bool:
    if operator == "~":
        return compiled(wanted).search(found) is not None
    if operator == ":":
        return wanted.lower() in found.lower()
    return _compare(operator, found, wanted)


def _compare(operator: str, found: str | float, wanted: str | float) -> bool:
    if operator in ("=", ":"):
        return found == wanted
    if operator == "!=":
        return found != wanted
    if operator in ("<", "<="):
        return found < wanted or (operator == "<=" and found == wanted)  # type: ignore[operator]
    return found > wanted or (operator == ">=" and found == wanted)  # type: ignore[operator]


@lru_cache(maxsize=64)
def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression, without the warnings of one that a later Python reads differently."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.compile(pattern)


def check_pattern(pattern: str, column: int) -> None:
    """Raise QueryError for a regular expression, which begins at a column, that cannot be read."""
    try:
        compiled(pattern)
    except re.error as error:
        raise QueryError(f"invalid pattern: {error.msg}", column + (error.pos or 0)) from None
    except (RecursionError, OverflowError) as error:
        raise QueryError(f"invalid pattern: {error}", column) from None


def _flat(kind: type[And] | type[Or], parts: Iterable[Node]) -> Iterable[Node]:
    for part in parts:
        yield from part.parts if isinstance(part, kind) else (part,)


def _render(node: Node, inside: bool) -> str:
    if isinstance(node, Word):
        return _written(node.text, node.is_quoted, _WORD)
    if isinstance(node, FieldCondition):
        name = _written(node.field, "!" in node.field, _WORD)  # x! = 1 is not x != 1
        value = _written(node.value, node.is_quoted, _LISTED if node.operator == ":" else _VALUE, False)
        return f"{name}{node.operator}{value}"
    if isinstance(node, Not):
        return f"not {_render(node.part, inside=True)}"
    joint = " or " if isinstance(node, Or) else " "
    text = joint.join(_render(part, inside=True) for part in node.parts)
    return f"({text})" if inside else text


def _written(text: str, is_quoted: bool, plain: re.Pattern[str], is_word: bool = True) -> str:
    if is_quoted or not plain.fullmatch(text) or (is_word and text.lower() in KEYWORDS):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


class _Parser:
    """Recursive descent: or → and → not → leaf."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def parse(self) -> Node:
        if not self._text.strip():
            return EVERYTHING
        node = self._or()
        if not self._is_at_end:  # only a parenthesis ends an expression early
            self._fail("this parenthesis was not opened")
        return node

    def _or(self) -> Node:
        parts = [self._and()]
        while self._take_keyword("or"):
            parts.append(self._and())
        return any_of(parts)

    def _and(self) -> Node:
        parts = [self._not()]
        while self._take_keyword("and") or not (self._is_at_end or self._peek(")") or self._keyword() == "or"):
            parts.append(self._not())
        return all_of(parts)

    def _not(self) -> Node:
        if self._depth == MAX_DEPTH:
            self._fail("too many nested parentheses")
        self._depth += 1
        try:
            if self._take_keyword("not"):
                return Not(self._not())
            return self._group() if self._peek("(") else self._leaf()
        finally:
            self._depth -= 1

    def _group(self) -> Node:
        opened = self._at
        self._at += 1
        if self._peek(")"):
            self._fail("the parentheses are empty")
        node = self._or()
        if not self._peek(")"):
            raise QueryError("this parenthesis is not closed", opened)
        self._at += 1
        return node

    def _leaf(self) -> Node:
        if self._is_at_end:
            self._fail(f"a condition is missing after '{self._text.split()[-1]}'")
        column = self._at
        if (word := self._keyword()) or self._peek(")"):
            self._fail(f"a condition is missing before '{word or ')'}'")
        name, is_quoted = self._read(_WORD)
        self._skip_space()
        operator = next((one for one in OPERATORS if self._text.startswith(one, self._at)), "")
        if not operator:
            if not name and not is_quoted:
                self._fail("this cannot be read")
            return Word(name, is_quoted, column)
        if not name:
            self._fail(f"a field is missing before '{operator}'")
        self._at += len(operator)
        if operator == "=":
            self._at += self._text.startswith("=", self._at)  # == is = to who writes Python
        return self._values(name, operator, column)

    def _values(self, name: str, operator: str, column: int) -> Node:
        """What is after an operator; several values, separated by commas, after a colon."""
        found: list[Node] = []
        while True:
            self._skip_space()
            start = self._at
            value, is_quoted = self._read(_LISTED if operator == ":" else _VALUE)
            if value.startswith("=") and not is_quoted:
                raise QueryError(f"a value is missing after '{operator}'", start)
            if not value and not is_quoted:
                if self._peek("("):
                    self._fail("a value with a parenthesis needs quotes")
                self._fail(f"a value is missing after '{',' if found else operator}'")
            if operator == "~":
                check_pattern(value, start + is_quoted)
            found.append(FieldCondition(name, operator, value, is_quoted, column, start))
            if operator != ":" or not self._text.startswith(",", self._at):
                return any_of(found)
            self._at += 1

    def _read(self, plain: re.Pattern[str]) -> tuple[str, bool]:
        """A text and whether it is quoted; "" if there is none."""
        if self._text.startswith('"', self._at):
            quoted = _QUOTED.match(self._text, self._at)
            if quoted is None:
                self._fail("this quote is not closed")
            self._at = quoted.end()
            return re.sub(r'\\(["\\])', r"\1", quoted[1]), True
        found = plain.match(self._text, self._at)
        if found is None:
            return "", False
        self._at = found.end()
        return found[0], False

    def _keyword(self) -> str:
        """The keyword that is next, or ""."""
        self._skip_space()
        found = _WORD.match(self._text, self._at)
        return found[0].lower() if found is not None and found[0].lower() in KEYWORDS else ""

    def _take_keyword(self, word: str) -> bool:
        if self._keyword() != word:
            return False
        self._at += len(word)
        return True

    def _peek(self, character: str) -> bool:
        self._skip_space()
        return self._text.startswith(character, self._at)

    @property
    def _is_at_end(self) -> bool:
        self._skip_space()
        return self._at == len(self._text)

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at

    def _fail(self, message: str) -> NoReturn:
        raise QueryError(message, self._at)
