"""The code_execution task: requests, scores from the real sandbox, programs in completions."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import Config, Sandbox, TaskConfig
from grpo_train.rewards import load_rewards
from grpo_train.sandbox import run_program
from grpo_train.tasks import Attempt, TaskError, Verdict, load_task
from grpo_train.tasks.code_execution import CodeExecutionTask
from grpo_train.tasks.shared.base import means
from grpo_train.tasks.shared.code import suspicious
from grpo_train.tasks.shared.code_requests import requests


def code(**keys: Any) -> CodeExecutionTask:
    task = load_task(TaskConfig(name="code_execution", **keys), Sandbox(cpu_seconds=1.0))
    assert isinstance(task, CodeExecutionTask)
    return task


def judge(completion: str, task: CodeExecutionTask | None = None, index: int = 0) -> Verdict:
    task = task or code()
    return task.judge(Attempt(task.problem("train", index), completion))


def test_requests_are_distinct_and_fixed() -> None:
    task = code()
    assert (task.name, task.slow, task.rewards, task.stop) == ("code_execution", True, ("score",), ("\n```",))
    train, test = ({task.problem(split, k).prompt for k in range(task.size(split))} for split in ("train", "test"))
    assert (len(train), len(test)) == (4096, 256)
    assert not train & test
    assert [task.problem(split, 5).question for split in ("train", "test")] == [
        "Print these numbers in ascending order, one per line: 26, 22, 2, 18.",
        "Print a triangle of 7 lines, with one * in the first and one more in each.",
    ]
    assert code(level=10).problem("test", 0).question.count("Then print") == 3
    with pytest.raises(TaskError, match="no validation split"):
        task.size("validation")


SOLUTIONS = {
    "divides": "print(*[k for k in range(1, numbers[1] + 1) if k % numbers[2] == 0], sep='\\n')",
    "the numbers from": "print(*range(numbers[0], numbers[1] + 1), sep='\\n')",
    "the squares of": "print(*[k * k for k in range(numbers[1], numbers[1] + numbers[0])], sep='\\n')",
    "the sum of all": "print(sum(range(numbers[0], numbers[1] + 1)))",
    "the greatest common": "import math\nprint(math.gcd(*numbers))",
    "these numbers in ascending": "print(*sorted(numbers), sep='\\n')",
    "the largest of": "print(max(numbers) - min(numbers))",
    "multiples of": "print(*[numbers[1] * k for k in range(1, numbers[0] + 1)], sep='\\n')",
    "the words": "a, b = text.split()[3], text.split()[5]\nprint(a[::-1], b[::-1])",
    "the word": "print(*[text.split()[3]] * numbers[0], sep='\\n')",
    "a triangle": "print(*[text.split('with one ')[1][0] * k for k in range(1, numbers[0] + 1)], sep='\\n')",
    "how often": "print(' '.join(text.rstrip('.').split()[-2:]).count(text.split()[5]))",
    "as a binary": "print(format(numbers[0], 'b'))",
    "and then each": "a, b = numbers[1:]\nfor _ in range(numbers[0]):\n    print(a)\n    a, b = b, a + b",
}
"""Words of a request and a program that fulfills it, written independently of the generator."""


def test_expected_outputs_match_reference_programs() -> None:
    preamble = "import re\ntext = {!r}\nnumbers = [int(n) for n in re.findall(r'\\d+', text)]\n"
    seen: dict[str, int] = {}
    for request in requests(3, 400):
        kind = next(words for words in SOLUTIONS if words in request.text)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 2:
            program = preamble.format(request.text) + SOLUTIONS[kind]
            assert run_program(program).stdout.split() == request.output.split(), request
    assert set(seen) == set(SOLUTIONS)


@pytest.mark.parametrize(
    ("program", "reason", "score"),
    [
        ("print(1)", "ok", 1.0),
        ("import sys\nsys.stdout.write('x')", "ok", 1.0),
        ("print(1)\nraise SystemExit", "ok", 1.0),
        ("x = 1", "silent", 0.5),
        ("print()", "silent", 0.5),
        ("import sys\nprint(1, file=sys.stderr)", "silent", 0.5),
        ("print(1", "syntax_error", -0.5),
        ("if True:\nprint(1)", "syntax_error", -0.5),
        ("print(1)\x00", "syntax_error", -0.5),
        ("", "no_code", -0.5),
        ("   \n", "no_code", -0.5),
        ("# print(1)\n  # nothing", "no_code", -0.5),
        ("print(1)\n1 / 0", "runtime_error", -1.0),
        ("print(open('/etc/passwd').read())", "runtime_error", -1.0),
        ("print(input())", "runtime_error", -1.0),
        ("print(1)\nraise SystemExit(2)", "runtime_error", -1.0),
        ("while True: pass", "timeout", -1.0),
        ("x = bytearray(8 << 30)\nprint(1)", "memory", -1.0),
        ("print(1, flush=True)\nimport os\nos._exit(0)", "killed", -1.0),
        ("while True: print('x' * 1000)", "output_limit", -1.0),
    ],
)
def test_scores_of_programs(program: str, reason: str, score: float) -> None:
    verdict = judge(f"{program}\n```")
    assert (verdict.reason, verdict.score) == (reason, score)
    assert verdict.correct == (score == 1.0)
    assert verdict.metrics["reward/avg_batch_reward"] == score
    assert verdict.metrics["reward/successful_predictions_count"] == float(score > 0)
    assert json.dumps(dict(verdict.facts))
    if reason != "no_code":
        assert verdict.facts["isolation"] in ("strong", "full")


def test_truncated_program_has_a_score_but_is_wrong() -> None:
    task = load_task(TaskConfig(name="code_execution"))
    verdict = task.judge(Attempt(task.problem("train", 0), "print(1)\nprint(2)", truncated=True))
    assert (verdict.score, verdict.correct, verdict.formatted) == (1.0, False, False)


def test_batch_metrics_are_means_and_counts() -> None:
    batch = means([judge(text).metrics for text in ("print(1)", "x = 1", "print(", "1 / 0")])
    assert batch["reward/avg_batch_reward"] == 0.0
    assert batch["reward/successful_predictions_count"] == 2.0


def test_score_is_the_reward() -> None:
    config = Config.model_validate({"task": {"name": "code_execution"}})
    task = code()
    rewards = load_rewards(task, config)
    attempt = Attempt(task.problem("train", 0), "x = 1")
    assert rewards(attempt, task.judge(attempt)) == {"score": 0.5}


def test_right_output_is_measured_beside_the_score() -> None:
    task = code()
    assert "ascending order, one per line: 26, 22, 2, 18." in task.problem("train", 5).question
    right, hollow = judge("print(2, 18, 22, 26, sep='\\n')\n```", task, 5), judge("print(1)\n```", task, 5)
    assert (right.score, right.metrics["code_execution/right_output"]) == (1.0, 1.0)
    assert (hollow.score, hollow.metrics["code_execution/right_output"]) == (1.0, 0.0)


def test_templates() -> None:
    chat = code(template="chat", system_prompt="Be brief.")
    problem = chat.problem("train", 5)
    assert [role for role, _ in problem.messages] == ["system", "user", "assistant"]
    assert problem.messages[-1][1].endswith("```python\n")
    assert judge("print(1)\n```\nDone.", chat).score == 1.0
    r1 = code(template="r1")
    assert r1.stop == ("</answer>",)
    assert judge("So: ```python\nprint(2\n```</think> <answer>print(1)</answer>", r1).score == 1.0
    assert judge("```python\nprint(1)\n```", r1).reason == "no_code"
    own = code(template="Task: {question}\nProgram:\n```py\n")
    assert own.problem("train", 5).prompt.endswith("2, 18.\nProgram:\n```py\n")
    assert own.stop == ("\n```",)
    with pytest.raises(TaskError, match=r"task\.template: 'compcat' is neither one of compact, r1, chat, question"):
        code(template="compcat")


def test_requests_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"ask": "Print 1.", "answer": "1"}\n\n{"ask": "Print {x}."}\n')
    task = code(path=str(tmp_path), prompt_field="ask")
    assert task.size("train") == 2
    assert task.problem("train", 1).prompt == "Print {x}.\n```python\n"
    assert judge("print(1)", task).metrics["code_execution/right_output"] == 1.0
    assert "code_execution/right_output" not in judge("print(1)", task, 1).metrics
    with pytest.raises(TaskError, match="no test split"):
        task.size("test")
    with pytest.raises(TaskError, match=r"train\.jsonl, line 1: 'prompt' must be a text \(task\.prompt_field"):
        code(path=str(tmp_path)).size("train")
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(TaskError, match=r"broken\.jsonl, line 1: invalid JSON"):
        code(path=str(tmp_path / "broken.jsonl")).size("train")
    with pytest.raises(TaskError, match="does not exist"):
        code(path=str(tmp_path / "gone.jsonl"))


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("import math\nprint(math.sqrt(4))", []),
        ("def system(x):\n    return x\nevaluate = exit_code = opened = 1", ["processes"]),
        ("import sys; sys.exit(0)", ["exit"]),
        ("class A:\n    def __eq__(self, other): return True", ["equality"]),
        ("import inspect", ["frames"]),
        ("open('x').read()", ["files"]),
        ("import ctypes, socket", ["native", "network"]),
    ],
)
def test_suspicious_code_is_flagged(source: str, kinds: list[str]) -> None:
    assert suspicious(source) == kinds


def test_programs_print_nothing_to_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge("print('\\d', 1 is 1)\n```")
    assert capfd.readouterr() == ("", "")
