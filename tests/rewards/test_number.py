"""The number grader: false verdicts of other graders, cheats, all of GSM8K, fuzzed text."""

from __future__ import annotations

import json
import random
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.rewards.number import grade_number
from tests.support.data import is_official

MODES: tuple[Literal["strict", "flexible"], ...] = ("strict", "flexible")

# Includes false verdicts measured on math-verify 0.9.0, oat's grader, Qwen2.5-Math's and lm-eval's.
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
    ("5 cm", "5 km"), ("5 cents", "$5"), ("€5", "$5"), ("3 1/2", "31/2"),
]  # fmt: skip
# Texts that contain 18 and mean something else.
NOT_18 = [
    "negative 18", "minus 18", "-(18)", "- (18)", "-  18", "-$(18)", "18-", "18 -", "–18", "- 18", "18 - x", "18-x",
    "18 - discount", "18(x)", "18?", "18^2", "18^{2}", "18_2", "18**2", "18π", "18 pi", "18i", "18k",
    "18 K", "18万", "18 百万", "18½", "18 lakh", "18 tenths", "18 hundredths", "18 thousandths", "18 ppm",
    "18 per mille", r"18\%", "18pct", "18 dozen", "18 hundred", "half of 18",
    "twice 18", "root of 18", "sqrt 18", "√18", "reciprocal of 18", "multiple of 18", "log 18", "18 mod 5",
    "18 choose two", "hardly 18", "anything but 18", "it doesn't equal 18", "18 isn’t right", "about 18",
    "≈18", "<18", "≥18", "18±1", "18 ± 1", "at least 18", "18 or so", "17 or 18", "17, 18", "17 18", "17/18", "17–18",
    "17 to 18", "17;18", "18\n17", "17\n18", "eighteen", "nicht 18", "18+0", "+-18", "--18", "- -18", "18e", "18e1",
    "0x18", "0b18", "#18", "A18", "18=18", "=18", "18:00", "18,00", "18,0", "1.8.0",
    "18 degrees below zero", "all numbers but 18", "18 apples and nine pears", "1 8", "<b>18</b>", "[18]", "{18}",
    "18\x00", "18\\pi", "18 \\cdot 2", "\\frac{36}{2}",
]  # fmt: skip
DECORATED = [
    ("18{,}000", "18000"), (r"1,\!800", "1800"), (r"\boxed{\text{18}}", "18"), (r"\boxed{\$18}", "18"),
    ("$18/day", "18"), ("18 miles/hour", "18"), ("18 km/h", "18"), ("$18 a day", "18"), ("18 more apples", "18"),
    ("negative 18", "-18"), ("-  18", "-18"), (r"\text{18 dollars}", "18"), ("18-inch", "18"),
    ("She needs $18.", "18"), ("18\u200b", "18"), (r"$\$18$", "18"), (r"\(18\)", "18"), ("18 (dollars)", "18"),
    ("“18”", "18"), ("18 °C", "18"), ("18°", "18"), ("Answer: 18", "18"), ("**Answer:** 18", "18"),
    ("**18 dollars**", "18"), ("__18__", "18"), ("`18`", "18"), ("$1,234,567.00", "1234567"), ("+18", "18"),
    ("18 USD", "18"), ("USD 18", "18"), (r"18\text{ dollars}", "18"), ("18 square meters", "18"), ("3/4", "0.75"),
    (".75", "3/4"), ("1.50", "1.5"), ("18 cents", "18"), ("-0", "0"), ("1\u00a0kg", "1"), ("£18", "18"),
    ("€ 18", "18"), ("18e0", "18"), ("18.0000000000000000000000", "18"),
]  # fmt: skip


def tagged(answer: str) -> str:
    return f"some thinking</think> <answer>{answer}</answer>"


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_correct_answers(answer: str, gold: str) -> None:
    assert grade_number(tagged(answer), gold, "strict").reason == "ok"
    for completion in (tagged(answer), f"First I think.\n{answer}"):
        assert grade_number(completion, gold, "flexible").correct


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_wrong_answers(answer: str, gold: str) -> None:
    assert not grade_number(tagged(answer), gold, "strict").correct
    for completion in (tagged(answer), answer, f"I have thought about it.\n{answer}"):
        assert not grade_number(completion, gold, "flexible").correct


@pytest.mark.parametrize("answer", NOT_18)
def test_cheats_are_not_correct(answer: str) -> None:
    for mode in MODES:
        verdict = grade_number(tagged(answer), "18", mode)
        assert (verdict.correct, verdict.reason == "ok") == (False, False)


@pytest.mark.parametrize(("answer", "gold"), DECORATED)
def test_decorated_numbers_are_correct(answer: str, gold: str) -> None:
    for mode in MODES:
        assert grade_number(tagged(answer), gold, mode).reason == "ok"


def test_thirty_digits_are_compared_exactly() -> None:
    gold = "123456789012345678901234567890"
    assert grade_number(tagged(gold + ".0"), gold).correct
    assert not grade_number(tagged(gold[:-1] + "1"), gold).correct
    assert not grade_number(tagged(gold + ".0000000001"), gold).correct
    assert not grade_number(tagged("0.3333333333333333"), "1/3").correct


@settings(max_examples=300, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_equality_is_exact(answer: int, gold: int) -> None:
    assert grade_number(tagged(f"{answer:,}"), str(gold)).correct == (answer == gold)
    assert grade_number(tagged(f"{gold:,}.00"), str(gold)).correct


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
def test_strict_format_reasons(completion: str, reason: str) -> None:
    assert grade_number(completion, "18").reason == reason


@pytest.mark.parametrize(
    ("completion", "strict", "flexible"),
    [
        # Tags before the first </think> are part of the thoughts.
        ("<think>Is it <answer>17</answer>?</think> <answer>18</answer>", "ok", True),
        ("I shall write <answer> tags.</think><answer>18</answer>", "ok", True),
        ("<think><answer>18</answer></think> <answer>17</answer>", "wrong", False),
        ("<think><answer>18</answer></think>", "no_answer_tag", True),
        ("<think><answer>18</answer>", "no_close_think", True),
        # A second guess fails, however its tags are arranged.
        ("a</think> <answer>5</answer></think> <answer>18</answer>", "multiple_answers", True),
        ("a</think> <answer>5 <answer>18</answer>", "multiple_answers", True),
        ("a</think> <answer>18</answer></answer>", "multiple_answers", True),
        ("a</think> </think> <answer>18</answer>", "text_before_answer", True),
        ("a</think> <answer>18</answer> <think>", "trailing_text", True),
        ("a</think> <answer>18</think></answer>", "not_numeric", False),
        ("a</think> <ANSWER>18</ANSWER>", "no_answer_tag", False),
        ("a</think> </answer>18<answer>", "no_answer_tag", False),
    ],
)
def test_thoughts_and_second_guesses(completion: str, strict: str, flexible: bool) -> None:
    assert grade_number(completion, "18", "strict").reason == strict
    assert grade_number(completion, "18", "flexible").correct is flexible


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


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("So he pays $600 x 2 = $1200.", "1200"),
        ("The last two people each lost 28 kilograms of weight.", "28"),
        ("Caleb spent $40 − $4 = $36 more on ice cream than on yogurt.", "36"),
        ("480 minutes/week and 4 weeks a month make 1920 minutes.", "1920"),
        ("Therefore, the answer is **18**.", "18"),
        ("#### $1,800 dollars\nThank you!", "1800"),
    ],
)
def test_flexible_reads_free_text(text: str, gold: str) -> None:
    assert grade_number(text, gold, "flexible").correct


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("60 flamingoes/day * 8 days = 480 flamingoes", "480"), ("2s = 26, so s = 13", "13"), ("s = 13", "13"),
        ("Dividing both sides by 8, we get c = 70", "70"), ("6 / 20 * 100% = 30%", "30"), ("25 + 1 = 26 times", "26"),
        ("She must ride it 26 times.", "26"), ("He has 20 quarters left", "20"), ("$6 / 3 kg = $2 for two pairs", "2"),
        ("so 9 + 9 = <<9+9=18>>18 eggs", "18"), ("8(100)=800 berries", "800"),
    ],
)  # fmt: skip
def test_flexible_reads_results_of_calculations(text: str, gold: str) -> None:
    assert grade_number(text, gold, "flexible").correct


@pytest.mark.parametrize(
    "text",
    [
        "17 = 18", "17 + 1 = 18 or 20", "9 + 9 = 18 million", "9 + 9 = 18!", "9 + 9 = 18x", "9 + 9 = not 18", "18%",
        "= 18%",
        "9 + 9 = -18", "9 + 9 = 18²", "9 + 9 = 18 and a half", "9 + 9 = 18 per mille", "9 + 9 = 18 dozen",
    ],
)  # fmt: skip
def test_flexible_rejects_numbers_that_mean_something_else(text: str) -> None:
    assert not grade_number(text, "18", "flexible").correct


LM_EVAL = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
"""The expression of the filter flexible-extract of lm-evaluation-harness (lm_eval/tasks/gsm8k/gsm8k.yaml)."""


def lm_eval_is_right(text: str, gold: str) -> bool:
    """The last match, compared without commas, dollar signs and a final period."""
    found = re.findall(LM_EVAL, text)
    return bool(found) and re.sub(r"[,$]|\.$", "", "".join(found[-1])) == gold.replace(",", "")


def test_flexible_agrees_with_lm_eval_on_solutions_without_their_mark(gsm8k_dir: Path) -> None:
    lines = [line for file in sorted(gsm8k_dir.glob("gsm8k_*.jsonl")) for line in file.read_text("utf-8").splitlines()]
    parts = [json.loads(line)["answer"].rpartition("####") for line in lines]
    solutions = [(text.rstrip(), gold.strip()) for text, _, gold in parts]
    ours = [grade_number(text, gold, "flexible").correct for text, gold in solutions]
    theirs = [lm_eval_is_right(text, gold) for text, gold in solutions]
    both = sum(map(min, ours, theirs))
    print(f"{len(ours)} solutions: {sum(ours)} right here, {sum(theirs)} by lm-eval, {both} by both")
    assert sum(ours) >= sum(theirs)
    if is_official("gsm8k_test.jsonl"):
        assert (len(ours), sum(theirs)) == (8792, 8340)


def test_gsm8k_solutions_end_in_their_gold_answers(gsm8k_dir: Path) -> None:
    for line in (gsm8k_dir / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines():
        solution = json.loads(line)["answer"]
        assert grade_number(solution, solution.rpartition("####")[2], "flexible").correct


def gold_answers(gsm8k_dir: Path) -> list[str]:
    files = sorted(gsm8k_dir.glob("gsm8k_*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["answer"].rpartition("####")[2].strip() for line in lines]


def test_gsm8k_gold_answers_and_their_neighbors(gsm8k_dir: Path) -> None:
    golds = gold_answers(gsm8k_dir)
    assert len(golds) == (8792 if is_official("gsm8k_test.jsonl") else 16)
    for gold in golds:
        assert all(grade_number(tagged(gold), gold, mode).correct for mode in MODES), gold
    for gold in set(golds):
        value = Decimal(gold.replace(",", ""))
        wrong = {value + 1, value - 1, value * 10, value / 100, -value} - {value}
        for mode in MODES:
            for other in wrong:
                assert not grade_number(tagged(f"{other:f}"), gold, mode).correct, (gold, other)


def test_completions_that_are_not_text() -> None:
    for completion in (None, 18, b"</think> <answer>18</answer>"):
        assert [grade_number(completion, "18", mode).correct for mode in MODES] == [False, False]  # type: ignore[arg-type]


def test_gold_answers_that_are_not_text() -> None:
    assert grade_number(tagged("18"), 18).correct  # type: ignore[arg-type]
    assert grade_number(tagged("18"), None).reason == "gold_not_numeric"  # type: ignore[arg-type]


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="mode"):
        grade_number("18", "18", "lenient")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["9^9^9^9", "9**9**9**9", "10^(10^(10))", r"\boxed{10000000^{100000000}}", "100000000!", "(" * 300 + ")" * 300]
    + [fragment * 50_000 for fragment in ("9", "**", "$", r"\boxed{", "1,", "#", "####\n", " ", "*a", "9 ", "1/")],
)
def test_no_text_hangs_the_grader(text: str) -> None:
    started = time.thread_time()  # threads that other tests left have their own
    for completion in (text, tagged(text), f"{text} 18", f"18 {text}"):
        grade_number(completion, "18")
        grade_number(completion, "18", "flexible")
    assert time.thread_time() - started < 2
    assert grade_number(tagged("18"), "18").correct


FRAGMENTS = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>18</answer>", "####", "\\boxed{", "}", "$", "\\text{",
    "18", "0", "9" * 40, ",", ".", "-", "−", "+", "/", "*", "**", "^", "!", "%", "=", "e", "e99", "E+99", " or ",
    " not ", "²", "½", "１", "万", "x", " a ", "(", ")", "\n", " ", "\t", "\u200b", "\x00", "\ud800", "😀", "_", "`",
    "{,}", "half ", "per ", "/day", "I think ", ": ", "\\", "\\(", "\\)", "'", "n't ", "negative ",
]  # fmt: skip


def test_fuzzed_completions_neither_crash_nor_hang() -> None:
    random_state = random.Random("fuzzed completions")
    slowest = 0.0
    for index in range(10_000):
        fragments = random_state.choices(FRAGMENTS, k=random_state.choice((3, 10, 30, 100)))
        completion = "".join(fragments) * random_state.choice((1, 1, 1, 20))
        if index % 3 == 0:
            completion = f"</think><answer>{completion}</answer>"
        gold = random_state.choice(("18", "-1", "1,800", "0.5", "".join(random_state.choices(FRAGMENTS, k=3))))
        for mode in MODES:
            started = time.thread_time()
            verdict = grade_number(completion, gold, mode)
            slowest = max(slowest, time.thread_time() - started)
            assert verdict.correct == (verdict.reason == "ok")
    assert slowest < 1.0  # CPU time


FRAGMENTS_AND_TEXT = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=5)), max_size=40).map("".join)


@settings(max_examples=500, deadline=None)
@given(FRAGMENTS_AND_TEXT, st.text(max_size=10))
def test_arbitrary_text_never_crashes(completion: str, gold: str) -> None:
    for mode in MODES:
        verdict = grade_number(completion, gold, mode)
        assert verdict.correct == (verdict.reason == "ok")
