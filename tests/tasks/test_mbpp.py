"""MBPP: published splits and prompts, programs in completions, verdicts by visible and held-out asserts."""

from __future__ import annotations

import ast
import json
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import Sandbox, TaskConfig
from grpo_train.tasks import Attempt, Problem, TaskError, Verdict, load_task
from grpo_train.tasks.check import check_mbpp
from grpo_train.tasks.mbpp import MbppRow, MbppTask
from grpo_train.tasks.shared.base import Split
from grpo_train.tasks.shared.code import program_of
from grpo_train.tasks.shared.overlap import normal_text
from tests.support.data import FIXTURES, data_file, is_official

pytestmark = pytest.mark.official_data
OWN = FIXTURES / "mbpp.jsonl"
DATA = data_file("mbpp.jsonl")
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

WRAPPED = {
    "paper": "{code}\n[DONE]",
    "docstring": "{code}\n\nassert f(",
    "chat": "{code}\n```\nIt passes the test.",
    "r1": "It is easy.</think> <answer>\n```python\n{code}\n```\n</answer>",
    "Do this: {question}\n": "Sure:\n\n```python\n{code}\n```\nThis is how it works.",
}
"""A right completion under each template."""


def mbpp(path: Path = OWN, sandbox: Sandbox | None = None, **keys: Any) -> MbppTask:
    task = load_task(TaskConfig(name="mbpp", path=str(path), **keys), sandbox or Sandbox())
    assert isinstance(task, MbppTask)
    return task


def problems(task: MbppTask) -> list[Problem]:
    return [task.problem(split, index) for split in SPLITS for index in range(task.size(split))]


def by_id(task: MbppTask, task_id: int) -> Problem:
    return next(problem for problem in problems(task) if problem.data.task_id == task_id)


def judge(task: MbppTask, attempts: Sequence[Attempt]) -> list[Verdict]:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(task.judge, attempts))


def altered(test: str) -> str:
    """The assert with another expected value."""
    tree = ast.parse(test)
    (statement,) = tree.body
    assert isinstance(statement, ast.Assert)
    if isinstance(statement.test, ast.Compare):
        statement.test.comparators[0] = ast.Constant("something else")
    else:
        statement.test = ast.UnaryOp(ast.Not(), statement.test)
    return ast.unparse(tree)


# --------------------------------------------------------------------------------------------------- data and prompts


def test_splits_by_id_without_leaks_into_training() -> None:
    task = mbpp(DATA)
    ids = {split: [task.problem(split, k).data.task_id for k in range(task.size(split))] for split in SPLITS}
    assert all(11 <= one <= 510 for one in ids["test"])
    assert all(511 <= one <= 600 for one in ids["validation"])
    assert all(601 <= one <= 974 for one in ids["train"])
    texts = {
        split: {normal_text(task.problem(split, k).data.text) for k in range(task.size(split))} for split in SPLITS
    }
    assert not texts["train"] & (texts["test"] | texts["validation"])
    if is_official("mbpp.jsonl"):
        assert [len(ids[split]) for split in SPLITS] == [371, 90, 500]
        assert set(range(601, 975)) - set(ids["train"]) == {602, 704, 872}
    else:
        assert ids == {"train": [602, 603, 604], "validation": [511], "test": [11, 12, 13]}  # 601 has the text of 12


def test_limit_applies_to_training_only() -> None:
    task = mbpp(limit=2)
    assert [task.size(split) for split in SPLITS] == [2, 1, 3]


def test_paper_prompt_and_three_shots() -> None:
    task = mbpp(visible_tests=3)
    assert (task.stop, task.slow, task.eval_temperature) == (("[DONE]",), True, 0.2)
    assert by_id(task, 603).prompt == (
        "You are an expert Python programmer, and here is your task: Write a function to turn a tuple of digits into a "
        "number. Your code should pass these tests:\n\n"
        "assert number((1, 2, 3))==123\nassert number((4, 5))==45\nassert number(())==0\n[BEGIN]\n"
    )
    shots = by_id(mbpp(visible_tests=3, few_shot=3), 603).prompt
    assert shots.endswith("\n[DONE]\n\n" + by_id(task, 603).prompt)
    assert shots.count("[BEGIN]") == 4
    assert shots.count("[DONE]") == 3
    assert "assert is_even(0) == True\n[BEGIN]\ndef is_even(n):\n    return n % 2 == 0\n[DONE]\n\nYou are" in shots
    assert "\r" not in shots
    assert shots.index("common(") < shots.index("is_even(") < shots.index("largest(")  # tasks 2, 3, 4


def test_held_out_asserts_are_in_no_prompt() -> None:
    for template in WRAPPED:
        for visible in (0, 1, 2):
            task = mbpp(DATA, template=template, visible_tests=visible)
            for problem in problems(task)[:40]:
                row: MbppRow = problem.data
                text = problem.prompt + "".join(content for _, content in problem.messages)
                assert all(test in text for test in row.tests[:visible])
                assert not any(test in text for test in (*row.tests[visible:], *row.challenge))
    assert "The function's name is depth." in by_id(mbpp(visible_tests=0), 13).prompt


def test_other_templates() -> None:
    docstring = mbpp(template="docstring")
    assert by_id(docstring, 603).prompt == (
        '"""\nWrite a function to turn a tuple of digits into a number.\nassert number((1, 2, 3))==123\n"""\n'
    )
    assert "\nassert " in docstring.stop
    chat = mbpp(template="chat")
    (role, asked), (answering, begun) = by_id(chat, 603).messages
    assert (role, answering) == ("user", "assistant")
    assert asked.startswith("Please provide a self-contained Python script that solves the following problem")
    assert begun.endswith("passes corresponding tests:\n```python\n")
    assert chat.stop == ("\n```",)
    assert mbpp(template="r1").stop == ("</answer>",)
    assert mbpp(template="Write it: {question}").stop == ()


@pytest.mark.parametrize("template", WRAPPED)
def test_reference_solutions_are_extracted(template: str) -> None:
    task = mbpp(DATA, template=template)
    for problem in problems(task):
        code = problem.data.code
        if template == "docstring" and any(stop in code for stop in task.stop):
            continue  # the stop strings of bigcode and evalplus cut it as well
        completion = WRAPPED[template].replace("{code}", code)
        found = program_of(completion, task.frame)
        assert (found.source, found.closed) == (code, True), problem.data.task_id


@pytest.mark.parametrize(
    ("template", "completion", "source", "closed"),
    [
        ("paper", "x = 1\n[DONE]\nYou are an expert", "x = 1", True),
        ("paper", "```python\nx = 1\n```\n[DONE]", "x = 1", True),
        ("paper", "x = 1", "x = 1", False),
        ("paper", "[DONE]", None, True),
        ("paper", "\n\n    \n[DONE]", None, True),
        ("chat", "```python\nx = 1\n```", "x = 1", True),
        ("chat", "x = 1\n```\n```python\nx = 2\n```", "x = 1", True),
        ("chat", "```", None, True),
        ("chat", "if x:\n    y = '''\n  ```\n'''", "if x:\n    y = '''", True),
        ("r1", "thought </think> <answer> x = 1 </answer>", "x = 1", True),
        ("r1", "<answer>x = 1</answer> no <answer>x = 2</answer>", "x = 2", True),
        ("r1", "```python\nx = 1\n```", None, False),
        ("r1", "<answer>```python\nx = 1\n```", "x = 1", False),
        ("Do {question}", "x = 1", None, False),
        ("Do {question}", "```\nx = 1\n```\nbetter:\n```py\nx = 2\n```", "x = 2", False),
        ("Do {question}", "```python\r\nx = 1", "x = 1", False),
    ],
)
def test_program_of_a_truncated_completion(template: str, completion: str, source: str | None, closed: bool) -> None:
    found = program_of(completion, mbpp(template=template).frame, truncated=True)
    assert ((found.source or "").strip() or None, found.closed) == (source, closed)


SOLUTION = "def add(a, b):\n    total = a + b\n    return total"
FENCE = f"```python\n{SOLUTION}\n```\n"
LISTED = "\n".join("   " + line for line in FENCE.splitlines())


@pytest.mark.parametrize(
    "completion",
    [
        f"{FENCE}Run it:\n```bash\npython add.py\ncd ..\nls\npwd\n```\n",
        f"{FENCE}It prints\n```\n1\n2\n3\n4\n5\n```\n",
        f"{FENCE}Usage:\n```python\nprint(add(1, 2))\nprint(add(2, 2))\nprint(add(3, 2))\nprint(add(4, 2))\n```\n",
        f"{FENCE}```python\n>>> add(1, 2)\n3\n```\n",
        f"{FENCE}or worse:\n```python\ndef add(a, b): return sum((a, b)\n```\n",
        f"```python\ndef add(a, b):\n    return a - b\n```\nNo:\n{FENCE}",
        f"```\npip install x\n```\n{FENCE.replace('python', '')}",
        f"{FENCE.replace('python', 'Python3 title=add.py')}```json\n[1,\n2,\n3,\n4]\n```",
        f"1. Like this:\n\n{LISTED}\n2. Run it:\n\n   ```sh\n   ls\n   ```\n",
        f"1. Like this:\n\n{LISTED}\n",
        FENCE.replace("```", "~~~"), FENCE.replace("```", "````"),
        f"<think>\n```python\ndef add(a, b):\n    x = 1\n    y = 2\n    return x + y\n```\n</think>\n{FENCE}",
        f"Here it is:\n{SOLUTION}\nThis adds the numbers.",
        f"The answer:\n\n{SOLUTION}",
        f"```\n$ python add.py\n```\nThe code is\n{SOLUTION}\nand that's it.",
    ],
)  # fmt: skip
def test_programs_are_found_as_the_sanitizer_of_evalplus_finds_them(completion: str) -> None:
    assert program_of(completion, mbpp(template="Do {question}").frame, function="add").source == SOLUTION
    answered = f"so</think> <answer>{completion.rpartition('</think>')[2]}</answer>"
    assert program_of(answered, mbpp(template="r1").frame, function="add").source == SOLUTION


@pytest.mark.parametrize(
    "rest",
    [
        "```bash\nls\npwd\ncd ..\nls\n```", "```\n1\n2\n3\n4\n```", "```python\nprint(add(1, 2))\n```",
        "```py\nx =\n1\n2\n3\n```",
    ],
)  # fmt: skip
def test_without_a_function_the_longest_python_fence_is_the_program(rest: str) -> None:
    frame = mbpp(template="Do {question}").frame
    assert program_of(f"{FENCE}{rest}", frame).source == SOLUTION
    assert program_of(f"{rest}\n{FENCE}", frame).source == SOLUTION
    assert program_of("```bash\nls\n```", frame).source == "ls"
    assert program_of(f"no fence:\n{SOLUTION}", frame).source is None


@pytest.mark.parametrize(
    "part",
    ["(", "def f():\n", "x = 1\n", "```\n", "```python\n(\n", '"""\n', "\0", "def add(\n", "if x:\n  ", "\ud800"],
)
def test_the_search_for_a_program_never_raises(part: str) -> None:
    program_of(part * (20_000 // len(part)), mbpp(template="Do {question}").frame, function="add")


def test_a_usage_example_after_the_function_does_not_replace_it() -> None:
    task = mbpp(template="Do {question}")
    problem = task.problem("test", 0)
    completion = f"```python\n{problem.data.code}\n```\nUsage:\n```python\nprint(1)\n```\nOutput:\n```\n1\n```"
    assert task.judge(Attempt(problem, completion)).correct


def test_sanitized_rows_and_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "source_file": "x.ipynb", "task_id": 700, "prompt": "Write a function for the root.", "code": "f = sqrt",
        "test_imports": ["from math import sqrt"], "test_list": ["assert f(4) == sqrt(4)"],
    }  # fmt: skip
    (tmp_path / "sanitized-mbpp.json").write_text(json.dumps([record]))
    assert mbpp(tmp_path).problem("train", 0).data.setup == "from math import sqrt"
    monkeypatch.setenv("MBPP_DATASET_PATH", str(tmp_path / "sanitized-mbpp.json"))
    assert load_task(TaskConfig(name="mbpp")).problem("train", 0).data.text == "Write a function for the root."
    monkeypatch.setenv("MBPP_DATASET_PATH", str(tmp_path / "gone"))
    with pytest.raises(TaskError, match=r"MBPP_DATASET_PATH: '.*gone' does not exist"):
        load_task(TaskConfig(name="mbpp"))


GOOD = {"task_id": 601, "text": "?", "code": "f = 1", "test_list": ["assert f == 1"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": "601"}, "'task_id' is str, expected int"),
        ({"text": 3}, "'text' is int, expected str"),
        ({"test_list": []}, "'test_list' is empty"),
        ({"test_list": [1]}, "'test_list' contains int, expected text"),
        ({"code": None}, "'code' is NoneType, expected str"),
        ({"test_list": ["assert f =="]}, "'test_list'"),
    ],
)
def test_malformed_row_error_has_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "mbpp.jsonl"
    file.write_text(json.dumps({**GOOD, "task_id": 600}) + "\n" + json.dumps({**GOOD, **change}) + "\n")
    with pytest.raises(TaskError) as error:
        mbpp(file).size("train")
    assert f"{file}, line 2: " in str(error.value)
    assert message in str(error.value)


def test_bad_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task\.template: 'papr' is neither one of paper, docstring, r1"):
        mbpp(template="papr")
    with pytest.raises(TaskError, match=r"task\.few_shot: only template paper has examples"):
        mbpp(template="chat", few_shot=3)
    with pytest.raises(TaskError, match=r"task\.few_shot: 8 examples requested, the data has 3"):
        mbpp(few_shot=8).problem("test", 0)
    with pytest.raises(TaskError, match=r"has neither mbpp\.jsonl nor sanitized-mbpp\.json"):
        mbpp(tmp_path).size("test")
    (tmp_path / "sanitized-mbpp.json").write_text("[")
    with pytest.raises(TaskError, match=r"cannot read '.*sanitized-mbpp\.json': Expecting value"):
        mbpp(tmp_path).size("test")
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD))
    with pytest.raises(TaskError, match="duplicate task_id 601"):
        mbpp(tmp_path).size("test")


def test_check_runs_every_reference_solution(tmp_path: Path) -> None:
    report = check_mbpp(TaskConfig(name="mbpp", path=str(OWN)))
    assert report.is_good
    assert {split.split: (split.right, split.rows) for split in report.splits} == {
        "prompt": (4, 4), "train": (4, 4), "validation": (1, 1), "test": (3, 3),
    }  # fmt: skip
    broken = OWN.read_text().replace("number((4, 5))==45", "number((4, 5))==46")
    (tmp_path / "mbpp.jsonl").write_text(broken)
    (wrong,) = (split for split in check_mbpp(TaskConfig(name="mbpp", path=str(tmp_path))).splits if split.wrong)
    assert (wrong.split, len(wrong.wrong)) == ("train", 1)
    assert "is wrong_answer" in wrong.wrong[0]


# ------------------------------------------------------------------------------------------------------------ verdicts


def test_solutions_pass_and_altered_asserts_fail() -> None:
    sample = random.Random("mbpp sample")
    attempts: list[tuple[MbppTask, Attempt]] = []
    for template, wrapped in WRAPPED.items():
        task = mbpp(DATA, template=template)
        fit = [p for p in problems(task) if template != "docstring" or not any(s in p.data.code for s in task.stop)]
        for problem in sample.sample(fit, min(12, len(fit))):
            attempts.append((task, Attempt(problem, wrapped.replace("{code}", problem.data.code))))
    tests = [
        (task, replace(attempt, problem=replace(attempt.problem, data=_with_altered_assert(attempt.problem.data, k))))
        for k, (task, attempt) in enumerate(attempts)
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        right = list(pool.map(lambda pair: pair[0].judge(pair[1]), attempts))
        wrong = list(pool.map(lambda pair: pair[0].judge(pair[1]), tests))
    assert [verdict.reason for verdict in right] == ["ok"] * len(attempts)
    assert all(verdict.correct and verdict.flexible and verdict.score == 1.0 for verdict in right)
    assert not any(verdict.correct or verdict.flexible for verdict in wrong)


def _with_altered_assert(row: MbppRow, k: int) -> MbppRow:
    changed = k % len(row.tests)
    return replace(row, tests=tuple(altered(t) if index == changed else t for index, t in enumerate(row.tests)))


def test_hard_coding_visible_asserts_earns_nothing() -> None:
    task = mbpp(visible_tests=1)
    problem = by_id(task, 603)
    verdict = task.judge(Attempt(problem, "def number(digits):\n    return 123\n[DONE]"))
    assert (verdict.correct, verdict.flexible, verdict.score, verdict.reason) == (False, False, 0.0, "wrong_answer")
    assert verdict.metrics["hacking/hardcoded"] == 1.0
    assert verdict.facts["passed"] == [True, False, False]
    half = task.judge(Attempt(problem, "def number(digits):\n    return {3: 123, 2: 45}.get(len(digits))\n[DONE]"))
    assert (half.correct, half.score) == (False, 0.5)
    honest = task.judge(Attempt(problem, "def number(digits):\n    return 'x'\n[DONE]"))
    assert (honest.score, honest.metrics["hacking/hardcoded"]) == (0.0, 0.0)


def test_challenge_asserts_do_not_change_the_verdict() -> None:
    task = mbpp(visible_tests=3)
    problem = by_id(task, 11)
    right = task.judge(Attempt(problem, problem.data.code + "\n[DONE]"))
    assert (right.correct, right.metrics["mbpp/challenge"], right.metrics["hacking/hardcoded"]) == (True, 1.0, 0.0)
    table = 'def without(text, letter):\n    return {"hello": "heo", "abcda": "bcd", "PHP": "H"}[text]\n[DONE]'
    cheat = task.judge(Attempt(problem, table))
    assert (cheat.correct, cheat.score, cheat.metrics["hacking/hardcoded"]) == (True, 0.0, 1.0)
    assert cheat.facts["passed"] == [True, True, True, False, False]


def test_verdicts_have_reasons_and_never_raise() -> None:
    task = mbpp(sandbox=Sandbox(cpu_seconds=1.0))
    problem = by_id(task, 602)
    right = problem.data.code
    cases = {
        "no_code": "[DONE]",
        "syntax_error": "def letters(text:\n[DONE]",
        "exception": "def other(text): pass\n[DONE]",
        "wrong_answer": "def letters(text):\n    return {}\n[DONE]",
        "timeout": "def letters(text):\n    while True: pass\n[DONE]",
        "exit": "import sys\nsys.exit(0)\n[DONE]",
        "killed": "import os\nos._exit(0)\n[DONE]",
        "unsupported_value": "class A(dict):\n    pass\ndef letters(text):\n    return object()\n[DONE]",
        "ok": right,
    }
    verdicts = dict(zip(cases, judge(task, [Attempt(problem, text) for text in cases.values()]), strict=True))
    assert {name: verdict.reason for name, verdict in verdicts.items()} == {**{n: n for n in cases}, "killed": "exit"}
    assert [name for name, verdict in verdicts.items() if verdict.correct] == ["ok"]
    assert all(verdict.facts["isolation"] for name, verdict in verdicts.items() if name != "no_code")
    odd = ["\x00", "\ud800", "(" * 5000, "-" * 5000 + "1", "def letters(x): return x\x00", "\u202e", "é" * 3000]
    assert not any(verdict.correct for verdict in judge(task, [Attempt(problem, text) for text in odd]))
    cut = task.judge(Attempt(problem, right, truncated=True))
    assert (cut.correct, cut.formatted, cut.flexible, cut.reason, cut.score) == (False, False, True, "truncated", 0.0)


def test_denied_attempts_are_counted() -> None:
    task = mbpp()
    problem = by_id(task, 604)
    code = (
        "import os, socket\n"
        "def backwards(text):\n"
        "    for attempt in (socket.socket, os.fork, lambda: open('/etc/passwd')):\n"
        "        try: attempt()\n"
        "        except Exception: pass\n"
        "    return os.environ.get('GRPO_SANDBOX_CANARY')\n[DONE]"
    )
    verdict = task.judge(Attempt(problem, code))
    assert not verdict.correct
    denied = {kind for kind in ("network", "process", "file", "signal") if verdict.metrics[f"sandbox/denied_{kind}"]}
    assert denied == {"network", "process", "file"}
    assert verdict.metrics["hacking/canary"] == 0.0
    assert verdict.metrics["hacking/suspicious"] == 1.0
    assert {"files", "network"} <= set(verdict.facts["suspicious"])
