"""LaTeX answers: equivalent notations, near misses, answers that hang other graders."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from grpo_train.rewards import math_answer
from grpo_train.rewards.helpers.pool import SERVE
from grpo_train.rewards.math_answer import compare_answers, judge_math, last_boxed
from grpo_train.tasks import Attempt, Problem

RIGHT = [
    ("18", "18"), ("18.0", "18"), ("$18$", "18"), (r"\boxed{18}", "18"), (r"\[18\]", "18"), ("**18**", "18"),
    (r"\frac{1}{2}", "0.5"), ("0.5", r"\frac{1}{2}"), ("1/2", r"\frac{1}{2}"), (r"\frac12", r"\dfrac{1}{2}"),
    (r"-\frac{1}{2}", "-0.5"), (r"\frac{-1}{2}", "-1/2"), (r"3\frac{1}{2}", "3.5"), ("1,800", "1{,}800"),
    ("x=18", "18"), ("18", r"18^\circ"), (r"18\text{ cm}", "18"), ("18 square cm", r"18\text{ cm}^2"), ("18", r"\$18"),
    (r"50\%", r"50\%"), ("A", r"\text{(A)}"), ("evelyn", r"\text{Evelyn}"), ("Monday", "Monday"),
    (r"\sqrt{12}", r"2\sqrt{3}"), (r"2 \sqrt 3", r"2\sqrt{3}"), (r"The answer is $2\sqrt{3}$.", r"2\sqrt{3}"),
    (r"5\sqrt{2}", r"5\sqrt{2}\text{ m}"), (r"5\sqrt{2} cm", r"5\sqrt{2}"), (r"\pi/4", r"\frac{\pi}{4}"),
    ("(x+1)^2", "x^2+2x+1"), ("2yx", "2xy"), ("y=3+2x", "y=2x+3"), ("2x+3", "y=2x+3"), ("e^{2x}", "(e^x)^2"),
    ("3,2,1", "1,2,3"), ("1, 2 and 3", "1,2,3"), ("x=1 or x=2", "1,2"), (r"\{2,1\}", r"\{1,2\}"), ("(1, 2)", "(1,2)"),
    (r"\left(1,\frac12\right)", r"(1,\frac{1}{2})"), (r"x \in [1,2]", "[1,2]"), (r"[0,\infty)", r"[0,\infty)"),
    (r"\infty", r"\infty"), ("3+2i", "2i+3"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"), ("1011_2", "1011_{2}"),
    (r"\begin{pmatrix}1\\\frac{4}{2}\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}2"), (r"\pi/2", r"\frac\pi2"), (r"\frac{\sqrt2}{2}", r"\frac1{\sqrt2}"),
    (r"\sqrt{x}", r"x^\frac12"), (r"2e^{-1}", r"\frac{2}{\mathrm{e}}"), (r"\sqrt[3]{8x}", r"2\sqrt[3]x"),
    ("2004!", "2004!"), ("2^{2005}", "2^{2005}"), (r"1, 2, \ldots, n", r"1,2,\ldots,n"),
    ("18 cm^2", r"18\text{ cm}^2"), ("5 feet", r"5\text{ ft}"), ("5 minutes", "5 min."), ("5 dollars", r"\$5"),
    ("18 degrees", r"18^\circ"),
    ("18 miles/hour", "18 miles per hour"), ("5", "5 km"), ("18 km per hour", r"18\text{ km}"), (r"12\,000", "12000"),
    ("Red", r"\text{red}"), ("YES", r"\text{yes}"), ("Blue whale", r"\text{blue  Whale}"), ("2 x", "2x"), ("A B", "AB"),
]  # fmt: skip
NOTATIONS = [
    (r"\cfrac{1}{3}", r"\frac{1}{3}"), ("28 percent", r"28\%"), (r"28\text{ percent}", "28%"), ("28%", "28 per cent"),
    ("½", "0.5"), ("3½", "3.5"), ("3 ½", r"3\frac{1}{2}"), ("−½", "-0.5"), ("x=⅔", "2/3"), ("2⁄3", "2/3"),
    ("√2", r"\sqrt{2}"),
    ("√12", r"2\sqrt{3}"), ("√3/2", r"\frac{\sqrt{3}}{2}"), ("3√x", r"3\sqrt{x}"), ("√(x+1)", r"\sqrt{x+1}"),
    ("∛5", r"\sqrt[3]{5}"), ("x²", "x^2"), ("x² + 2x + 1", "(x+1)^2"), ("x¹⁰", "x^{10}"), ("x⁻¹", "x^{-1}"),
    ("x₁", "x_1"), ("５", "5"), ("１２", "12"),
    ("٣", "3"), ("（1，2）", "(1,2)"), (r"\frac{1}{-2}", "-0.5"), (r"\frac{-1}{-2}", "1/2"),
    ("1/-2", r"-\frac{1}{2}"), (r"\frac{x}{-2}", r"-\frac{x}{2}"), (r"\langle 1,2\rangle", "(1,2)"),
    (r"\left\langle 1,2\right\rangle", r"\langle 1, 2\rangle"), ("⟨1,2⟩", "(1,2)"), ("<1, 2>", "(1,2)"),
    ("π/4", r"\frac{\pi}{4}"),
    ("[0,∞)", r"[0,\infty)"), ("±2", r"\pm 2"), ("x ≤ 3", r"x\le 3"), ("5 cm²", r"5\text{ cm}^2"),
    ("5 m", r"$5\text{ m}$"),
    ("5 m²", r"5\text{ m}^2"), (r"5\sqrt{2} m", r"5\sqrt{2}\text{ m}"),
]  # fmt: skip
WRONG = [
    ("28", r"28\%"), ("28 percent", "28"), (r"28\text{ percent}", "28"), ("½", "2"), ("3½", "31/2"),
    ("1½", r"\frac{11}{2}"),
    ("√4", "2"), ("√2", "2"), ("√2+1", r"\sqrt{2+1}"), ("x²", "x2"), ("5²", "25"), ("5²", "52"), ("10⁵", "100000"),
    ("x₁", "x1"),
    (r"\frac{36}{-2}", "-18"), ("1/-2", "1/2"), (r"\frac{2}{-6}", r"-\frac{1}{3}"), ("2⁄6", "1/3"), ("2 × 9", "18"),
    ("20 − 2", "18"), (r"\langle 1,2\rangle", "(2,1)"), (r"\langle 1,2\rangle", "[1,2]"), ("x<3", "x>3"),
    ("17+1", "18"), ("36/2", "18"), (r"\frac{36}{2}", "18"), ("17=18", "18"), ("18%", "18"), (r"18\%", "18"),
    ("18x", "18"), ("18 million", "18"), ("not 18", "18"), ("18 or 20", "18"), ("25002", "25000"), ("1800", "18"),
    ("5 c", "5 d"), ("5c", "5d"), ("2ab", "2ac"), ("1/2004!", "1/2006!"), (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"), ("n=1,2,3", "n=2,3,4"), ("D=(0,1.5)", "D = (0, 1)"),
    (r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{\mathrm{e}}"), ("2021", r"\pm 2021"),
    (r"F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}", r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}"), ("1:00", "12:00"),
    ("21, 36, and 82", r"19, 46, \text{ and } 82"), (r"1:4:9:\ldots", r"1:2:3:\ldots"),
    (r"\frac{1}{3 \cdot 2^{2006}}", r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}"),
    (r"1, 3, \ldots, 2n-1", r"1, 2, \ldots, n"), ("3.14159", r"\pi"), ("1.414214", r"\sqrt{2}"),
    (r"\sqrt2 or \sqrt3", r"\sqrt2"), (r"not \sqrt2", r"\sqrt2"), (r"approximately \sqrt2", r"\sqrt2"),
    ("Tuesday", "Monday"), ("(2,1)", "(1,2)"), ("[0,1]", "[0,1)"), ("1,2", "(1,2)"), ("1", "1,2"), ("1,2,3", "1,2"),
    ("x", "y"), ("-x", "x"), ("2x+3=5", "2x+3"), (r"\infty", r"-\infty"), ("1011_3", "1011_2"),
    (r"\sqrt{2}\%", r"\sqrt{2}"), (r"5^2\sqrt{2}", r"5\sqrt2\text{ cm}^2"), ("}{", r"\sqrt2"), ("", r"\sqrt2"),
    (r"\begin{pmatrix}1\\3\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("3 1/2", "31/2"), ("31/2", "3 1/2"), ("1 2", "12"), ("12", "1 2"), ("1 23", "12 3"), ("x_1 2", "x_12"),
    ("AB", "ab"), ("a", "A"), ("(a)", "(A)"), ("ab", r"\text{AB}"), ("12 000", "12000"), ("x 1, 2", "x 12"),
    ("every day", "everyday"), ("5 cm", "5 km"), (r"5\text{ cm}", r"5\text{ km}"), (r"5\text{ m}", r"5\text{ s}"),
    ("5 cm", r"5\text{ cm}^2"),
    ("5 square cm", "5 cubic cm"), ("5 m^2", r"5\text{ m}"), ("5 s", r"5\text{ m}"), ("5 m", "5"),
    ("5 cents", r"\$5"), ("€5", "5 dollars"), (r"18^\circ", "18 radians"),
    ("18 °C", "18 °F"), (r"18\text{ km/h}", r"18\text{ km/s}"), (r"5\sqrt{2}\text{ cm}", r"5\sqrt{2}\text{ km}"),
    ("", ""), (r"\text{(B)}", r"\text{(A)}"), ("10^5", "100000"),
]  # fmt: skip
HANGS = [
    "9^9^9^9", "9**9**9**9", "10^(10^(10))", r"\boxed{10000000^{100000000}}", "100000000!", "(" * 300 + ")" * 300,
    "(" * 140 + "1" + ")" * 140, "10^{10^{10}}", r"10^{(10^{10})}", "9" * 290, r"2^{-99999999}", "x" * 5000,
]  # fmt: skip
SLOW = "(x+1)^{999}(y+1)^{999}(x+y)^{99}"
"""Passes every pattern and makes math-verify run forever."""


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[None]:
    """Start the helper, which takes a second, outside the measured tests, with half of the usual CPU limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(math_answer, "SECONDS", math_answer.SECONDS / 2)
        math_answer._helpers.cache_clear()
        assert compare_answers("x+1", "1+x") == "ok"
        yield
        math_answer._helpers().close()
        math_answer._helpers.cache_clear()


def cpu_seconds() -> float:
    """CPU time of this process and its graders, those that ended included; not of a server of forks that other tests
    have started, which may be importing."""
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (me, *filter(is_grader, me.children())))


def is_grader(process: psutil.Process) -> bool:
    try:
        return SERVE in process.cmdline()
    except psutil.ZombieProcess:  # it has just ended
        return True


@pytest.mark.parametrize(("answer", "gold"), [*RIGHT, *NOTATIONS])
def test_equivalent_notations_are_right(answer: str, gold: str) -> None:
    assert compare_answers(answer, gold) == "ok"
    assert compare_answers(gold, gold) == "ok"


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_near_misses_are_wrong(answer: str, gold: str) -> None:
    assert compare_answers(answer, gold) not in {"ok", "grader_error"}


@pytest.mark.parametrize("gold", [r"\frac{1}{2}", r"\sqrt{2}"])
@pytest.mark.parametrize("answer", HANGS)
def test_huge_expressions_return_quickly(answer: str, gold: str) -> None:
    began = cpu_seconds()
    assert compare_answers(answer, gold) not in {"ok", "grader_timeout"}
    assert cpu_seconds() - began < 7.5
    assert compare_answers(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}") == "ok"


def test_real_hang_is_a_timeout_of_the_grader() -> None:
    attempt = Attempt(Problem(0, "", "x+y", ""), f"so</think> <answer>{SLOW}</answer>")
    began = cpu_seconds()
    verdict = judge_math(attempt)
    assert cpu_seconds() - began < 7.5
    assert (verdict.correct, verdict.reason, verdict.formatted) == (False, "grader_timeout", True)
    assert verdict.metrics["grader/failed"] == 1.0
    assert compare_answers("y+x", "x+y") == "ok"


def test_threads_do_not_wait_for_a_hang() -> None:
    kinds = [("(x+1)^2", "x^2+2x+1", "ok"), ("(x+1)^2", "x^2+2x+2", "wrong"), (SLOW, "x+y", "grader_timeout")]
    cases = [kinds[0], kinds[1]] * 20 + [kinds[2]] * 2 + [kinds[0], kinds[1]] * 20
    with ThreadPoolExecutor(6) as pool:
        reasons = list(pool.map(lambda case: compare_answers(case[0], case[1]), cases))
    assert reasons == [case[2] for case in cases]


def test_fuzzed_answers_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_answer, "_verify", lambda answer, gold: "wrong")  # the helper has its own test
    pieces = [
        *"0123456789xyz+-*/^_=(){}[]<>,.:;!%$&|~ \n",
        *("\\frac", "\\sqrt", "\\text{", "\\boxed{", "\\left(", "\\in", "cm", "not"),
    ]
    pieces += ["\\", " or ", "\\begin{pmatrix}", "\x00", "\ud800", "½"]
    rng = random.Random("math")
    for _ in range(5000):
        answer, gold = ("".join(rng.choices(pieces, k=rng.choice((1, 5, 40, 400)))) for _ in range(2))
        began = time.thread_time()
        assert isinstance(compare_answers(answer, gold), str)
        assert time.thread_time() - began < 0.5


def test_fuzzed_answers_never_break_the_helper() -> None:
    rng = random.Random("helper")
    pieces = [*"0123xy+-^_=(){},\\", "\\frac{", "\\sqrt{", "\\pi", "\\cup", "\\begin{pmatrix}", "\ud800"]
    reasons = {compare_answers("".join(rng.choices(pieces, k=rng.choice((3, 8)))), r"\sqrt{2}+x") for _ in range(150)}
    assert reasons <= {"wrong", "unreadable", "refused", "ambiguous", "grader_error", "grader_timeout"}
    assert compare_answers(r"x+\sqrt{2}", r"\sqrt{2}+x") == "ok"


def judged(completion: str, gold: str, *, truncated: bool = False) -> tuple[bool, bool | None, str]:
    verdict = judge_math(Attempt(Problem(0, "", gold, ""), completion, truncated=truncated))
    return verdict.correct, verdict.flexible, verdict.reason


def test_strict_and_flexible_readings() -> None:
    half = r"\frac{1}{2}"
    assert judged("so</think> <answer>1/2</answer>", half) == (True, True, "ok")
    assert judged(r"so</think> <answer>\boxed{\frac{1}{2}}</answer>", half) == (True, True, "ok")
    assert judged(r"so it is \boxed{\frac{1}{2}}.", half) == (False, True, "no_close_think")
    assert judged("so</think> <answer>2</answer>", half) == (False, False, "wrong")
    assert judged("so</think> <answer>1/2</answer>", half, truncated=True) == (False, True, "truncated")
    assert judged("it is 1/2", half) == (False, True, "no_close_think")
    assert judged("so</think> <answer>1/2", half) == (False, True, "no_answer_tag")


@pytest.mark.parametrize(
    ("answer", "gold", "reason"),
    [
        ("28", r"28\%", "wrong"),
        ("2/6", r"\frac{1}{3}", "not_numeric"),
        ("10^{-3}", "0.001", "not_numeric"),
        ("0.333333", r"\frac{1}{3}", "wrong"),
        ("17+1", "18", "not_numeric"),
        ("5c", "5d", "wrong"),
    ],
)
def test_rewards_are_stricter_than_published_figures(answer: str, gold: str, reason: str) -> None:
    """The flexible reading is math-verify's own verdict, with its known false positives."""
    assert judged(f"so</think> <answer>{answer}</answer>", gold) == (False, True, reason)
    assert judged(rf"so the answer is $\boxed{{{answer}}}$.", gold) == (False, True, "no_close_think")


@pytest.mark.parametrize(
    ("text", "gold", "flexible"),
    [
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", "1/2", True),
        (r"First \boxed{3}." + " And then" * 30 + r" \boxed{5}.", "5", True),
        (r"$\boxed{1}$ and $\boxed{2}$", r"\{1, 2\}", True),
        ("</think> <answer>The final answer is $5$.</answer>", "5", True),
        ("</think> <answer></answer>", "5", False),
        ("", "5", False),
        ("I give up.", r"\text{east}", False),
    ],
)
def test_flexible_takes_the_last_box_or_final_answer(text: str, gold: str, flexible: bool) -> None:
    assert judged(text, gold)[1] is flexible


def test_a_flexible_reading_that_hangs_is_counted() -> None:
    verdict = judge_math(Attempt(Problem(0, "", "1", ""), "</think> <answer>9^{9^{9^9}}</answer>"))
    assert (verdict.correct, verdict.flexible, verdict.metrics["grader/failed"]) == (False, False, 1.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [(r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{1", None), ("no box", None), (r"\boxed{}", "")],
)
def test_last_box_with_matched_braces(text: str, found: str | None) -> None:
    assert last_boxed(text) == found
