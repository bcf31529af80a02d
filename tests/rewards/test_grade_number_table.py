"""The number grader under attack: other graders' false verdicts, cheats, all of GSM8K, and 10,000 fuzzed texts."""

from __future__ import annotations

import json
import random
import time
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest

from grpo_train.rewards import grade_number
from tests.support.data import is_official

MODES: tuple[Literal["strict", "flexible"], ...] = ("strict", "flexible")

# Measured on math-verify 0.9.0, oat's grader, Qwen2.5-Math's and lm-eval's: each row at least one of them has wrong.
TABLE = [
    ("18.", "18", True), ("18.0", "18", True), ("18.00", "18", True), ("$18", "18", True), ("1,800", "1800", True),
    ("1800", "1,800", True), ("0018", "18", True), ("18 dollars", "18", True), ("The answer is 18", "18", True),
    ("**18**", "18", True), ("1e3", "1000", True), ("−18", "-18", True), ("3 1/2", "3.5", True),
    ("17+1", "18", False), ("36/2", "18", False), ("17=18", "18", False), ("18%", "18", False), ("0.18", "18", False),
    ("1800", "18", False), ("25002", "25000", False), ("25000.5", "25000", False), ("18 or 20", "18", False),
    ("18 or 20", "20", False), ("18x", "18", False), ("18 million", "18", False),
    ("The answer is not 18", "18", False), ("5 c", "5 d", False), ("1/2004!", "1/2006!", False),
]  # fmt: skip

# What a policy, or a person who wants to cheat, could say beside a number without saying the number.
CHEATS = [
    "negative 18", "minus 18", "-(18)", "- (18)", "-  18", "-$(18)", "18-", "18 -", "–18", "- 18", "18 - x", "18-x",
    "18 - discount", "18(x)", "18!", "18?", "18²", "18^2", "18^{2}", "18_2", "18**2", "18π", "18 pi", "18i", "18k",
    "18 K", "18万", "18 百万", "18½", "１８", "18 lakh", "18 tenths", "18 hundredths", "18 thousandths", "18 ppm",
    "18 per mille", "18 percent", r"18\%", "18pct", "18 dozen", "18 hundred", "18 and a half", "half of 18",
    "twice 18", "root of 18", "sqrt 18", "√18", "reciprocal of 18", "multiple of 18", "log 18", "18 mod 5",
    "18 choose two", "hardly 18", "anything but 18", "it doesn't equal 18", "18 isn’t right", "about 18", "~18",
    "≈18", "<18", "≥18", "18±1", "18 ± 1", "at least 18", "18 or so", "17 or 18", "17, 18", "17 18", "17/18", "17–18",
    "17 to 18", "17;18", "18\n17", "17\n18", "eighteen", "nicht 18", "18+0", "+-18", "--18", "- -18", "18e", "18e1",
    "0x18", "0b18", "#18", "A18", "18=18", "=18", "18:00", "18,00", "1,8", "18,0", "0,018", "1.8.0", "18/1",
    "18 degrees below zero", "all numbers but 18", "18 apples and nine pears", "1 8", "<b>18</b>", "[18]", "{18}",
    "18\x00", "18\\pi", "18 \\cdot 2", "\\frac{36}{2}",
]  # fmt: skip

FAIR = [
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


@pytest.mark.parametrize(("answer", "gold", "right"), TABLE)
def test_every_row_of_the_table(answer: str, gold: str, right: bool) -> None:
    for mode in MODES:
        assert grade_number(tagged(answer), gold, mode).correct is right
    assert grade_number(f"I have thought about it.\n{answer}", gold, "flexible").correct is right


@pytest.mark.parametrize("answer", CHEATS)
def test_no_cheat_says_the_number(answer: str) -> None:
    for mode in MODES:
        verdict = grade_number(tagged(answer), "18", mode)
        assert (verdict.correct, verdict.reason == "ok") == (False, False)


@pytest.mark.parametrize(("answer", "gold"), FAIR)
def test_a_fair_answer_counts_however_it_is_dressed(answer: str, gold: str) -> None:
    for mode in MODES:
        assert grade_number(tagged(answer), gold, mode).reason == "ok"


def test_a_difference_in_the_last_of_thirty_digits_is_a_difference() -> None:
    gold = "123456789012345678901234567890"
    assert grade_number(tagged(gold + ".0"), gold).correct
    assert not grade_number(tagged(gold[:-1] + "1"), gold).correct
    assert not grade_number(tagged(gold + ".0000000001"), gold).correct
    assert not grade_number(tagged("0.3333333333333333"), "1/3").correct


@pytest.mark.parametrize(
    ("completion", "strict", "flexible"),
    [
        # What stands before the first </think> is a thought, tags or not: it neither counts nor spoils the answer.
        ("<think>Is it <answer>17</answer>?</think> <answer>18</answer>", "ok", True),
        ("I shall write <answer> tags.</think><answer>18</answer>", "ok", True),
        ("<think><answer>18</answer></think> <answer>17</answer>", "wrong", False),
        ("<think><answer>18</answer></think>", "no_answer_tag", True),
        ("<think><answer>18</answer>", "no_close_think", True),
        # A second guess does not count, however its tags are arranged.
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


def gold_answers(gsm8k_dir: Path) -> list[str]:
    files = sorted(gsm8k_dir.glob("gsm8k_*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["answer"].rpartition("####")[2].strip() for line in lines]


def test_every_gold_answer_of_gsm8k_and_no_neighbour_of_one(gsm8k_dir: Path) -> None:
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


def test_what_is_no_text_is_no_answer_and_a_gold_number_may_be_one() -> None:
    for completion in (None, 18, b"</think> <answer>18</answer>"):
        assert [grade_number(completion, "18", mode).correct for mode in MODES] == [False, False]  # type: ignore[arg-type]
    assert grade_number(tagged("18"), 18).correct  # type: ignore[arg-type]
    assert grade_number(tagged("18"), None).reason == "gold_not_numeric"  # type: ignore[arg-type]


PIECES = [
    "<think>", "</think>", "<answer>", "</answer>", "<answer>18</answer>", "####", "\\boxed{", "}", "$", "\\text{",
    "18", "0", "9" * 40, ",", ".", "-", "−", "+", "/", "*", "**", "^", "!", "%", "=", "e", "e99", "E+99", " or ",
    " not ", "²", "½", "１", "万", "x", " a ", "(", ")", "\n", " ", "\t", "\u200b", "\x00", "\ud800", "😀", "_", "`",
    "{,}", "half ", "per ", "/day", "I think ", ": ", "\\", "\\(", "\\)", "'", "n't ", "negative ",
]  # fmt: skip


def test_ten_thousand_fuzzed_completions_neither_crash_nor_hang_the_grader() -> None:
    random_state = random.Random("fuzzed completions")
    slowest = 0.0
    for number in range(10_000):
        pieces = random_state.choices(PIECES, k=random_state.choice((3, 10, 30, 100)))
        completion = "".join(pieces) * random_state.choice((1, 1, 1, 20))
        if number % 3 == 0:
            completion = f"</think><answer>{completion}</answer>"
        gold = random_state.choice(("18", "-1", "1,800", "0.5", "".join(random_state.choices(PIECES, k=3))))
        for mode in MODES:
            started = time.process_time()
            verdict = grade_number(completion, gold, mode)
            slowest = max(slowest, time.process_time() - started)
            assert verdict.correct == (verdict.reason == "ok")
    assert slowest < 1.0  # of processor time; a hang takes for ever
