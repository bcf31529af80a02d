"""scheduling: a time for a meeting that suits everybody, "60m 09:00-13:00 A09:00-11:00 B12:00-13:00:" → 11:00-12:00.

Generated and seeded. Every problem has an answer; any time that keeps all constraints is right, on the minute. The
verdict also counts the constraints one by one: ``scheduling/format`` (HH:MM-HH:MM), ``scheduling/order`` (the start is
before the end) and ``scheduling/constraints`` (the share kept of: format, order, length, the day's window, nobody busy:
one for each person). ``score`` is 1 for a right answer, else half of that share.

``task.level`` L: 1 + (L + 2) // 3 people; a window of 3 + L slots of 60 minutes (levels 1 to 3), 30 (4 to 6) or 15; a
meeting of up to 1 + L // 3 slots. At most two starts on the slots fit.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from itertools import product

from grpo_train.config import schema
from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GENERATED_OPTIONS, GeneratedTask, Puzzle, slips, worked

LABEL = "scheduling"
OPTIONS = GENERATED_OPTIONS
MAX_TRAIN = 8192
NAMES = ("Anna", "Ben", "Cleo", "Dan", "Eva")
FITTING_STARTS = 2
"""So many starts on the slots may fit: a time that is merely likely must not pay."""

Span = tuple[int, int]
"""Start and end in minutes since midnight, the end not included."""


@dataclass(frozen=True)
class Day:
    """What a meeting has to fit into."""

    window: Span
    length: int
    """Of the meeting, in minutes."""
    slot: int
    """The grid of all times, in minutes."""
    busy: tuple[tuple[Span, ...], ...]
    """For each person, in order and apart."""


def load(config: schema.Task) -> SchedulingTask:
    """The task at ``config.level``."""
    return SchedulingTask(name="scheduling", label=LABEL, config=config, max_train=MAX_TRAIN)


def kept(day: Day, answer: str) -> dict[str, bool]:
    """Every constraint and whether the answer keeps it; without the format it keeps none. Never raises."""
    people = [f"free_{name}" for name, _ in zip(NAMES, day.busy, strict=False)]
    span = parse_span(answer)
    if span is None:
        return dict.fromkeys(["format", "order", "length", "window", *people], False)
    start, end = span
    order = start < end
    free = [order and not _clash(spans, start, end) for spans in day.busy]
    return {
        "format": True,
        "order": order,
        "length": end - start == day.length,
        "window": order and day.window[0] <= start and end <= day.window[1],
        **dict(zip(people, free, strict=True)),
    }


def parse_span(text: str) -> Span | None:
    """The two times of "HH:MM-HH:MM"; None where it is not that."""
    found = re.fullmatch("([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])", text)
    if not found:
        return None
    hour, minute, end_hour, end_minute = map(int, found.groups())
    return 60 * hour + minute, 60 * end_hour + end_minute


def starts(day: Day) -> list[int]:
    """All starts on the grid that fit."""
    return [start for start in _grid(day) if not any(_clash(spans, start, start + day.length) for spans in day.busy)]


def span_text(span: Span) -> str:
    return "-".join(map(clock, span))


def clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


class SchedulingTask(GeneratedTask[Day]):
    """Days of several people, drawn around one free time."""

    def draw(self, draw: random.Random, turn: int) -> Day:
        while True:
            day = self._day(draw)
            if len(starts(day)) <= FITTING_STARTS and all(day.busy):
                return day

    def puzzle(self, key: Day) -> Puzzle:
        spans = [[span_text(span) for span in person] for person in key.busy]
        people = list(zip(NAMES, spans, strict=False))
        short = " ".join(f"{name[0]}{','.join(times)}" for name, times in people)
        long = " ".join(f"{name} is busy {' and '.join(times)}." for name, times in people)
        first = starts(key)[0]
        return Puzzle(
            f"{key.length}m {span_text(key.window)} {short}:",
            f"Find a time for a meeting of {key.length} minutes between {clock(key.window[0])} and "
            f"{clock(key.window[1])} when everybody is free. {long} Answer with the start and the end alone, as "
            "HH:MM-HH:MM.",
            span_text((first, first + key.length)),
        )

    def judge(self, attempt: Attempt) -> Verdict:
        day: Day = attempt.problem.data
        verdict = judge_text(attempt, lambda answer: all(kept(day, answer).values()))
        counted = kept(day, verdict.answer if verdict.formatted and verdict.answer else "")
        share = sum(counted.values()) / len(counted)
        return replace(
            verdict,
            score=1.0 if verdict.correct else share / 2,
            metrics={
                **verdict.metrics,
                "scheduling/format": float(counted["format"]),
                "scheduling/order": float(counted["order"]),
                "scheduling/constraints": share,
            },
            facts={"constraints": counted},
        )

    def example(self, problem: Problem, draw: random.Random, careless: bool) -> str:
        """The starts in turn, each with who is busy, up to the first that suits. Bad habit: the last person is not
        asked. Accident: the meeting starts a slot late."""
        habit, accident = slips(draw, careless)
        day: Day = problem.data
        asked = day.busy[:-1] if habit else day.busy
        tried = []
        for start in _grid(day):
            end = start + day.length
            busy = [name[0] for name, spans in zip(NAMES, asked, strict=False) if _clash(spans, start, end)]
            tried.append(clock(start) + (busy[0] if busy else ""))
            if not busy:
                break
        if accident:
            start += day.slot
        return worked(" ".join(tried), span_text((start, start + day.length)))

    def _day(self, draw: random.Random) -> Day:
        """A day with at least one time that fits."""
        level = self.config.level
        slot = 60 if level <= 3 else 30 if level <= 6 else 15
        slots, people = 3 + level, 1 + (level + 2) // 3
        length = draw.randint(1, 1 + level // 3)
        free = draw.randint(0, slots - length)
        # A slot that need not be free is taken by two people, by one, or now and then by nobody.
        takers = [*product(range(people), repeat=2), *[()] * (people // 2)]
        busy: list[set[int]] = [set() for _ in range(people)]
        for place in (*range(free), *range(free + length, slots)):
            for person in draw.choice(takers):
                busy[person].add(place)
        morning = 60 * draw.randint(6, 12)
        spans = tuple(tuple((morning + slot * a, morning + slot * b) for a, b in _runs(person)) for person in busy)
        return Day((morning, morning + slot * slots), length * slot, slot, spans)


def _grid(day: Day) -> range:
    """Every start on the slots that leaves room for the meeting."""
    return range(day.window[0], day.window[1] - day.length + 1, day.slot)


def _clash(spans: tuple[Span, ...], start: int, end: int) -> bool:
    return any(start < until and since < end for since, until in spans)


def _runs(places: set[int]) -> list[Span]:
    """Runs of neighbouring numbers, each with its end not included: {1, 2, 4} -> (1, 3), (4, 5)."""
    firsts = sorted(place for place in places if place - 1 not in places)
    ends = sorted(place + 1 for place in places if place + 1 not in places)
    return list(zip(firsts, ends, strict=True))
