"""The addition task: splits and answers of any length."""

from __future__ import annotations

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import Attempt, load_task


def test_addition_holds_out_1024_problems() -> None:
    task = load_task(TaskConfig(name="addition"))
    assert (task.name, task.label, task.stop) == ("addition", "addition", ("</answer>",))
    assert (task.size("train"), task.size("test")) == (90 * 90 - 1024, 1024)
    train = {task.problem("train", index).prompt for index in range(task.size("train"))}
    test = {task.problem("test", index).prompt for index in range(task.size("test"))}
    assert len(train) == task.size("train")
    assert len(test) == 1024
    assert not train & test
    # The split must not change between versions of Python or of this code: old checkpoints were trained on it.
    assert [task.problem(split, 0).prompt for split in ("train", "test")] == ["13+17=", "55+30="]


@pytest.mark.parametrize("digits", range(1, 7))
def test_addition_of_any_length(digits: int) -> None:
    task = load_task(TaskConfig(name="addition", digits=digits, limit=10))
    assert task.size("train") == 10
    assert task.size("test") == (20 if digits == 1 else 1024)
    problem = task.problem("test", 3)
    a, b = problem.question.split("+")
    assert len(a) == len(b) == digits
    assert problem.answer == str(int(a) + int(b))
    assert task.judge(Attempt(problem, f"<think></think><answer>{problem.answer}</answer>")).correct
