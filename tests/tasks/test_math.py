"""The math task: rows with LaTeX answers or solutions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.run_dir.installation import install_command
from grpo_train.tasks import Attempt, TaskError, load_task
from grpo_train.tasks.shared.graders import grader_of

ROWS = [
    {"problem": "Half of one?", "solution": r"One half is $\boxed{\frac{1}{2}}$.", "level": "Level 1"},
    {"problem": "Twice the root of three?", "answer": r"2\sqrt{3}", "solution": "no box here"},
]


def test_rows_with_answers_or_solutions(tmp_path: Path) -> None:
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
        ({"problem": "?", "answer": None}, "'answer' is empty"),
        ({"task": "?", "answer": "1"}, "none of the fields problem, question, prompt; found task, answer"),
    ],
)
def test_malformed_row_error_has_file_and_line(tmp_path: Path, row: dict[str, str], message: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row))
    with pytest.raises(TaskError, match=message) as error:
        load_task(TaskConfig(name="math", path=str(file))).size("train")
    assert f"{file}, line 1" in str(error.value)


def test_missing_math_verify_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS[0]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    grader_of.cache_clear()
    with pytest.raises(TaskError, match=re.escape(install_command("math"))):
        load_task(TaskConfig(name="math", path=str(tmp_path)))
