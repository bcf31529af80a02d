"""The columns of a row, as reward functions get them."""

from __future__ import annotations

import json
from pathlib import Path

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import load_task


def test_columns_are_those_of_the_row(tmp_path: Path) -> None:
    row = {"prompt": "One and one?", "answer": "#### 2", "solution": "$2$", "level": 3}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    problem = load_task(TaskConfig(name="jsonl", path=str(tmp_path))).problem("test", 0)
    assert problem.answer == "2"
    assert problem.columns == {"question": "One and one?", **row}


def test_generated_tasks_have_question_and_answer() -> None:
    problem = load_task(TaskConfig(name="addition")).problem("train", 0)
    assert problem.columns == {"question": problem.question, "answer": problem.answer}
