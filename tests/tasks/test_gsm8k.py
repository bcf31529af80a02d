"""GSM8K: files, splits, errors for missing and malformed data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import Attempt, TaskError, load_task
from tests.support.data import is_official

ROW = json.dumps({"question": "Braces {x} and {question}?", "answer": "#### 1,800"})


def write_rows(file: Path, *rows: str) -> Path:
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


def test_directory_with_both_splits(gsm8k_dir: Path) -> None:
    task = load_task(TaskConfig(name="gsm8k", path=str(gsm8k_dir)))
    assert (task.name, task.label) == ("gsm8k", "gsm8k_r1_template")
    problem = task.problem("test", 1)
    assert problem.prompt.startswith("A conversation between User and Assistant. The User asks a question")
    assert problem.prompt.endswith(f"</answer>.\nUser: {problem.question}\nAssistant: <think>")
    assert problem == task.problem("test", 1)
    assert task.judge(Attempt(problem, f"so</think> <answer>{problem.answer}</answer>")).correct
    if is_official("gsm8k_test.jsonl"):
        assert (task.size("train"), task.size("test")) == (7473, 1319)


def test_label_as_name_and_either_file_as_path(gsm8k_dir: Path) -> None:
    whole = load_task(TaskConfig(name="gsm8k", path=str(gsm8k_dir)))
    for file in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        task = load_task(TaskConfig(name="gsm8k_r1_template", path=str(gsm8k_dir / file)))
        for split in ("train", "test"):
            assert task.size(split) == whole.size(split)
            assert task.problem(split, 0) == whole.problem(split, 0)


def test_limit_applies_to_training_only(gsm8k_dir: Path) -> None:
    task = load_task(TaskConfig(name="gsm8k", path=str(gsm8k_dir), limit=3))
    assert task.size("train") == 3
    assert task.size("test") > 3


def test_test_file_alone_cannot_train(tmp_path: Path) -> None:
    task = load_task(TaskConfig(path=str(write_rows(tmp_path / "test.jsonl", ROW, "", ROW))))
    assert task.size("test") == 2
    assert "User: Braces {x} and {question}?\n" in task.problem("test", 1).prompt
    with pytest.raises(
        TaskError, match=r"test\.jsonl' is the test split .* no train split beside it; looked for train"
    ):
        task.size("train")


def test_other_file_alone_is_the_train_split(tmp_path: Path) -> None:
    task = load_task(TaskConfig(path=str(write_rows(tmp_path / "mine.jsonl", ROW))))
    assert task.size("train") == 1
    with pytest.raises(TaskError, match=r"no test split beside it; looked for test\.jsonl, gsm8k_test\.jsonl"):
        task.size("test")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", "invalid JSON"),
        ('"a text"', "expected an object, found a string"),
        ('{"answer": "#### 1"}', "'question' is missing"),
        ('{"question": "?", "answer": 1}', "'answer' is int, expected text"),
        ('{"question": "?", "answer": "18"}', "must end in '#### N'"),
        ('{"question": "?", "answer": "#### eighteen"}', "must end in '#### N'"),
    ],
)
def test_malformed_row_error_has_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    task = load_task(TaskConfig(path=str(write_rows(tmp_path / "train.jsonl", ROW, row))))
    with pytest.raises(TaskError) as error:
        task.size("train")
    assert f"{tmp_path / 'train.jsonl'}, line 2: " in str(error.value)
    assert message in str(error.value)


def test_empty_and_binary_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("\n")
    (tmp_path / "test.jsonl").write_bytes(b"\xff\xfe\x00")
    task = load_task(TaskConfig(path=str(tmp_path)))
    with pytest.raises(TaskError, match="has no rows"):
        task.size("train")
    with pytest.raises(TaskError, match="cannot read"):
        task.size("test")


def test_byte_order_mark_and_older_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFS_ROOT", str(tmp_path))
    folder = tmp_path / "rlp_datasets" / "processed" / "gsm"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text(ROW + "\n", encoding="utf-8-sig")
    assert load_task(TaskConfig(path="gsm")).size("train") == 1
