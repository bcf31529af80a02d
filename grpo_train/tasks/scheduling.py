"""A meeting time that suits everybody, "60m 09:00-13:00 A09:00-11:00 B12:00-13:00:" → 11:00-12:00.

Generated and seeded. Every problem has an answer; any time that keeps all constraints is correct, to the minute. The
verdict also counts the constraints: ``scheduling/format`` (HH:MM-HH:MM), ``scheduling/order`` (the start precedes the
end) and ``scheduling/constraints`` (share kept of: format, order, length, window, and each person being free).
``score`` is 1 for a correct answer, else half of that share.

``task.level`` L: 1 + (L + 2) // 3 people; a window of 3 + L slots of 60 minutes (levels 1 to 3), 30 (4 to 6) or 15; a
meeting of up to 1 + L // 3 slots. At most two starts on the slots fit.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from itertools import product

from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked

NAMES = ("Anna", "Ben", "Cleo", "Dan", "Eva")
FITTING_STARTS = 2
"""Maximum number of starts on the slots that fit, so that guessing likely times does not pay."""

Span = tuple[int, int]
"""Start and end in minutes since midnight, end excluded."""


@dataclass(frozen=True)
class Day:
    """The constraints on a meeting."""

    window: Span
    length: int
    """Minutes of the meeting."""
    slot: int
    """Minutes between times of the grid."""
    busy: tuple[tuple[Span, ...], ...]
    """Per person, sorted and disjoint."""


def kept(day: Day, answer: str) -> dict[str, bool]:
    """Every constraint and whether the answer keeps it; an answer in another format keeps none. Never raises."""
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
    """The two times of "HH:MM-HH:MM"; None for another format."""
    found = re.fullmatch("([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])", text)
    if not found:
        return None
    hour, minute, end_hour, end_minute = map(int, found.groups())
    return 60 * hour + minute, 60 * end_hour + end_minute


def starts(day: Day) -> list[int]:
    """The starts on the grid that fit."""
    return [start for start in _grid(day) if not any(_clash(spans, start, start + day.length) for spans in day.busy)]


def span_text(span: Span) -> str:
    return "-".join(map(clock, span))


def clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


class SchedulingTask(GeneratedTask[Day]):
    """Days of several people, drawn around one free time."""

    def draw(self, rng: random.Random, turn: int) -> Day:
        while True:
            day = self._day(rng)
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

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """The starts in order, each with a busy person, up to the first that fits. Bad habit: the last person is
        ignored. Accident: the meeting starts a slot late."""
        habit, accident = mistakes(rng, careless)
        day: Day = problem.data
        considered = day.busy[:-1] if habit else day.busy
        tried = []
        for start in _grid(day):
            end = start + day.length
            busy = [name[0] for name, spans in zip(NAMES, considered, strict=False) if _clash(spans, start, end)]
            tried.append(clock(start) + (busy[0] if busy else ""))
            if not busy:
                break
        if accident:
            start += day.slot
        return worked(" ".join(tried), span_text((start, start + day.length)))

    def _day(self, rng: random.Random) -> Day:
        """A day with at least one time that fits."""
        level = self.config.level
        slot = 60 if level <= 3 else 30 if level <= 6 else 15
        slots, people = 3 + level, 1 + (level + 2) // 3
        length = rng.randint(1, 1 + level // 3)
        free = rng.randint(0, slots - length)
        # Any other slot is taken by two people, by one, or sometimes by nobody.
        takers = [*product(range(people), repeat=2), *[()] * (people // 2)]
        busy: list[set[int]] = [set() for _ in range(people)]
        for index in (*range(free), *range(free + length, slots)):
            for person in rng.choice(takers):
                busy[person].add(index)
        morning = 60 * rng.randint(6, 12)
        spans = tuple(tuple((morning + slot * a, morning + slot * b) for a, b in _runs(person)) for person in busy)
        return Day((morning, morning + slot * slots), length * slot, slot, spans)


def _grid(day: Day) -> range:
    """Every start on the slots that leaves room for the meeting."""
    return range(day.window[0], day.window[1] - day.length + 1, day.slot)


def _clash(spans: tuple[Span, ...], start: int, end: int) -> bool:
    return any(start < until and since < end for since, until in spans)


def _runs(slots: set[int]) -> list[Span]:
    """Runs of consecutive numbers as half-open spans: {1, 2, 4} -> (1, 3), (4, 5)."""
    firsts = sorted(slot for slot in slots if slot - 1 not in slots)
    ends = sorted(slot + 1 for slot in slots if slot + 1 not in slots)
    return list(zip(firsts, ends, strict=True))


TASK = generated_kind("scheduling", "Meeting time that suits everyone", SchedulingTask, max_train=8192)
