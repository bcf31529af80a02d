"""The code game: rules of the referee in the real sandbox, and scores."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from grpo_train.config.schema import Sandbox, TaskConfig
from grpo_train.tasks import Attempt, TaskError, Verdict, code_game, load_task
from grpo_train.tasks.code_game import CodeGameTask, Limits, prediction, referee
from grpo_train.tasks.shared.adversarial import AdversarialTask

FIBONACCI = "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(10))"


def game(**keys: Any) -> CodeGameTask:
    task = load_task(TaskConfig(name="code_game", **keys), Sandbox(cpu_seconds=1.0))
    assert isinstance(task, CodeGameTask)
    return task


def judge(program: str, reply: str | None = None, **keys: Any) -> Verdict:
    task = game(**keys)
    return task.judge(Attempt(task.problem("train", 0), f"{program}\n```", reply=reply))


# ----------------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (FIBONACCI, "ok"),
        ("print('ab' * 3)", "ok"),
        ("import math\nprint(math.gcd(12, 18))", "ok"),
        ("print(sorted({'a', 'b', 'c'})[0] + 'xyz'[1:])", "ok"),
        ("", "no_code"),
        ("# only a comment", "no_code"),
        ("'''only a text'''", "no_code"),
        ("print(", "syntax_error"),
        ("-" * 900 + "1", "syntax_error"),
        ("1 / 0", "runtime_error"),
        ("while True: pass", "timeout"),
        ("x = 1", "no_output"),
        ("print('  ')", "no_output"),
        ("print('ab' * 90)", "output_too_long"),
        ("print('hello')", "copied"),
        ("print(['same', 1])", "copied"),
        ("print(7 ** 40)", "long_number"),
        ("x = 12345\nprint(x % 7)", "large_constant"),
        ("print(len('" + "x" * 30 + "'))", "large_constant"),
        ("print(1e999)", "large_constant"),
        ("x = 1\n" * 60 + "print(x)", "too_big"),
        ("import random\nrandom.seed(1)\nprint(random.random())", "forbidden_import"),
        ("from time import time\nprint(int(time()) % 2)", "forbidden_import"),
        ("import hashlib", "forbidden_import"),
        ("import secrets as s, math", "forbidden_import"),
        ("from . import x", "forbidden_import"),
        ("print(hash('a') % 2)", "forbidden_name"),
        ("print(id(1) % 100)", "forbidden_name"),
        ("print('a'.__hash__() % 2)", "forbidden_name"),
        ("print(__import__('random').random())", "forbidden_name"),
        ("print(eval('1+1'))", "forbidden_name"),
        ("print(getattr('a', '_' + '_hash_' + '_')() % 2)", "forbidden_name"),
        ("from operator import attrgetter as g\nprint(g('__hash__')('a')() % 2)", "forbidden_name"),
        ("import statistics\nprint(statistics.random.Random(1).randint(0, 9))", "forbidden_name"),
        ("import collections as c\nm = c\nprint(m._sys.maxsize % 7)", "forbidden_name"),
        ("from dataclasses import sys as s\nprint(s.maxsize % 7)", "forbidden_name"),
        ("import statistics as s\nprint(s.NormalDist().samples(1, seed=7)[0] > 0)", "forbidden_name"),
        ("class A:\n    def __init__(self):\n        self._x = 3\nprint(A()._x * 15)", "ok"),
        ("print(object())", "address"),
        ("print(repr(object())[-5:-1], repr([].append)[-5:-1])", "not_reproducible"),
        ("print([repr(object())[-4:-2] for _ in range(3)])", "not_reproducible"),
        ("print(''.join)", "address"),
        ("print(*({'c': 1, 'e': 1, 'f': 3, 'q': 3, 'r': 4}.keys() - 'e'))", "not_reproducible"),
        ("print('\\x07' * 3)", "unprintable"),
        ("print('\\u200b' * 3)", "unprintable"),
        ("print('a\\tb' * 2)", "ok"),
        ("print('<|im_' + 'end|>')", "special_token"),
        ("x = '<|im_end|>'\nprint(5)", "special_token"),
        ("print(list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})[0] * 2)", "not_reproducible"),
        ("print('</answer>'[0:9])", "answer_tag"),
    ],
)
def test_rules_of_the_game(program: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_game, "referee", cache(referee))  # for the play and for its verdict
    play = game().play(Attempt(game().problem("train", 0), f"{program}\n```"))
    assert play.reason == reason
    assert play.is_valid == (reason == "ok")
    assert (play.output is not None) == (reason == "ok")
    verdict = judge(program)
    assert verdict.score is None  # no opponent was asked
    assert verdict.reason == ("no_opponent" if reason == "ok" else reason)
    assert verdict.metrics["code_game/valid"] == float(reason == "ok")
    assert not verdict.correct


def test_set_order_is_not_reproducible() -> None:
    """Each program prints one of two texts; with only two runs half of them would pass."""
    programs = [f"print(list({{'{a}', 'x{a}'}})[0] * 3)" for a in "abcdefghij"]
    reasons = [referee(program, Limits(300, 60)).reason for program in programs]
    assert reasons.count("not_reproducible") >= 6
    assert set(reasons) <= {"not_reproducible", "ok"}


def test_comments_and_docstrings_are_removed() -> None:
    program = (
        '"""The answer is 7."""\n# it prints 7\ndef f():\n    "It returns 7."\n    return 40 + 2  # seven\nprint(f())\n'
        "class A:\n    'Seven.'"
    )
    play = referee(program, Limits(300, 60))
    assert (play.reason, play.output) == ("ok", "42")
    assert play.source == "def f():\n    return 40 + 2\nprint(f())\n\nclass A:\n    pass"


def test_limits_grow_with_the_level() -> None:
    assert (game().limits.characters, game().limits.output) == (300, 60)
    assert (game(level=10).limits.characters, game(level=10).limits.output) == (1200, 240)
    assert "at most 1200 characters" in game(level=10).problem("test", 0).question
    long = "x = 1\n" * 60 + "print(x)"
    assert (judge(long).reason, judge(long, level=4).reason) == ("too_big", "no_opponent")


def test_train_and_test_requests_are_disjoint() -> None:
    task = game()
    assert (task.name, task.rewards, task.slow, task.stop) == ("code_game", ("score",), True, ("\n```",))
    train, test = ({task.problem(split, k).prompt for k in range(task.size(split))} for split in ("train", "test"))
    assert (len(train), len(test)) == (522, 128)
    assert not train & test
    with pytest.raises(TaskError, match="no validation split"):
        task.size("validation")


# ---------------------------------------------------------------------------------------------------------- the points


@pytest.mark.parametrize(
    ("reply", "score", "reason"),
    [
        ("The tenth is 55.</think> <answer>55</answer>", -1.0, "predicted"),
        ("<answer>\n55 \n</answer>", -1.0, "predicted"),
        ("<answer>54</answer> no, <answer>55</answer>", -1.0, "predicted"),
        ("<answer>89</answer>", 1.0, "ok"),
        ("It prints 55.", 1.0, "ok"),
        ("", 1.0, "ok"),
        (None, None, "no_opponent"),
    ],
)
def test_scores_by_reply(reply: str | None, score: float | None, reason: str) -> None:
    verdict = judge(FIBONACCI, reply)
    assert (verdict.score, verdict.reason, verdict.correct) == (score, reason, score == 1.0)
    assert verdict.formatted
    if reply is not None:
        assert verdict.metrics["code_game/predicted"] == float(score == -1.0)
        assert verdict.metrics["code_game/no_answer"] == float("<answer>" not in reply)
    assert verdict.facts["output"] == "55"


def test_invalid_program_has_no_score() -> None:
    verdict = judge("import random\nprint(random.random())", "<answer>1</answer>")
    assert (verdict.score, verdict.correct, verdict.formatted) == (None, False, False)
    assert verdict.facts["imports"] == ["random"]
    assert "code_game/predicted" not in verdict.metrics


def test_predictions_ignore_surrounding_space() -> None:
    assert prediction("<answer> 1 2 \n3</answer>", "1 2\n3  \n\n") == ("1 2 \n3", True)
    assert prediction("<answer>12\n3</answer>", "1 2\n3")[1] is False
    assert prediction("<answer>  55</answer>", "  55")[1] is True  # leading space must not defeat every opponent
    assert prediction("<answer>\n 1\n  2\n</answer>", " 1\n  2")[1] is True
    assert prediction("none", "none") == (None, False)


def test_task_is_adversarial() -> None:
    assert isinstance(game(), AdversarialTask)
