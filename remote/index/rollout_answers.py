"""Answers about ``rollouts.jsonl``: its steps, their samples, their texts, and searches.

What the columns decide is decided first; a line is read only where a text is asked for.
"""

from __future__ import annotations

import json
import operator
import os
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from grpo_train.run_dir.tokens import FILE as TOKENS
from remote.index.lines import MAX_LINE, MISSING, logged_number, number, read_completion, read_line
from remote.index.log_index import OpenLog, Ranges, range_end
from remote.index.rollouts import (
    COLUMNS,
    FLAGS,
    OTHER_REASON,
    Reasons,
    RolloutIndex,
    Sample,
    Segment,
    read_sample,
    segments_of,
)
from remote.protocol import RemoteError
from remote.protocol.frames import pack
from remote.protocol.logs import (
    HUGE,
    IGNORE_CASE,
    MAX_STEPS,
    SEARCHED,
    UNREADABLE,
    ProblemChangesRequest,
    RolloutStepRequest,
    RolloutStepsRequest,
    SamplesRequest,
    SearchRolloutsRequest,
)
from remote.protocol.text import pictured

CHUNK = 1 << 16
BLOCK = 1 << 20
PROMPT = 200
"""Characters of a group's prompt."""
LONGEST_PROMPT = 20_000
"""Characters, the last ones, that are compared with the other prompts."""
TEMPLATE = 24
"""Characters that all prompts of a step share from which they are left out."""
MAX_REWARDS = 64
MAX_FACTS = 20_000
"""Characters; longer ones are left out."""
SHORT = 2_000
"""Characters of an answer."""
MAX_TOKEN_LINES = 10_000
"""Lines of tokens of one buffer."""


class Lines:
    """Lines at offsets, read in blocks of which the last one is kept."""

    def __init__(self, source: OpenLog) -> None:
        self._source = source
        self._start, self._data = 0, b""

    def at(self, offset: int, *, backwards: bool = False) -> bytes | None:
        """The line that begins at an offset; None if it has no end within MAX_LINE. ``backwards``: earlier lines are
        read next."""
        begin = offset - self._start
        end = self._data.find(b"\n", begin) if 0 <= begin < len(self._data) else -1
        if end < 0:
            self._start = max(0, offset + CHUNK - BLOCK) if backwards else offset
            self._data = os.pread(self._source.descriptor, offset - self._start + CHUNK, self._start)
            begin = offset - self._start
            end = self._data.find(b"\n", begin)
            if end < 0:
                self._data = os.pread(self._source.descriptor, offset - self._start + MAX_LINE + 1, self._start)
                end = self._data.find(b"\n", begin)
        return self._data[begin:end] if end >= 0 else None


def full_row(offset: int, line: bytes | None, characters: int) -> dict[str, Any]:
    """A sample with its texts, each of at most so many characters. Raises ValueError."""
    reasons = Reasons([])
    row = read_completion(line) if line is not None else None
    sample = read_sample(offset, line or b"", reasons)
    if row is None or sample is None:
        raise ValueError("the line cannot be read")
    found = {"offset": offset, **sample_row(sample, reasons.list)}
    for name in ("prompt", "completion"):
        text = row.get(name)
        if isinstance(text, str):
            found[f"{name}_length"] = len(text)
            found[name] = text[max(0, len(text) - characters) :] if name == "prompt" else text[:characters]
    for name in ("answer", "gold", "role", "reason", "task", "time"):
        value = row.get(name)
        is_text = isinstance(value, str) or (value is not None and name != "reason")
        found[name] = str(value)[:SHORT] if is_text else None
    rewards = row.get("rewards")
    if isinstance(rewards, dict):
        found["rewards"] = {name: logged_number(number(value)) for name, value in list(rewards.items())[:MAX_REWARDS]}
    if isinstance(row.get("facts"), dict) and len(json.dumps(row["facts"])) <= MAX_FACTS:
        found["facts"] = row["facts"]
    return found


def sample_row(sample: Sample, reasons: list[str]) -> dict[str, Any]:
    """A row of the columns as a reply has it."""
    offset, step, group, place, reward, advantage, length, bits, reason, problem = sample
    row: dict[str, Any] = {
        "offset": offset,
        "step": step,
        "reward": logged_number(reward),
        "advantage": logged_number(advantage),
    }
    for key, value in (("group", group), ("sample", place), ("length", length), ("problem", problem)):
        row[key] = None if value < 0 else value
    for at, flag in enumerate(FLAGS):
        row[flag] = (None, False, True, None)[bits >> 2 * at & 3]
    row["reason"] = reasons[reason - 2] if reason > 1 else None
    return row


def prompts(samples: list[Sample], lines: Lines) -> list[dict[str, Any]]:
    """Each group with the part of its prompt that tells it from the others."""
    found: dict[int, str] = {}
    for offset, _, group, *_ in samples:
        if group >= 0 and group not in found:
            row = read_completion(lines.at(offset) or b"")
            text = row.get("prompt") if row else None
            found[group] = text[-LONGEST_PROMPT:] if isinstance(text, str) else ""
    texts = [text for text in found.values() if text]
    start = _shared(texts)
    end = _shared([text[start:][::-1] for text in texts])
    return [
        {"group": group, "prompt": text[start : len(text) - end][:PROMPT] if start or end else text[-PROMPT:]}
        for group, text in found.items()
    ]


def _shared(texts: list[str]) -> int:
    """Characters at the beginning of all texts that belong to their template: whole words, and not few; else 0."""
    if len(set(texts)) < 2:
        return 0
    low, high = min(texts), max(texts)  # what these two share, all share
    place = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    place = max((low.rfind(space, 0, place) + 1 for space in " \n"), default=0)
    return place if place >= TEMPLATE else 0


class Unindexed:
    """Samples of a file whose steps rise, found by bisection."""

    def __init__(self, source: OpenLog, ranges: Ranges) -> None:
        self._source, self._ranges = source, ranges

    def step(self, wanted: int) -> tuple[int, int | None, list[Sample], list[str]] | None:
        """The last step with samples that is not after the one wanted, else the first one: the step, the next one, its
        samples, and reasons. None without a sample."""
        after = self._first(wanted + 1)
        before = self._last_before(after)
        step = before if before is not None else self._step_at(after)
        if step is None:
            return None
        reasons, samples, following = Reasons([]), [], None
        for offset, line in self._lines(self._first(step)):
            sample = read_sample(offset, line, reasons)
            if sample is not None and sample[1] != step:
                following = sample[1]
                break
            if sample is not None:
                samples.append(sample)
        return step, following, samples, reasons.list

    def lines_from(self, step: int) -> Iterator[bytes]:
        """The lines of a step and of later ones."""
        return (line for _, line in self._lines(self._first(step)))

    def step_before(self, step: int) -> int | None:
        """The step with samples before one that has some."""
        return self._last_before(self._first(step))

    def samples(self, start: int) -> list[Sample]:
        """The samples from the first line on that begins at an offset or after it."""
        reasons = Reasons([])
        found = (read_sample(offset, line, reasons) for offset, line in self._lines(self._line_start(start)))
        return [sample for sample in found if sample is not None]

    def _first(self, step: int) -> int:
        """The offset of the first row of a step or a later one; the file's size if there is none."""
        low, high = 0, self._source.size
        while low < high:
            middle = (low + high) // 2
            found = self._row_from(middle, high)
            if found is None or found[1] >= step:
                high = middle
            else:
                low = found[0] + 1
        found = self._row_from(low, self._source.size)
        return found[0] if found else self._source.size

    def _row_from(self, place: int, end: int) -> tuple[int, int] | None:
        """Offset and step of the first row that begins at a place or after it, and before an end."""
        start = self._line_start(place)
        for offset, line in self._lines(start, end):
            sample = read_sample(offset, line, Reasons([]))
            if sample is not None:
                return offset, sample[1]
        return None

    def _line_start(self, place: int) -> int:
        """The start of the first line that begins at a place or after it."""
        if place == 0:
            return 0
        position = place - 1
        while data := os.pread(self._source.descriptor, CHUNK, position):
            end = data.find(b"\n")
            if end >= 0:
                return position + end + 1
            position += len(data)
        return self._source.size

    def _step_at(self, offset: int) -> int | None:
        found = self._row_from(offset, self._source.size)
        return found[1] if found else None

    def _last_before(self, end: int) -> int | None:
        """The step of the last row before an offset."""
        size = CHUNK
        while True:
            start = self._line_start(max(0, end - size))
            steps = [
                sample[1]
                for offset, line in self._lines(start, end)
                if (sample := read_sample(offset, line, Reasons([]))) is not None
            ]
            if steps:
                return steps[-1]
            if size >= end:
                return None
            size *= 4

    def _lines(self, start: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Whole lines that begin from ``start`` on and before ``end``, without superseded ones."""
        offset, rest = start, b""
        while end is None or offset < end:
            if (past := range_end(offset, self._ranges)) > offset:
                offset, rest = past, b""
                continue
            data = os.pread(self._source.descriptor, CHUNK, offset + len(rest))
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if range_end(offset, self._ranges) > offset or (end is not None and offset >= end):
                    rest = b""
                    break
                if len(line) <= MAX_LINE:
                    yield offset, line
                offset += len(line) + 1
            if len(rest) > MAX_LINE:
                offset, rest = self._line_start(offset + len(rest)), b""


MAX_CONDITIONS = 64
MAX_DEPTH = 8
MAX_PATTERN = 1_000
EXCERPT = 60
"""Characters on each side of what was found."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_NUMBERS = {"step": 1, "group": 2, "sample": 3, "reward": 4, "advantage": 5, "length": 6, "problem": 9}
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
    absent = -1 if place in (2, 3, 6, 9) else MISSING

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


TAIL = 4 << 20
"""Bytes at the end whose steps are known before the index is whole."""
SEARCH_ROWS = 4_096
"""Rows that are loaded at once for a search."""
MAX_TEXTS = 1 << 20
"""Characters of all prompts, and of all completions, of one reply."""
MAX_SAMPLES = 10_000
"""Of one step; the first ones."""


def rollout_steps(index: RolloutIndex, source: OpenLog | None, request: RolloutStepsRequest) -> dict[str, Any]:
    """The reply to a ``rollout_steps`` request."""
    segments = index.segments() if source else []
    if source and not index.whole:
        known = {segment.step for segment in segments}
        segments += [segment for segment in _of_tail(index, source) if segment.step not in known]
    steps: dict[int, list[Segment]] = {}
    for segment in segments:
        steps.setdefault(segment.step, []).append(segment)
    order = sorted(steps)
    low = order[0] if order and request.low is None else request.low or 0
    shown = [step for step in order if step >= low and (request.high is None or step <= request.high)][-MAX_STEPS:]
    rows = []
    for step in shown:
        parts = steps[step]
        scored = sum(part.scored for part in parts)
        reward = sum(part.reward for part in parts) / scored if scored else 0.0
        counts = (sum(part.samples for part in parts), scored, reward)
        rows.append((step, *counts, sum(part.groups for part in parts), sum(part.signal for part in parts)))
    return {
        **_common(index, source),
        "first_step": order[0] if order else None,
        "last_step": order[-1] if order else None,
        "total": len(order),
        "length": len(rows),
        "table": pack([array("d", column) for column in zip(*rows, strict=True)]) if rows else pack([]),
    }


def _of_tail(index: RolloutIndex, source: OpenLog) -> list[Segment]:
    """The segments of the file's last bytes but for the first, which may have begun before."""
    start = max(index.offset, source.size - TAIL)
    samples = Unindexed(source, index.ranges).samples(start)
    columns = list(zip(*samples, strict=True)) or [()] * len(COLUMNS)
    return segments_of(0, columns[1], columns[2], columns[4], columns[7])[0 if start == index.offset else 1 :]


def rollout_step(index: RolloutIndex, source: OpenLog | None, request: RolloutStepRequest) -> dict[str, Any]:
    """The reply to a ``rollout_step`` request: the last step with samples that is not after the one asked for, else the
    first one."""
    if source is not None:
        found = _indexed_step(index, request.step) if index.whole else _unindexed_step(index, source, request.step)
        if found is not None:
            step, before, after, samples, reasons = found
            count, samples = len(samples), samples[:MAX_SAMPLES]
            return {
                **_common(index, source),
                "step": step,
                "count": count,
                "samples": [sample_row(sample, reasons) for sample in samples],
                "groups": prompts(samples, Lines(source)),
                "previous": before,
                "next": after,
            }
    raise RemoteError("no_step", f"{request.run} has not logged a completion yet")


MOST_PROBLEMS = 5


def problem_changes(index: RolloutIndex, source: OpenLog | None, request: ProblemChangesRequest) -> dict[str, Any]:
    """The reply to a ``problem_changes`` request: each problem against the last step that sampled it before."""
    found = _indexed_step(index, request.step) if source is not None and index.whole else None
    state = {"state": "whole" if index.whole else "coarse"}
    if source is None or found is None:
        return {**state, "step": request.step, "repeated": []}
    step, _, _, samples, _ = found
    now: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample[9] >= 0 and -HUGE < sample[4] < HUGE:
            now.setdefault(sample[9], []).append(sample)
    lines = Lines(source)
    means = {problem: sum(sample[4] for sample in rows) / len(rows) for problem, rows in now.items()}
    earlier = _sampled_before(index, samples[0][0], set(now))
    changes = sorted(earlier, key=lambda problem: (-abs(means[problem] - earlier[problem].reward), problem))
    kept = [
        problem
        for problem in changes[: 2 * MOST_PROBLEMS]
        if means[problem] != earlier[problem].reward
        and _prompt(lines, now[problem][0][0]) == _prompt(lines, earlier[problem].offset)  # of a mixture: the same task
    ][:MOST_PROBLEMS]
    texts = {row["group"]: row["prompt"] for row in prompts(samples, lines)} if kept else {}
    rows = []
    for problem in kept:
        group, before = now[problem][0][2], earlier[problem]
        rows.append(
            {
                "problem": problem, "group": None if group < 0 else group, "prompt": texts.get(group, ""),
                "now": means[problem], "before": before.reward, "before_step": before.step,
            }
        )  # fmt: skip
    return {**state, "step": step, "repeated": rows}


class _Earlier(NamedTuple):
    """A problem in the last step that sampled it before."""

    step: int
    offset: int
    """Of one of its lines."""
    reward: float
    """Mean."""


def _sampled_before(index: RolloutIndex, offset: int, wanted: set[int]) -> dict[int, _Earlier]:
    """Each problem in the last step before a line that has it."""
    offsets = index.read("samples", "offset", 0, index.rows)
    end = bisect_left(offsets, offset)
    problems, steps, rewards = (index.read("samples", name, 0, end) for name in ("problem", "step", "reward"))
    rows: dict[int, list[int]] = {}
    for row in range(end - 1, -1, -1):
        if (problem := problems[row]) not in wanted:
            continue
        found = rows.setdefault(problem, [])
        if found and steps[found[0]] != steps[row]:
            wanted.discard(problem)
            if not wanted:
                break
        else:
            found.append(row)
    usable = {problem: [row for row in found if -HUGE < rewards[row] < HUGE] for problem, found in rows.items()}
    return {
        problem: _Earlier(steps[found[0]], offsets[found[0]], sum(rewards[row] for row in found) / len(found))
        for problem, found in usable.items()
        if found
    }


def _prompt(lines: Lines, offset: int) -> object:
    row = read_completion(lines.at(offset) or b"")
    return row.get("prompt") if row else None


Found = tuple[int, "int | None", "int | None", list[Sample], list[str]]


def _indexed_step(index: RolloutIndex, wanted: int) -> Found | None:
    of_segments, firsts = index.segment_column("step"), index.segment_column("first")
    steps = sorted(set(of_segments))
    if not steps:
        return None
    place = max(0, bisect_left(steps, wanted + 1) - 1)
    step = steps[place]
    samples: list[Sample] = []
    for found, first, end in zip(of_segments, firsts, [*firsts[1:], index.rows], strict=True):
        if found == step:
            samples += index.samples(first, end)
    before, after = steps[place - 1] if place else None, steps[place + 1] if place + 1 < len(steps) else None
    return step, before, after, samples, index.header["reasons"]


def _unindexed_step(index: RolloutIndex, source: OpenLog, wanted: int) -> Found | None:
    rows = Unindexed(source, index.ranges)
    found = rows.step(wanted)
    if found is None:
        return None
    step, after, samples, reasons = found
    return step, rows.step_before(step), after, samples, reasons


def samples(index: RolloutIndex, source: OpenLog | None, request: SamplesRequest) -> dict[str, Any]:
    """The reply to a ``samples`` request."""
    rows = []
    characters = min(request.characters, MAX_TEXTS // max(1, len(request.offsets)))
    for offset in request.offsets:
        try:
            if source is None or (offset and os.pread(source.descriptor, 1, offset - 1) != b"\n"):
                raise ValueError("no line begins here")
            row = full_row(offset, Lines(source).at(offset), characters)
            if characters and index.file == RolloutIndex.file and (tokens := tokens_of(index, row)):
                row |= {**tokens, "completion": pictured(str(row.get("completion") or ""))}
            rows.append(row)
        except ValueError as error:
            rows.append({"offset": offset, UNREADABLE: str(error)})
    return {"samples": rows}


def tokens_of(index: RolloutIndex, row: dict[str, Any]) -> dict[str, Any]:
    """What ``tokens.jsonl`` has of a sample; {} if its tokens were not kept, or not yet."""
    source = index.open_log(TOKENS)
    if source is None:
        return {}
    step, group, sample = row["step"], row["group"], str(row["sample"])
    with closing(source):
        rows = Unindexed(source, index.superseded(TOKENS))
        for found in islice(map(read_line, rows.lines_from(step)), MAX_TOKEN_LINES):
            of, tokens = (found.get("of"), found.get("tokens")) if found else (None, None)
            if isinstance(of, float | int) and of > step:
                break
            if found and of == step and found.get("group") == group and isinstance(tokens, dict) and sample in tokens:
                return {"tokens": str(tokens[sample])[:MAX_LINE], "tokens_step": number(found.get("step"))}
    return {}


def search(
    index: RolloutIndex, source: OpenLog | None, request: SearchRolloutsRequest, goes_on: Callable[[], bool]
) -> dict[str, Any]:
    """The reply to a ``search_rollouts`` request: the newest samples first, as many as are examined while
    ``goes_on()``."""
    condition = compiled(request.where)
    matches: list[dict[str, Any]] = []
    searched, following = 1.0, None
    if source is not None:
        found = _unindexed_rows if request.step is not None and not index.whole else _indexed_rows
        total, left, rows, reasons = found(index, source, request)
        for sample, line in rows:
            reason = sample[8]
            one = Candidate(sample, reasons[reason - 2] if reason > 1 else None, line)
            left -= 1
            if condition(one):
                excerpt = {"excerpt": one.excerpt} if one.excerpt else {}
                matches.append({**sample_row(sample, reasons), **excerpt})
            if left and (len(matches) >= request.limit or not goes_on()):
                following = sample[0]
                break
        searched = 1 - left / total if total else 1.0
    return {**_common(index, source), "matches": matches, "searched": searched, "next": following}


Rows = Iterator[tuple[Sample, Callable[[], "bytes | None"]]]
"""Samples, the last one first, and how to read the line of each."""


def _indexed_rows(
    index: RolloutIndex, source: OpenLog, request: SearchRolloutsRequest
) -> tuple[int, int, Rows, list[str]]:
    """What a search examines: how many samples in all, on this page and the next ones, these, and their reasons."""
    spans = [(0, index.rows)] if index.rows else []
    if request.step is not None:
        parts = [segment for segment in index.segments() if segment.step == request.step]
        spans = [(part.first, part.first + part.samples) for part in parts]
    end = index.rows
    if request.before is not None:
        end = bisect_left(index.read("samples", "offset", 0, index.rows), request.before)
    total = sum(last - first for first, last in spans)
    left = sum(max(0, min(last, end) - first) for first, last in spans)
    return total, left, _backwards(index, source, spans, end), index.header["reasons"]


def _unindexed_rows(
    index: RolloutIndex, source: OpenLog, request: SearchRolloutsRequest
) -> tuple[int, int, Rows, list[str]]:
    """The same for a step of a file that is not indexed to its end."""
    assert request.step is not None
    found = _unindexed_step(index, source, request.step)
    if found is None or found[0] != request.step:
        return 0, 0, iter(()), []
    rows = [row for row in found[3] if request.before is None or row[0] < request.before]
    lines = Lines(source)
    pairs = ((row, partial(lines.at, row[0], backwards=True)) for row in reversed(rows))
    return len(found[3]), len(rows), pairs, found[4]


def _backwards(index: RolloutIndex, source: OpenLog, spans: list[tuple[int, int]], end: int) -> Rows:
    """Samples before a row, the last one first, and how to read the line of each."""
    lines = Lines(source)
    for first, last in reversed(spans):
        last = min(last, end)
        while last > first:
            start = max(first, last - SEARCH_ROWS)
            for sample in reversed(index.samples(start, last)):
                yield sample, partial(lines.at, sample[0], backwards=True)
            last = start


def _common(index: RolloutIndex, source: OpenLog | None) -> dict[str, Any]:
    return {
        "state": "whole" if index.whole else "coarse",
        "progress": 1.0 if index.whole or not index.size else index.offset / index.size,
        "rows": index.rows if source else 0,
        "skipped": index.header["skipped"],
        "offset": index.offset,
    }
