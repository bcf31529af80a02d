"""The reasoning_gym task, on a stand-in of the library and on the library itself if it is installed."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.run_dir.installation import install_command
from grpo_train.tasks import Attempt, Task, TaskError, load_task, reasoning_gym

INSTALLED = importlib.util.find_spec("reasoning_gym") is not None
STAND_IN = {
    "__init__.py": "from .factory import create_dataset\n",
    "factory.py": """
import random
class Sums:
    def __init__(self, seed, size): self.seed, self.size = seed, size
    def __getitem__(self, index):
        draw = random.Random(self.seed + index)
        a, b = draw.randrange(30), draw.randrange(30)
        return {"question": f"{a} + {b}?", "answer": str(a + b), "metadata": {}}
    def score_answer(self, answer, entry):
        if answer == entry["answer"]: return 1.0
        return len(entry["answer"]) / len(answer) if entry["answer"] in answer else 0.01
class Evaluated(Sums):
    def score_answer(self, answer, entry):
        return 1.0 if eval(answer) == int(entry["answer"]) else 0.05
class Few(Sums):
    def __getitem__(self, index): return {"question": "1 + 1?", "answer": "2", "metadata": {}}
DATASETS = {"leg_counting": Sums, "countdown": Evaluated, "coin_flip": Few}
def create_dataset(name, seed, size): return DATASETS[name](seed, size)
""",
}


def clear_caches() -> None:
    """Drop helpers and problems of the library of another test."""
    for cached in (reasoning_gym._helpers, reasoning_gym._entry, reasoning_gym._test_questions):
        cached.cache_clear()


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "packages" / "reasoning_gym"
    package.mkdir(parents=True)
    for name, text in STAND_IN.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    clear_caches()
    yield
    clear_caches()


@pytest.fixture(params=["stand-in", *(["library"] if INSTALLED else [])])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "stand-in":
        request.getfixturevalue("stand_in")
    monkeypatch.setitem(reasoning_gym.SIZES, "test", 50)
    clear_caches()
    yield request.param
    clear_caches()


def load(dataset: str, **more: Any) -> Task:
    return load_task(TaskConfig(name="reasoning_gym", dataset=dataset, **more))


def answered(task: Task, answer: str, *, index: int = 0, **more: Any) -> Any:
    return task.judge(Attempt(task.problem("train", index), f"so</think> <answer>{answer}</answer>", **more))


def test_problems_are_fixed_and_splits_disjoint(library: str) -> None:
    task = load("leg_counting", limit=300)
    assert (task.label, task.slow, task.size("train"), task.size("test")) == (
        "reasoning_gym_leg_counting",
        True,
        300,
        50,
    )
    first = [task.problem("train", index) for index in range(100)]
    held_out = {task.problem("test", index).question for index in range(50)}
    assert held_out.isdisjoint(problem.question for problem in first)
    assert first[3].prompt.endswith(f"User: {first[3].question}\nAssistant: <think>")
    clear_caches()
    assert [task.problem("train", index) for index in reversed(range(100))] == first[::-1]
    with pytest.raises(TaskError, match="has no validation split"):
        task.size("validation")


def test_partial_credit_counts_as_wrong(library: str) -> None:
    task = load("leg_counting")
    gold = task.problem("train", 0).answer
    right = answered(task, gold)
    assert (right.correct, right.flexible, right.score, right.reason) == (True, True, 1.0, "ok")
    for answer in (f"The answer is {gold}", f"{gold} 7", "x", "", "a" * 5000):
        wrong = answered(task, answer)
        assert (wrong.correct, wrong.score, wrong.formatted) == (False, 0.0, True)
    cut = answered(task, gold, truncated=True)
    assert (cut.correct, cut.flexible, cut.score, cut.reason) == (False, True, 0.0, "truncated")
    untagged = task.judge(Attempt(task.problem("train", 0), gold))
    assert (untagged.correct, untagged.flexible, untagged.reason) == (False, False, "no_close_think")


def test_evaluated_answers_cannot_write_or_hang(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning_gym, "SCORE_SECONDS", 1.0)
    task = load("countdown")
    gold = task.problem("train", 0).answer
    assert answered(task, gold).correct
    for answer in (f"open('{tmp_path / 'evil'}', 'w')", "exit()", "__import__('os').abort()", "1/0", "9**9**9**9**9"):
        assert not answered(task, answer).correct
    assert not (tmp_path / "evil").exists()
    assert answered(task, gold).correct


def test_dataset_with_one_problem_is_an_error(stand_in: None) -> None:
    task = load("coin_flip")
    assert task.problem("test", 0).answer == "2"
    with pytest.raises(TaskError, match=r"task\.dataset: 'coin_flip' has too few problems for disjoint"):
        task.problem("train", 0)


def test_unusable_dataset_is_refused(stand_in: None) -> None:
    with pytest.raises(TaskError, match=r"list_functions cannot be used: its problems depend on the order"):
        load("list_functions")


def test_unknown_names_are_errors(library: str) -> None:
    with pytest.raises(TaskError, match=r"has no dataset 'leg_countin'; did you mean leg_counting"):
        load("leg_countin")
    with pytest.raises(TaskError, match=r"task\.template: 'r2'"):
        load("leg_counting", template="r2")


def test_missing_library_error_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TaskError, match=re.escape(install_command("gym"))):
        load("leg_counting")


def test_broken_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}")
    clear_caches()
    with pytest.raises(
        TaskError, match=r"reasoning-gym failed: ModuleNotFoundError: No module named 'no_such_library'"
    ):
        load("leg_counting")
    clear_caches()
