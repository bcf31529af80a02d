"""The number grader against the false verdicts measured on other graders, and against what could hang one."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.config.schema import Task
from grpo_train.rewards import Grade, Rewards, grade_number, judge_number
from grpo_train.tasks import Attempt, Problem

RIGHT = [
    ("18.", "18"), ("18.0", "18"), ("18.00", "18"), ("$18", "18"), ("1,800", "1800"), ("1800", "1,800"),
    ("0018", "18"), ("18 dollars", "18"), ("The answer is 18", "18"), ("The answer is $18.", "18"), ("**18**", "18"),
    ("1e3", "1000"), ("−18", "-18"), ("- 18", "-18"), ("-$18", "-18"), ("$-18", "-18"), ("3 1/2", "3.5"),
    (r"\boxed{18.}", "18"), ("$18$", "18"), ("18kg", "18"), ("$1,800.00", "1800"), (" 18 ", "18"),
]  # fmt: skip
WRONG = [
    ("17+1", "18"), ("36/2", "18"), ("17=18", "18"), ("18%", "18"), ("18 percent", "18"), ("0.18", "18"),
    ("1800", "18"), ("25002", "25000"), ("25000.5", "25000"), ("18 or 20", "18"), ("18 or 20", "20"), ("18x", "18"),
    ("18 million", "18"), ("The answer is not 18", "18"), ("5 c", "5 d"), ("1/2004!", "1/2006!"), ("18!", "18"),
    ("1,8", "18"), ("0,018", "18"), ("1,800,00", "180000"), ("18²", "18"), ("½", "0.5"), ("x-18", "-18"), ("x18", "18"),
    ("18M", "18"), ("2*9", "18"), ("20 - 2", "18"), ("18, 20", "18"), ("(17)18", "18"), ("-18", "18"), ("~18", "18"),
    ("18/1", "18"), ("1e400", "18"), ("√324", "18"), ("18 and a half", "18"), ("１８", "18"), ("", "18"), ("nan", "18"),
]  # fmt: skip


def tagged(answer: str) -> str:
    return f"some thinking</think> <answer>{answer}</answer>"


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_right_however_it_is_written(answer: str, gold: str) -> None:
    assert grade_number(tagged(answer), gold, "strict").reason == "ok"
    assert grade_number(tagged(answer), gold, "flexible").correct
    assert grade_number(f"First I think.\n{answer}", gold, "flexible").correct


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_wrong_whatever_other_graders_say(answer: str, gold: str) -> None:
    assert not grade_number(tagged(answer), gold, "strict").correct
    assert not grade_number(tagged(answer), gold, "flexible").correct
    assert not grade_number(answer, gold, "flexible").correct


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("<think>a</think><answer>18</answer>", "ok"),
        ("a</think>\n\n<answer>\n18\n</answer>\n", "ok"),
        ("a</think> <answer>17</answer>", "wrong"),
        ("<answer>18</answer>", "no_close_think"),
        ("a</think> 18", "no_answer_tag"),
        ("a</think> <answer>18", "no_answer_tag"),
        ("a</think> <answer>5</answer> no </think> <answer>18</answer>", "multiple_answers"),
        ("a</think> <answer>5</answer> <answer>18</answer>", "multiple_answers"),
        ("a</think> so <answer>18</answer>", "text_before_answer"),
        ("a</think> <answer>18</answer> or so", "trailing_text"),
        ("a</think> <answer>18 or 20</answer>", "ambiguous"),
        ("a</think> <answer>eighteen</answer>", "not_numeric"),
        ("", "no_close_think"),
    ],
)
def test_strict_format_has_a_reason_for_every_verdict(completion: str, reason: str) -> None:
    assert grade_number(completion, "18").reason == reason


@pytest.mark.parametrize(
    ("completion", "correct"),
    [
        ("a</think> <answer>5</answer> no </think> <answer>18</answer>", True),
        ("a</think> <answer>18</answer> or so", True),
        ("a</think> <answer>18", True),
        ("a</think> <answer>18</answer> <answer>5</answer>", False),
        ("9 + 9 = <<9+9=18>>18 eggs\n#### 18", True),
        ("#### 18\n#### 5", False),
        ("so 9 + 9 = 18", True),
        ("9 eggs for $2 each make $18 every day.", True),
        ("It is 17. No, it is 18.", True),
        ("x = 18", True),
        ("no number at all", False),
    ],
)
def test_flexible_takes_the_last_answer(completion: str, correct: bool) -> None:
    assert grade_number(completion, "18", "flexible").correct is correct


def test_the_written_solutions_of_gsm8k_end_in_their_gold_answers(gsm8k_dir: Path) -> None:
    for line in (gsm8k_dir / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines():
        solution = json.loads(line)["answer"]
        assert grade_number(solution, solution.rpartition("####")[2], "flexible").correct


@pytest.mark.parametrize(
    "text",
    ["9^9^9^9", "9**9**9**9", "10^(10^(10))", r"\boxed{10000000^{100000000}}", "100000000!", "(" * 300 + ")" * 300]
    + [piece * 50_000 for piece in ("9", "**", "$", r"\boxed{", "1,", "#", "####\n", " ", "*a", "9 ", "1/")],
)
def test_nothing_hangs_the_grader(text: str) -> None:
    started = time.process_time()
    for completion in (text, tagged(text), f"{text} 18", f"18 {text}"):
        grade_number(completion, "18")
        grade_number(completion, "18", "flexible")
    assert time.process_time() - started < 2
    assert grade_number(tagged("18"), "18").correct


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "####",
        "18",
        "-",
        ",",
        ".",
        "$",
        "**",
        "=",
        " or ",
        "²",
        "\n",
        " ",
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=40).map("".join), st.text(max_size=10))
def test_no_text_crashes_the_grader(completion: str, gold: str) -> None:
    for mode in ("strict", "flexible"):
        verdict = grade_number(completion, gold, mode)
        assert verdict.correct == (verdict.reason == "ok")


@settings(max_examples=300, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_equality_is_exact(said: int, gold: int) -> None:
    assert grade_number(tagged(f"{said:,}"), str(gold)).correct == (said == gold)
    assert grade_number(tagged(f"{gold:,}.00"), str(gold)).correct


def test_accuracy_is_all_or_nothing() -> None:
    problem = Problem(index=0, prompt="9+9=", answer="18", question="9+9")
    rewards = Rewards(Task(), ("accuracy",), max_completion_length=10, seed=0)

    def grade(completion: str, truncated: bool = False) -> Grade:
        attempt = Attempt(problem, completion, truncated)
        return rewards(attempt, judge_number(attempt))

    right = grade(tagged("18"))
    assert (right.reward, right.rewards, right.verdict.correct, right.verdict.formatted) == (
        2.0,
        {"accuracy": 2.0},
        True,
        True,
    )
    wrong = grade(tagged("17"))
    assert (wrong.reward, wrong.verdict.correct, wrong.verdict.formatted, wrong.verdict.answer) == (
        0.0,
        False,
        True,
        "17",
    )
    cut = grade(tagged("18"), truncated=True)
    assert (cut.reward, cut.verdict.correct, cut.verdict.formatted, cut.verdict.reason) == (
        0.0,
        False,
        False,
        "truncated",
    )
    assert cut.verdict.flexible, "the lenient reading takes what is there"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode"):
        grade_number("18", "18", "lenient")  # type: ignore[arg-type]
