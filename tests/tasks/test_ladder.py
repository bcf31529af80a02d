"""The generated tasks of the ladder: splits, answers computed a second time, judges that never raise."""

from __future__ import annotations

import importlib
import random
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.config.schema import Config, TaskConfig
from grpo_train.rewards import load_rewards
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict, load_task
from grpo_train.tasks.base_conversion import in_base
from grpo_train.tasks.pattern import continuations
from grpo_train.tasks.scheduling import NAMES, Day, SchedulingTask, parse_span, span_text
from grpo_train.tasks.shared.generated import HELD_OUT, MAX_TRAIN, GeneratedTask, distinct

FIRST = {
    "echo": ("ejn:", "yvy:"),
    "pattern": ("30,37,44,51,58,", "54,63,72,81,90,"),
    "counting": ("times hour flowers hours son #", "all answer time fan #"),
    "arithmetic": ("42+65=", "23-16="),
    "base_conversion": ("101110010 2>10=", "477 10>2="),
    "comparison": ("81>73?", "92>46?"),
    "word_problem": ("Ben buys 3 apples, then 11 more.", "Zoe buys 13 eggs, then 6 more."),
    "scheduling": (
        "60m 07:00-11:00 A07:00-08:00,09:00-10:00 B07:00-09:00:",
        "60m 12:00-16:00 A14:00-16:00 B12:00-13:00,15:00-16:00:",
    ),
}
"""First prompts of train and test at level 1. They must not change between versions of Python or of this code: old
checkpoints were trained on one split and are evaluated on the other."""
RUNGS = ("echo", "pattern", "counting", "arithmetic", "base_conversion", "comparison", "word_problem", "scheduling")
LEVELS = (1, 4, 10)


FEW = 4 * HELD_OUT
"""Training problems: the fewest that leave the test split and the first problems of the training split as they are."""


@cache
def rung(name: str, most: int = FEW, **settings: Any) -> GeneratedTask[Any]:
    """A task, cached because drawing its problems takes a while."""
    task = load_task(TaskConfig(name=name, **settings))
    assert isinstance(task, GeneratedTask)
    return replace(task, max_train=min(task.max_train, most))


def problems(task: GeneratedTask[Any], most: int = 1500) -> list[Problem]:
    """The first problems of both splits."""
    return [task.problem(split, index) for split in ("train", "test") for index in range(min(most, task.size(split)))]


def answered(task: GeneratedTask[Any], problem: Problem, answer: str) -> Verdict:
    return task.judge(Attempt(problem, f"<think></think> <answer>{answer}</answer>"))


@pytest.mark.parametrize(("level", "most"), [(1, MAX_TRAIN), (4, FEW), (10, FEW)])
@pytest.mark.parametrize("name", RUNGS)
def test_splits_are_disjoint_and_reproducible(name: str, level: int, most: int) -> None:
    """All problems of the first level; tests/soak draws those of the others."""
    task = rung(name, most, level=level)
    train, test = ([task.problem(split, i) for i in range(task.size(split))] for split in ("train", "test"))
    assert 100 <= len(test) <= HELD_OUT
    assert 4 * len(test) <= len(train) <= MAX_TRAIN
    for texts in ([p.prompt for p in train + test], [p.question for p in train + test]):
        assert len(set(texts)) == len(train) + len(test)
    again = rung(name, level=level, limit=7)  # a new object, which draws again
    assert (again.size("train"), again.size("test")) == (7, len(test))
    assert again.problem("train", 6) == train[6]
    assert again.problem("test", len(test) - 1) == test[-1]


def test_first_problems_never_change() -> None:
    found = {name: tuple(rung(name).problem(split, 0).prompt for split in ("train", "test")) for name in RUNGS}
    assert found == FIRST


@pytest.mark.parametrize("name", [name for name in RUNGS if name != "base_conversion"])  # high bases need few digits
def test_prompts_get_longer_with_the_level(name: str) -> None:
    some = [[problem.prompt for problem in problems(rung(name, level=level), 300)] for level in LEVELS]
    assert sum(map(len, some[0])) < sum(map(len, some[1])) < sum(map(len, some[2]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", RUNGS)
def test_only_careless_examples_have_mistakes(name: str, level: int) -> None:
    options = {"operators": "+-*"} if name == "arithmetic" else {}
    task, rng = rung(name, level=level, **options), random.Random(0)
    some = problems(task, 400)
    careful = [task.judge(Attempt(problem, task.example(problem, rng, False))) for problem in some]
    careless = [task.judge(Attempt(problem, task.example(problem, rng, True))) for problem in some]
    assert {verdict.reason for verdict in careful} == {"ok"}
    assert all(verdict.correct and verdict.flexible for verdict in careful)
    assert {verdict.reason for verdict in careless} == {"ok", "wrong"}
    assert all(verdict.formatted for verdict in careless)
    assert 0.15 < sum(verdict.correct for verdict in careless) / len(some) < 0.75


@pytest.mark.parametrize("name", ["echo", "scheduling"])
def test_prompts_are_compact_by_default(name: str) -> None:
    plain, compact, r1, chat, own = (
        rung(name, template=template).problem("test", 3)
        for template in (None, "compact", "r1", "chat", "Q: {question} A:")
    )
    assert plain == compact
    assert r1.prompt.endswith(f"\nUser: {plain.question}\nAssistant: <think>")
    assert chat.messages[-1][0] == "user"
    assert chat.messages[-1][1].startswith(plain.question)
    assert own.prompt == f"Q: {plain.question} A:"
    assert {problem.answer for problem in (plain, r1, chat, own)} == {plain.answer}
    with pytest.raises(TaskError, match=r"task\.template: 'r2'"):
        rung(name, template="r2")


@pytest.mark.parametrize("name", RUNGS)
def test_only_the_gold_answer_is_right(name: str) -> None:
    task = rung(name)
    problem = task.problem("test", 0)
    gold = f"</think><answer>{problem.answer}</answer>"
    assert task.judge(Attempt(problem, gold)).reason == "ok"
    assert not task.judge(Attempt(problem, gold, truncated=True)).correct
    for completion, reason in {
        "": "no_close_think",
        f"<answer>{problem.answer}</answer>": "no_close_think",
        f"</think>{problem.answer}": "no_answer_tag",
        f"{gold}{gold}": "multiple_answers",
        f"</think>so {gold[8:]}": "text_before_answer",
        f"{gold} I think": "trailing_text",
    }.items():
        verdict = task.judge(Attempt(problem, completion))
        assert (verdict.correct, verdict.formatted, verdict.reason) == (False, False, reason)
    for answer in ("", f"{problem.answer} or 7", f"not {problem.answer}", f"{problem.answer}{problem.answer}x"):
        verdict = answered(task, problem, answer)
        assert not verdict.correct
        assert verdict.formatted


@cache
def one_of_each() -> list[tuple[GeneratedTask[Any], Problem]]:
    return [(rung(name), rung(name).problem("test", 1)) for name in RUNGS]


TAGGED = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "12", "10:00-11:00", "yes", "\n", "é"])


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(), st.lists(st.one_of(TAGGED, st.text(max_size=5))).map("".join)), st.booleans())
def test_judges_never_raise(text: str, truncated: bool) -> None:
    for task, problem in one_of_each():
        for completion in (text, f"</think><answer>{text}</answer>"):
            verdict = task.judge(Attempt(problem, completion, truncated))
            assert verdict.formatted or not verdict.correct
            assert verdict == task.judge(Attempt(problem, completion, truncated))


@pytest.mark.parametrize("name", RUNGS)
def test_huge_answers_are_judged_quickly(name: str) -> None:
    task = rung(name)
    for text in ("9" * 1_000_000, "9**9**9**9", "(" * 100_000, "1" * 5000 + ":00-11:00"):
        assert not answered(task, task.problem("test", 0), text).correct


def test_distinct_stops_when_the_space_is_exhausted() -> None:
    assert sorted(distinct(lambda rng, turn: rng.randrange(50), random.Random(0), 1000)) == list(range(50))
    assert len(distinct(lambda rng, turn: rng.randrange(50), random.Random(0), 10)) == 10


# ---------------------------------------------------------------------------------------------- each rung's own answers


def test_echo_is_exact() -> None:
    task = rung("echo", level=3)
    problem = task.problem("test", 0)
    assert problem.prompt == f"{problem.answer}:"
    assert re.fullmatch("[a-z]{5}", problem.answer)
    for near in (problem.answer.upper(), problem.answer[1:], f'"{problem.answer}"', " ".join(problem.answer)):
        assert not answered(task, problem, near).correct


@pytest.mark.parametrize(
    ("terms", "following"),
    [
        ((2, 5, 8), {11}),
        ((9, 5, 1), {-3}),
        ((4, 7, 4, 7, 4, 7), {4}),
        ((1, 5, 2, 1, 5, 2), {1}),
        ((3, 6, 12), {24}),
        ((1, 3, 4, 6, 7, 9), {10}),
        ((1, 2, 4, 7), {11}),
        ((2, 3, 5, 8), {13, 12}),  # a sum of the previous two, or steps of 1, 2, 3: never asked
        ((1, 20, 3, 18, 5, 16), {7}),
        ((1, 2), set()),
        ((1, 2, 7, 3), set()),
    ],
)
def test_continuations_of_a_pattern(terms: tuple[int, ...], following: set[int]) -> None:
    assert continuations(terms) == following


@pytest.mark.parametrize("level", range(1, 11))
def test_patterns_have_one_answer(level: int) -> None:
    for problem in problems(rung("pattern", level=level), 400):
        assert continuations(tuple(map(int, problem.prompt[:-1].split(",")))) == {int(problem.answer)}


@pytest.mark.parametrize("level", LEVELS)
def test_counting_answers_and_balance(level: int) -> None:
    some = problems(rung("counting", level=level))
    assert all(int(problem.answer) == len(problem.prompt.removesuffix(" #").split(" ")) for problem in some)
    counts = Counter(problem.answer for problem in some)
    assert set(counts) == {str(count) for count in range(3, 6 + 2 * level)}
    assert max(counts.values()) < 1.3 * len(some) / len(counts)


@pytest.mark.parametrize("operators", ["+-", "*", "+-*", "-+"])
@pytest.mark.parametrize("digits", [1, 2, 6])
@pytest.mark.parametrize("level", [1, 3])
def test_arithmetic_agrees_with_python(operators: str, digits: int, level: int) -> None:
    task = rung("arithmetic", operators=operators, digits=digits, level=level)
    for problem in problems(task, 300):
        assert re.fullmatch(rf"[0-9]{{{digits}}}([-+*][0-9]{{{digits}}}){{{level}}}=", problem.prompt)
        assert int(problem.answer) == eval(problem.prompt[:-1])
    seen = set("".join(problem.prompt for problem in problems(task, 300))) & set("+-*")
    assert seen == set(operators)
    assert task.size("test") >= (15 if digits == 1 else HELD_OUT)


@pytest.mark.parametrize("operators", ["", "/", "+ -", "plus"])
def test_unknown_operator_is_an_error(operators: str) -> None:
    with pytest.raises(TaskError, match=r"task\.operators"):
        rung("arithmetic", operators=operators)


@pytest.mark.parametrize("level", range(1, 11))
def test_base_conversion_agrees_with_python(level: int) -> None:
    task = rung("base_conversion", level=level)
    for problem in problems(task, 300):
        digits, source, target = re.fullmatch("([0-9a-f]+) ([0-9]+)>([0-9]+)=", problem.prompt).groups()  # type: ignore[union-attr]
        assert int(digits, int(source)) == int(problem.answer, int(target)) < 512 * 2**level
        assert source != target
        assert answered(task, problem, f"00{problem.answer.upper()}").correct
        assert not answered(task, problem, f"{problem.answer}0").correct
        assert not answered(task, problem, f"0x{problem.answer}").correct
    assert in_base(0, 2) == "0"


@pytest.mark.parametrize("digits", [1, 2, 4])
@pytest.mark.parametrize("level", [1, 2, 3, 6, 10])
def test_comparisons_agree_with_python_and_balance(level: int, digits: int) -> None:
    task = rung("comparison", level=level, digits=digits)
    for split in ("train", "test"):
        some = [task.problem(split, index) for index in range(task.size(split))]
        counts = Counter(problem.answer for problem in some)
        assert counts["yes"] == counts["no"] > 0
        # The sign alone does not reveal the answer.
        signs = Counter((problem.prompt.translate(_NO_DIGITS), problem.answer) for problem in some)
        if level <= 2 and len(some) > 500:
            assert all(
                count < 0.55 * sum(signs[shape, a] for a in ("yes", "no")) for (shape, _), count in signs.items()
            )
        # Neither do "and" and "or".
        for joint in "&|" if level > 2 else "":
            joined = [problem.answer for problem in some if problem.data[1].endswith(joint)]
            assert 0.4 < joined.count("yes") / len(joined) < 0.6
    for problem in problems(task, 300):
        source = problem.prompt[:-1].replace("&", " and ").replace("|", " or ")
        source = re.sub("!([0-9]+[<>][0-9]+)", r"(not \1)", source)
        assert problem.answer == ("yes" if eval(source) else "no")
        assert answered(task, problem, f"{problem.answer.capitalize()}.").correct
        assert not answered(task, problem, "yes" if problem.answer == "no" else "no").correct
        assert not answered(task, problem, "yes no").correct


_NO_DIGITS = str.maketrans("", "", "0123456789")


@pytest.mark.parametrize("level", range(1, 11))
def test_word_problems_have_integer_answers(level: int) -> None:
    task = rung("word_problem", level=level)
    operators = set()
    for problem in problems(task, 300):
        assert problem.question.startswith(problem.prompt)
        numbers = [int(digits) for digits in re.findall("[0-9]+", problem.prompt)]
        assert len(numbers) == (3 if level >= 5 else 2)
        a, b = numbers[-2:]
        results = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}
        fitting = {operator for operator, result in results.items() if result == int(problem.answer)}
        assert fitting
        assert int(problem.answer) >= 1
        operators |= fitting
    assert operators >= set("+-*/"[:level])


# ----------------------------------------------------------------------------------------------------------- scheduling


@cache
def busy_minutes(day: Day) -> set[int]:
    return {minute for person in day.busy for since, until in person for minute in range(since, until)}


def fits(day: Day, start: int, end: int) -> bool:
    """Whether a meeting fits, computed minute by minute, unlike in the task."""
    inside = day.window[0] <= start < end <= day.window[1]
    return inside and end - start == day.length and busy_minutes(day).isdisjoint(range(start, end))


@pytest.mark.parametrize("level", range(1, 11))
def test_right_meetings_are_those_that_fit(level: int) -> None:
    task = rung("scheduling", level=level)
    for problem in problems(task, 60):
        day = problem.data
        assert 1 <= len(day.busy) <= len(NAMES)
        assert all(day.busy)
        right = [start for start in range(0, 1440 - day.length, 5) if fits(day, start, start + day.length)]
        assert right
        assert parse_span(problem.answer) == (right[0], right[0] + day.length)
        candidates = range(day.window[0] - day.length, day.window[1] + 1, 5)
        judged = [s for s in candidates if answered(task, problem, span_text((s, s + day.length))).correct]
        assert judged == right
        times = re.findall("[0-9]{2}:[0-9]{2}", problem.prompt)
        assert len(times) == 2 + 2 * sum(map(len, day.busy))


def test_constraints_are_counted() -> None:
    task = rung("scheduling")
    day = Day((540, 780), 60, 60, (((540, 600), (660, 720)), ((720, 780),)))
    puzzle = task.puzzle(day)
    assert puzzle.compact == "60m 09:00-13:00 A09:00-10:00,11:00-12:00 B12:00-13:00:"
    assert puzzle.answer == "10:00-11:00"
    problem = Problem(0, puzzle.compact, puzzle.answer, puzzle.question, data=day)
    expected = {
        "10:00-11:00": set(),
        "10:00-10:30": {"length"},
        "10:30-11:30": {"free_Anna"},
        "12:00-13:00": {"free_Ben"},
        "11:30-12:30": {"free_Anna", "free_Ben"},
        "08:00-09:00": {"window"},
        "12:30-13:30": {"window", "free_Ben"},
        "09:00-13:00": {"length", "free_Anna", "free_Ben"},
        "11:00-10:00": {"order", "length", "window", "free_Anna", "free_Ben"},
        "10-11": {"format", "order", "length", "window", "free_Anna", "free_Ben"},
        "24:00-25:00": {"format", "order", "length", "window", "free_Anna", "free_Ben"},
        "10:00-11:00 or later": {"format", "order", "length", "window", "free_Anna", "free_Ben"},
    }
    for answer, broken in expected.items():
        verdict = answered(task, problem, answer)
        assert {name for name, kept in verdict.facts["constraints"].items() if not kept} == broken
        share = 1 - len(broken) / 6
        assert verdict.correct is not bool(broken)
        assert verdict.score == pytest.approx(share / 2 if broken else 1.0)
        assert verdict.metrics["scheduling/constraints"] == pytest.approx(share)
        assert verdict.metrics["scheduling/format"] == float("format" not in broken)
        assert verdict.metrics["scheduling/order"] == float("order" not in broken)
    for cut in (Attempt(problem, "</think><answer>10:00-11:00</answer>", truncated=True), Attempt(problem, "10:00-")):
        verdict = task.judge(cut)
        assert (verdict.correct, verdict.score, verdict.metrics["scheduling/constraints"]) == (False, 0.0, 0.0)


def test_scheduling_score_can_be_a_reward() -> None:
    config = Config(task=TaskConfig(name="scheduling", rewards=["accuracy", "score"]))
    task = rung("scheduling")
    problem = task.problem("test", 0)
    rewards = load_rewards(task, config)
    attempt = Attempt(problem, "</think><answer>00:00-00:01</answer>")
    given_rewards = rewards(attempt, task.judge(attempt))
    assert given_rewards["accuracy"] == 0.0
    assert 0 < (given_rewards["score"] or 0) < 0.5


@pytest.mark.parametrize("level", LEVELS)
def test_constant_meetings_are_rarely_right(level: int) -> None:
    """Neither a constant time nor the first or last time of the window."""
    task = rung("scheduling", level=level)
    assert isinstance(task, SchedulingTask)
    days = [problem.data for problem in problems(task, 500)]
    constant = Counter(start for day in days for start in range(0, 1440, 15) if fits(day, start, start + day.length))
    first = sum(fits(day, day.window[0], day.window[0] + day.length) for day in days)
    last = sum(fits(day, day.window[1] - day.length, day.window[1]) for day in days)
    assert max(*constant.values(), first, last) < 0.45 * len(days)


def test_generated_tasks_do_not_import_torch() -> None:
    for name in RUNGS:
        module = importlib.import_module(f"grpo_train.tasks.{name}")
        assert not {"torch", "transformers"} & set(vars(module))
