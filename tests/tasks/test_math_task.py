"""LaTeX answers: what is right, what other graders take for right, what hangs them, and the task that asks."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_train.config.schema import Task as TaskConfig
from grpo_train.rewards import math_answer
from grpo_train.rewards.helpers import HelperError, Helpers, HelperTimeout, math_verifier
from grpo_train.rewards.helpers.pool import PATIENCE
from grpo_train.rewards.math_answer import compare, judge_math, last_boxed
from grpo_train.tasks import Attempt, Problem, TaskError, load_task

RIGHT = [
    ("18", "18"), ("18.0", "18"), ("$18$", "18"), (r"\boxed{18}", "18"), (r"\[18\]", "18"), ("**18**", "18"),
    (r"\frac{1}{2}", "0.5"), ("0.5", r"\frac{1}{2}"), ("1/2", r"\frac{1}{2}"), (r"\frac12", r"\dfrac{1}{2}"),
    (r"-\frac{1}{2}", "-0.5"), (r"\frac{-1}{2}", "-1/2"), (r"3\frac{1}{2}", "3.5"), ("1,800", "1{,}800"),
    ("x=18", "18"), ("18", r"18^\circ"), (r"18\text{ cm}", "18"), ("18 cm", r"18\text{ cm}^2"), ("18", r"\$18"),
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
]  # fmt: skip
WRONG = [
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
    ("", ""), (r"\text{(B)}", r"\text{(A)}"), ("10^5", "100000"),
]  # fmt: skip
HANGS = [
    "9^9^9^9", "9**9**9**9", "10^(10^(10))", r"\boxed{10000000^{100000000}}", "100000000!", "(" * 300 + ")" * 300,
    "(" * 140 + "1" + ")" * 140, "10^{10^{10}}", r"10^{(10^{10})}", "9" * 290, r"2^{-99999999}", "x" * 5000,
]  # fmt: skip
SLOW = "(x+1)^{999}(y+1)^{999}(x+y)^{99}"
"""What no pattern refuses and math-verify does not finish."""


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    """Start-up takes a second, and is none of what is measured here."""
    assert compare("x+1", "1+x") == "ok"


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_right_however_it_is_written(answer: str, gold: str) -> None:
    assert compare(answer, gold) == "ok"
    assert compare(gold, gold) == "ok"


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_wrong_whatever_other_graders_say(answer: str, gold: str) -> None:
    assert compare(answer, gold) not in {"ok", "grader_error"}


@pytest.mark.parametrize("gold", [r"\frac{1}{2}", r"\sqrt{2}"])
@pytest.mark.parametrize("answer", HANGS)
def test_what_hangs_other_graders_returns_and_the_next_grade_is_right(answer: str, gold: str) -> None:
    began = time.monotonic()
    assert compare(answer, gold) not in {"ok", "grader_timeout"}
    assert time.monotonic() - began < 2.5
    assert compare(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}") == "ok"


def test_a_real_hang_is_killed_counted_apart_and_the_next_grade_is_right() -> None:
    attempt = Attempt(Problem(0, "", "x+y", ""), f"so</think> <answer>{SLOW}</answer>")
    began = time.monotonic()
    verdict = judge_math(attempt)
    assert time.monotonic() - began < 2.5 * PATIENCE  # 2 s of a core, which others may want at the same time
    assert (verdict.correct, verdict.reason, verdict.formatted) == (False, "grader_timeout", True)
    assert verdict.metrics["grader/failed"] == 1.0
    assert compare("y+x", "x+y") == "ok"


def test_judge_threads_neither_disturb_each_other_nor_wait_for_a_hang() -> None:
    asked = [("(x+1)^2", "x^2+2x+1", "ok"), ("(x+1)^2", "x^2+2x+2", "wrong"), (SLOW, "x+y", "grader_timeout")]
    cases = [asked[0], asked[1]] * 20 + [asked[2]] * 2 + [asked[0], asked[1]] * 20
    with ThreadPoolExecutor(6) as pool:
        reasons = list(pool.map(lambda case: compare(case[0], case[1]), cases))
    assert reasons == [case[2] for case in cases]


def test_fuzzed_answers_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_answer, "_verify", lambda said, expected: "wrong")  # the helper is tried below
    pieces = [
        *"0123456789xyz+-*/^_=(){}[]<>,.:;!%$&|~ \n",
        *("\\frac", "\\sqrt", "\\text{", "\\boxed{", "\\left(", "\\in", "cm", "not"),
    ]
    pieces += ["\\", " or ", "\\begin{pmatrix}", "\x00", "\ud800", "½"]
    draw = random.Random("math")
    for _ in range(5000):
        answer, gold = ("".join(draw.choices(pieces, k=draw.choice((1, 5, 40, 400)))) for _ in range(2))
        began = time.process_time()
        assert isinstance(compare(answer, gold), str)
        assert time.process_time() - began < 0.5


def test_fuzzed_answers_never_break_the_helper() -> None:
    draw = random.Random("helper")
    pieces = [*"0123xy+-^_=(){},\\", "\\frac{", "\\sqrt{", "\\pi", "\\cup", "\\begin{pmatrix}", "\ud800"]
    reasons = {compare("".join(draw.choices(pieces, k=draw.choice((3, 8)))), r"\sqrt{2}+x") for _ in range(150)}
    assert reasons <= {"wrong", "unreadable", "refused", "ambiguous", "grader_error", "grader_timeout"}
    assert compare(r"x+\sqrt{2}", r"\sqrt{2}+x") == "ok"


# -------------------------------------------------------------------------------------------------- helper processes


@pytest.fixture
def helpers() -> Iterator[Helpers]:
    made = Helpers(math_verifier.__file__, seconds=0.7)
    yield made
    made.close()


def test_a_helper_that_dies_is_replaced(helpers: Helpers) -> None:
    question = {"gold": "x", "answer": "x"}
    assert helpers.ask(question) is True
    [helper] = helpers._idle
    os.kill(helper._process.pid, signal.SIGKILL)
    helper._process.wait()
    assert helpers.ask(question) is True


def test_a_helper_that_is_stopped_is_killed_and_leaves_no_process(helpers: Helpers) -> None:
    helpers.ask({"gold": "x", "answer": "x"})
    [helper] = helpers._idle
    os.kill(helper._process.pid, signal.SIGSTOP)
    with pytest.raises(HelperTimeout):
        helpers.ask({"gold": "x", "answer": "x"})
    assert helper._process.returncode == -signal.SIGKILL
    assert helpers.ask({"gold": "x", "answer": "x"}) is True


def test_a_question_that_fails_is_an_error_and_the_helper_goes_on(helpers: Helpers) -> None:
    with pytest.raises(HelperError, match="KeyError"):
        helpers.ask({})
    [helper] = helpers._idle
    assert helpers.ask({"gold": "x", "answer": "x"}) is True
    assert helpers._idle == [helper]


def test_a_helper_ends_with_the_process_that_asked(helpers: Helpers) -> None:
    helpers.ask({"gold": "x", "answer": "x"})
    [helper] = helpers._idle
    assert helper._process.stdin is not None
    helper._process.stdin.close()  # what the kernel does when the trainer is killed
    assert helper._process.wait(timeout=10) == 0


def test_a_script_that_is_none_is_an_error_in_words() -> None:
    with pytest.raises(HelperError, match="FileNotFoundError"):
        Helpers("no_such_helper.py").ask({})


# -------------------------------------------------------------------------------------------------------------- task


def judged(completion: str, gold: str, *, truncated: bool = False) -> tuple[bool, bool | None, str]:
    verdict = judge_math(Attempt(Problem(0, "", gold, ""), completion, truncated=truncated))
    return verdict.correct, verdict.flexible, verdict.reason


def test_both_readings_stand_side_by_side() -> None:
    half = r"\frac{1}{2}"
    assert judged("so</think> <answer>1/2</answer>", half) == (True, True, "ok")
    assert judged(r"so</think> <answer>\boxed{\frac{1}{2}}</answer>", half) == (True, True, "ok")
    assert judged(r"so it is \boxed{\frac{1}{2}}.", half) == (False, True, "no_close_think")
    assert judged("so</think> <answer>2</answer>", half) == (False, False, "wrong")
    assert judged("so</think> <answer>1/2</answer>", half, truncated=True) == (False, True, "truncated")
    assert judged("it is 1/2", half) == (False, False, "no_close_think")


@pytest.mark.parametrize(
    ("text", "found"),
    [(r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{1", None), ("no box", None), (r"\boxed{}", "")],
)
def test_the_last_box_with_its_braces_matched(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


ROWS = [
    {"problem": "Half of one?", "solution": r"One half is $\boxed{\frac{1}{2}}$.", "level": "Level 1"},
    {"problem": "Twice the root of three?", "answer": r"2\sqrt{3}", "solution": "no box here"},
]


def test_a_file_of_problems_with_answers_or_solutions(tmp_path: Path) -> None:
    for split in ("train", "test"):
        rows = [{**row, "problem": f"{row['problem']} ({split})"} for row in ROWS]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load_task(TaskConfig(name="math", path=str(tmp_path)))
    assert (task.name, task.label, task.slow) == ("math", f"math_{tmp_path.name}", True)
    assert [task.problem("train", index).answer for index in range(2)] == [r"\frac{1}{2}", r"2\sqrt{3}"]
    problem = task.problem("test", 1)
    assert problem.prompt.endswith("User: Twice the root of three? (test)\nAssistant: <think>")
    assert task.judge(Attempt(problem, r"</think> <answer>\sqrt{12}</answer>")).correct


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "?", "solution": "It is 5."}, r"'solution' has no \\boxed\{\} with the answer"),
        ({"problem": "?"}, "'answer' or 'solution' is missing"),
        ({"problem": "?", "answer": None}, "'answer' is a NoneType"),
        ({"task": "?", "answer": "1"}, "none of problem, question, prompt in it; it has task, answer"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, row: dict[str, str], message: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row))
    with pytest.raises(TaskError, match=message) as error:
        load_task(TaskConfig(name="math", path=str(file))).size("train")
    assert f"{file}, line 1" in str(error.value)


def test_without_math_verify_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS[0]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    from grpo_train.tasks import jsonl

    jsonl.grader_of.cache_clear()
    with pytest.raises(TaskError, match=r"pip install 'grpo-tui\[math\]'"):
        load_task(TaskConfig(name="math", path=str(tmp_path)))
