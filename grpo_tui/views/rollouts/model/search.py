"""A filter of samples as the box searches it, and a search: pages from the box, newest first, until it has all or
enough. No Textual.

A filter names fields (``reward<1``, ``text~"wait"``), flags (``truncated``, ``not correct``, ``right``, ``wrong``,
``kept``) and words, which are searched in prompt and completion regardless of case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from grpo_train.history.query import And, Comparison, Node, Not, Or, QueryError, Word, leaves, parse
from grpo_train.run_dir.suggest import did_you_mean
from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import Asking
from grpo_tui.model.formatting import counted, percent
from remote.protocol.index import IGNORE_CASE, SEARCHED, UNREADABLE

PAGE = 200
ENOUGH = 1_000
"""Matches after which the search rests until the reader comes to them."""
FINAL = ("bad_request", "timeout")
"""Codes of errors that the same search would have again."""


class SearchKey(NamedTuple):
    """A request for a page."""

    before: int | None
    turn: int


class RolloutSearch:
    """The samples of a step, or of the whole file, that meet a condition."""

    def __init__(
        self,
        run: str,
        where: list[Any],
        step: int | None,
        now: Callable[[], float] = monotonic,
        folder: str = "",
    ) -> None:
        """``folder``: of an evaluated step, which is searched."""
        self.run, self.where, self.folder = run, where, folder
        self.step = step
        """None: the whole file."""
        self.matches: list[dict[str, Any]] = []
        """Rows, newest first."""
        self.offsets: set[int] = set()
        self.steps: Counter[int] = Counter()
        """Matches by step."""
        self.searched = 0.0
        self.is_coarse = False
        """Whether only what was indexed has been searched."""
        self.is_done = False
        self.version = 0
        self.asking = Asking(now)
        self._before: int | None = None
        self._wanted = ENOUGH
        self._turn = 0

    @property
    def rests(self) -> bool:
        """Whether it goes on only when asked to."""
        return not self.is_done and len(self.matches) >= self._wanted

    def go_on(self) -> None:
        """Find more, if it rests."""
        if self.rests:
            self._wanted = len(self.matches) + ENOUGH

    def request(self) -> tuple[SearchKey, dict[str, Any]] | None:
        """The request to send now; None if there is none."""
        if self.is_done or self.rests:
            return None
        key = SearchKey(self._before, self._turn)
        if not self.asking.begin(key):
            return None
        optional = {"step": self.step, "before": self._before}
        given = {name: value for name, value in optional.items() if value is not None}
        return key, {"run": self.run, "folder": self.folder, "where": self.where, "limit": PAGE, **given}

    def answer(self, key: SearchKey, reply: Mapping[str, Any]) -> None:
        """Apply a page."""
        if not self.asking.end(key):
            return
        for row in reply["matches"]:
            if UNREADABLE not in row and row["offset"] not in self.offsets:
                self.matches.append(row)
                self.offsets.add(row["offset"])
                if row.get("step") is not None:
                    self.steps[int(row["step"])] += 1
        self.searched, self._before = reply["searched"], reply["next"]
        self.is_done = self._before is None
        self.is_coarse = self.is_done and self.step is None and reply["state"] != "whole"
        self._turn += 1  # a page without a match ends where it began
        self.version += 1

    def fail(self, key: SearchKey, problem: str, code: str) -> None:
        """The box refused, or did not answer. What it refuses is not asked again."""
        self.asking.end(key, problem)
        self.is_done = code in FINAL
        self.version += 1

    def words(self) -> str:
        """How far it is: ``217 matches, 34 % searched``."""
        count = counted(len(self.matches), "match", "matches")
        if self.asking.problem:
            return f"{count}; search failed: {self.asking.problem}"
        if not self.is_done:
            return f"{count}, {percent(self.searched)} searched"
        return f"{count} in what is indexed so far" if self.is_coarse else count


MAX_DEPTH = 8
MAX_CONDITIONS = 64
"""What the box accepts."""
ALIASES = {"adv": "advantage", "len": "length", "why": "reason", "cut": "truncated"}
WORDS = {
    "right": ("correct", True), "wrong": ("correct", False), "cut": ("truncated", True), "kept": ("discarded", False),
}  # fmt: skip
"""Words that are flags, besides the names of the flags."""
FIELDS = tuple(name for names in SEARCHED.values() for name in names)
_SPECIAL = re.compile(r"([.^$*+?{}\[\]\\|()])")


def condition(text: str) -> list[Any]:
    """A filter as the ``where`` of a search. Raises QueryError."""
    tree = parse(text)
    last = next(reversed(list(leaves(tree))), None)
    where = _condition(tree)
    if _size(where) > MAX_CONDITIONS or _depth(where) > MAX_DEPTH:
        raise QueryError("too many conditions", last.column if last is not None else 0)
    return where


def _condition(node: Node) -> list[Any]:
    if isinstance(node, And | Or):
        return ["and" if isinstance(node, And) else "or", *map(_condition, node.parts)]
    if isinstance(node, Not):
        return ["not", _condition(node.part)]
    return _word(node) if isinstance(node, Word) else _comparison(node)


def _word(word: Word) -> list[Any]:
    name = word.text.lower()
    if not word.is_quoted and name in SEARCHED["flags"]:
        return [name, "=", True]
    if not word.is_quoted and name in WORDS:
        flag, value = WORDS[name]
        return [flag, "=", value]
    return ["text", "~", contains(word.text)]


def literals(text: str) -> list[str]:
    """The texts that a filter searches in prompt and completion, as far as they are plain: not patterns."""
    try:
        found = [one for one in leaves(parse(text)) if isinstance(one, Comparison) or _word(one)[0] == "text"]
    except QueryError:
        return []
    words = [
        one.text if isinstance(one, Word) else one.value
        for one in found
        if isinstance(one, Word) or one.field.lower() in ("text", "prompt", "completion")
    ]
    return [word for word in words if word and not _SPECIAL.search(word)]


def contains(text: str) -> str:
    """A pattern that finds a text regardless of the case of ASCII letters."""
    return IGNORE_CASE + _SPECIAL.sub(r"\\\1", text)


def _comparison(one: Comparison) -> list[Any]:
    name = ALIASES.get(one.field.lower(), one.field.lower())
    operator = one.operator
    if name in SEARCHED["numbers"]:
        if operator == "~":
            raise QueryError(f"{name} is a number: compare it with = != < <= > >=", one.column)
        if one.number is None:
            raise QueryError(f"{name} is compared with a number", one.value_column)
        return [name, "=" if operator == ":" else operator, one.number]
    if name in SEARCHED["flags"]:
        if operator not in ("=", "!=", ":") or one.truth is None:
            raise QueryError(f"{name} is true or false", one.value_column)
        return [name, "!=" if operator == "!=" else "=", one.truth]
    if name in SEARCHED["texts"]:
        if operator == ":":
            return [name, "~", contains(one.value)]
        if operator not in ("=", "!=", "~"):
            raise QueryError(f"{name} is a text: compare it with = != ~ :", one.column)
        return [name, operator, one.value]
    raise QueryError(f"unknown field; {did_you_mean(name, FIELDS)}", one.column)


def _size(where: list[Any]) -> int:
    return 1 + sum(_size(part) for part in where[1:] if isinstance(part, list))


def _depth(where: list[Any]) -> int:
    return 1 + max((_depth(part) for part in where[1:] if isinstance(part, list)), default=0)
