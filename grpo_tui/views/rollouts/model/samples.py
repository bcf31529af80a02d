"""Samples of a step and their texts, and the search through all completions of a run. No Textual.

A filter names fields (``reward<1``, ``text~"wait"``), flags (``truncated``, ``not correct``, ``right``, ``wrong``,
``kept``) and words, which are searched in prompt and completion regardless of case.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from grpo_train.history.query import And, FieldCondition, Node, Not, Or, QueryError, Word, leaves, parse_filter
from grpo_train.run_dir.display import metric_value
from grpo_train.run_dir.errors import did_you_mean
from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import Asking, monotonic
from grpo_tui.box.export import table_of
from grpo_tui.box.formatting import counted, percent
from remote.protocol.logs import HUGE, IGNORE_CASE, SEARCHED, UNREADABLE

ORDERS = ("spread", "mean", "length", "log")
"""``log``: as they were logged."""
DESCENDING = {"spread": True, "mean": False, "length": True, "log": False}
"""Whether the largest come first, unless reversed."""
FLIPS = ("lost", "gained")
MAX_BARS = 8

Sample = Mapping[str, Any]
SAMPLE = (
    "step", "group", "sample", "reward", "advantage", "length", "correct", "formatted", "flexible", "truncated",
    "discarded", "reason",
)  # fmt: skip
DETAILS = ("answer", "gold", "task", "role")
"""What a list of samples does not have, and a request for some of them has."""
REWARDS = "rewards/"
"""Before the name of each component of the reward."""


@dataclass(frozen=True)
class Group:
    """The samples of one prompt."""

    number: int | None
    """None: samples without a group."""
    prompt: str = ""
    samples: list[Sample] = field(default_factory=list)

    @cached_property
    def rewards(self) -> list[float]:
        """The finite rewards."""
        return [value for one in self.samples if (value := reward_of(one)) is not None and abs(value) < HUGE]

    @cached_property
    def mean(self) -> float | None:
        return fmean(self.rewards) if self.rewards else None

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation of the rewards."""
        if self.mean is None:
            return None
        return math.hypot(*(value - self.mean for value in self.rewards)) / math.sqrt(len(self.rewards))

    @cached_property
    def is_discarded(self) -> bool:
        """Whether no step learned from it (``rollout.filter_groups``)."""
        return any(one.get("discarded") for one in self.samples)

    @cached_property
    def share(self) -> float | None:
        """The share of right samples."""
        known = [bool(one["correct"]) for one in self.samples if one.get("correct") is not None]
        return sum(known) / len(known) if known else None

    @cached_property
    def length(self) -> float | None:
        """Mean length in tokens."""
        lengths = [one["length"] for one in self.samples if one.get("length") is not None]
        return fmean(lengths) if lengths else None


def reward_of(sample: Sample) -> float | None:
    return to_float(sample.get("reward"))


def flipped(groups: Sequence[Group], shares: Mapping[int | None, float], kind: str) -> list[Group]:
    """The problems of which fewer (``lost``) or more (``gained``) samples are right than elsewhere, the largest
    difference first. ``shares``: what is right elsewhere."""
    sign = -1 if kind == FLIPS[0] else 1
    known = [(sign * (group.share - shares[group.number]), group) for group in groups
             if group.share is not None and group.number in shares]  # fmt: skip
    found = [pair for pair in known if pair[0] > 0]
    return [group for _, group in sorted(found, key=lambda pair: -pair[0])]


def groups_of(samples: Iterable[Sample], prompts: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The groups in the order of the log."""
    texts = {row.get("group"): str(row.get("prompt", "")) for row in prompts if UNREADABLE not in row}
    found: dict[int | None, Group] = {}
    for sample in samples:
        if UNREADABLE in sample:
            continue
        number = sample.get("group")
        if number not in found:
            found[number] = Group(number, texts.get(number, ""))
        found[number].samples.append(sample)
    return list(found.values())


def ordered(
    groups: Sequence[Group], order: str, is_reversed: bool = False, *, wrong_first: bool = False
) -> list[Group]:
    """The groups in one of ORDERS; those without a value come last, and discarded ones after them.

    ``wrong_first``: in the order by spread, those of which fewer samples are right come first, whatever their spread.
    """
    descending = DESCENDING[order] is not is_reversed
    if order == "log":
        return list(reversed(groups)) if descending else list(groups)
    known = [(value, group) for group in groups if (value := getattr(group, order)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    if wrong_first and order == "spread":
        known.sort(key=lambda pair: 1.0 if pair[1].share is None else pair[1].share, reverse=is_reversed)
    found = [group for _, group in known] + [group for group in groups if getattr(group, order) is None]
    return sorted(found, key=lambda group: group.is_discarded)


def order_label(order: str, is_reversed: bool, *, wrong_first: bool = False) -> str:
    """``spread ↓``: the largest first."""
    if wrong_first and order == "spread":
        return "right first" if is_reversed else "wrong first"
    if order == "log":
        return "log order, newest first" if is_reversed else "log order"
    return f"{order} {'↓' if DESCENDING[order] is not is_reversed else '↑'}"


def histogram(samples: Iterable[Sample]) -> list[tuple[str, int]]:
    """Counts of rewards of samples that are not discarded: one bar per value, or, of many values, equally wide ranges;
    then those that are not finite."""
    values = [reward_of(one) for one in samples if not one.get("discarded")]
    finite = sorted(value for value in values if value is not None and abs(value) < HUGE)
    bars: list[tuple[str, int]] = []
    distinct = sorted(set(finite))
    if len(distinct) <= MAX_BARS:
        bars = [(metric_value(value), finite.count(value)) for value in distinct]
    else:
        low, width = finite[0], (finite[-1] - finite[0]) / MAX_BARS or 1.0
        counts = [0] * MAX_BARS
        for value in finite:
            counts[min(MAX_BARS - 1, int((value - low) / width))] += 1
        bars = [
            (f"{metric_value(low + i * width)}–{metric_value(low + (i + 1) * width)}", count)
            for i, count in enumerate(counts)
        ]
    missing = values.count(None)
    other = len(values) - missing - len(finite)
    return [*bars, *([("not finite", other)] if other else []), *([("no reward", missing)] if missing else [])]


def why(sample: Sample, answer: str | None = None) -> str:
    """What became of a sample: ``right``, ``wrong: 144``, ``truncated, no answer``, or the reason that was logged."""
    reason = str(sample.get("reason") or "").replace("_", " ")
    if sample.get("truncated"):
        return "truncated" if reason in ("", "ok", "truncated") else f"truncated, {reason}"
    if reason in ("", "ok"):
        correct = sample.get("correct")
        return "" if correct is None else "right" if correct else "wrong"
    return f"{reason}: {answer}" if reason == "wrong" and answer else reason


def sample_table(samples: Sequence[Sample], details: Sequence[Mapping[str, Any]]) -> str:
    """A CSV table of samples. ``details``: each as it was logged, with answer, gold answer and rewards."""
    rewards = list(dict.fromkeys(name for found in details for name in found.get("rewards") or {}))
    rows = (
        [*map(sample.get, SAMPLE), *map(found.get, DETAILS), *map((found.get("rewards") or {}).get, rewards)]
        for sample, found in zip(samples, details, strict=True)
    )
    return table_of([*SAMPLE, *DETAILS, *(f"{REWARDS}{name}" for name in rewards)], rows)


_MARK = re.compile(r"</?think>|</?answer>|^[ \t]*```[^\n`<]*(?=\n|<|\Z)", re.MULTILINE)
_OPENED = re.compile(r"(<think>|<answer>|^[ \t]*```[^\n`]*)\s*\Z", re.MULTILINE)


class CompletionPart(NamedTuple):
    """A part of a completion, without the marks around it."""

    kind: str
    """``think``, ``code``, ``answer`` or ``text``."""
    start: int
    """Where it is in the completion."""
    text: str


def parts_of(completion: str, prompt: str = "") -> list[CompletionPart]:
    """The parts in order, without empty ones; a part without its end goes on to the end.

    ``prompt``: one that ends with an opening mark begins the completion's first part.
    """
    opened = _OPENED.search(prompt)
    outer, in_code = "text", False
    if opened is not None:
        outer = opened[1].strip("<>") if opened[1].startswith("<") else "text"
        in_code = not opened[1].startswith("<")
    parts: list[CompletionPart] = []
    begin = 0

    def add(end: int) -> None:
        text = completion[begin:end]
        rest = text.lstrip("\r\n") if in_code else text.lstrip()  # the first line of code keeps its indentation
        if rest.strip():
            parts.append(CompletionPart("code" if in_code else outer, begin + len(text) - len(rest), rest.rstrip()))

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

    def due(self) -> tuple[SearchKey, dict[str, Any]] | None:
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
    tree = parse_filter(text)
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
        found = [
            one for one in leaves(parse_filter(text)) if isinstance(one, FieldCondition) or _word(one)[0] == "text"
        ]
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


def _comparison(one: FieldCondition) -> list[Any]:
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
