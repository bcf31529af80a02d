"""Filters of samples, as the box searches them. No Textual.

A filter names fields (``reward<1``, ``text~"wait"``), flags (``truncated``, ``not correct``, ``right``, ``wrong``,
``kept``) and words, which are searched in prompt and completion regardless of case.
"""

from __future__ import annotations

import re
from typing import Any

from grpo_train.history.query import And, Comparison, Node, Not, Or, QueryError, Word, leaves, parse
from grpo_train.run_dir.suggest import did_you_mean
from remote.protocol.index import IGNORE_CASE, SEARCHED

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
