"""The jsonl task: file layouts, held-out rows, graders, errors for malformed rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import Attempt, Task, TaskError, load_task
from grpo_train.tasks.jsonl import JsonlTask
from grpo_train.tasks.shared.data_files import split_files
from grpo_train.tasks.shared.overlap import ngrams, normal_text, sharing


def write(file: Path, *rows: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


def row(value: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"What is {value} plus one?", "answer": value + 1, **more}


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [row(value) for value in range(first, first + count)]


def load(path: Path | str, **more: Any) -> JsonlTask:
    task = load_task(TaskConfig(name="jsonl", path=str(path), **more))
    assert isinstance(task, JsonlTask)
    return task


def answered(task: Task, answer: str, split: Any = "test", index: int = 0, **more: Any) -> Any:
    completion = f"so</think> <answer>{answer}</answer>"
    return task.judge(Attempt(task.problem(split, index), completion, **more))


# -------------------------------------------------------------------------------------------------------------- files


def test_directory_with_one_file_per_split(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", *rows(0, 5))
    write(tmp_path / "test.jsonl", *rows(100, 3))
    write(tmp_path / "valid.jsonl", *rows(200, 2))
    task = load(tmp_path, limit=4)
    assert (task.name, task.label) == ("jsonl", f"jsonl_{tmp_path.name}")
    assert [task.size(split) for split in ("train", "validation", "test")] == [4, 2, 3]
    problem = task.problem("train", 1)
    assert (problem.question, problem.answer) == ("What is 1 plus one?", "2")
    assert problem.prompt.endswith("User: What is 1 plus one?\nAssistant: <think>")
    assert problem == task.problem("train", 1)
    assert task.notes == ()


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (("train/part_0.jsonl", "train/part_1.jsonl", "test/part_0.jsonl"), ""),
        (("mine_train.jsonl", "mine_test.jsonl"), ""),
        (("mine_train.jsonl", "mine_test.jsonl"), "mine_train.jsonl"),
        (("mine_train.jsonl", "mine_test.jsonl"), "mine_test.jsonl"),
        (("train.jsonl", "test.jsonl", "other.jsonl"), "train.jsonl"),
        (("train-v2.jsonl", "test-v2.jsonl"), "train-v2.jsonl"),
    ],
)
def test_other_layouts_with_two_splits(tmp_path: Path, names: tuple[str, ...], path: str) -> None:
    for index, name in enumerate(names):
        write(tmp_path / name, *rows(100 * index, 2))
    task = load(tmp_path / path)
    assert task.size("test") == 2
    assert task.size("train") == 2 * sum("train" in name for name in names)


def test_older_layout_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFS_ROOT", str(tmp_path))
    folder = tmp_path / "rlp_datasets" / "processed" / "sums"
    write(folder / "train.jsonl", *rows(0, 5))
    write(folder / "test.jsonl", *rows(100, 3))
    assert load("sums").source.path == folder
    assert load("sums").size("test") == 3
    with pytest.raises(
        TaskError, match=r"task\.path: 'products' does not exist, and neither does .*/processed/products"
    ):
        load("products")


def test_one_file_holds_out_a_tenth_by_text(tmp_path: Path) -> None:
    every = rows(0, 2000)
    task = load(write(tmp_path / "all.jsonl", *every))
    assert task.size("train") + task.size("test") == 2000
    assert 150 < task.size("test") < 250
    assert task.notes == (f"no test file: {task.size('test')} of 2000 problems are held out, by a hash of their text",)
    held_out = {task.problem("test", index).question for index in range(task.size("test"))}
    assert held_out.isdisjoint(task.problem("train", index).question for index in range(task.size("train")))
    random.Random(0).shuffle(every)
    more = load(
        write(tmp_path / "more.jsonl", *every, *rows(5000, 500))
    )  # more rows, another order: no row changes sides
    assert held_out <= {more.problem("test", index).question for index in range(more.size("test"))}
    assert held_out.isdisjoint(more.problem("train", index).question for index in range(more.size("train")))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_few_rows_hold_out_at_least_one(tmp_path: Path, count: int) -> None:
    task = load(write(tmp_path / "few.jsonl", *rows(0, count)))
    assert task.size("test") >= 1
    assert task.size("train") >= 1


def test_one_row_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no test file and too few problems to hold any out"):
        load(write(tmp_path / "one.jsonl", row(1))).size("train")


def test_test_file_alone_cannot_train(tmp_path: Path) -> None:
    task = load(write(tmp_path / "test.jsonl", *rows(0, 3)))
    assert task.size("test") == 3
    with pytest.raises(TaskError, match=r"has no train split; it has test"):
        task.size("train")


def test_training_copies_of_test_rows_are_dropped(tmp_path: Path) -> None:
    copies = [row(7), {**row(8), "prompt": "  WHAT is 8\u00a0plus \n one?"}, {**row(9), "answer": 99}]
    write(tmp_path / "train.jsonl", *rows(0, 5), *copies)
    write(tmp_path / "test.jsonl", *rows(7, 3))
    task = load(tmp_path)
    assert task.size("train") == 5
    assert task.notes == ("3 training problems dropped: identical to test problems",)
    write(tmp_path / "copy" / "test.jsonl", row(7))
    with pytest.raises(TaskError, match=r"every training problem of .* is also a test problem"):
        load(write(tmp_path / "copy" / "train.jsonl", row(7))).size("train")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"has no train\.jsonl and no test\.jsonl, found no \*\.jsonl"),
        (("a.jsonl", "b.jsonl"), r"found a\.jsonl, b\.jsonl"),
        (("a_train.jsonl", "b_train.jsonl"), r"several train files \(a_train\.jsonl, b_train\.jsonl\); set it to one"),
        (("train/data.arrow",), r"convert its \.arrow files to JSONL first"),
    ],
)
def test_directory_without_splits_lists_its_files(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        write(tmp_path / name, row(1))
    with pytest.raises(TaskError, match=message):
        load(tmp_path).size("train")


def test_missing_path_is_an_error() -> None:
    with pytest.raises(TaskError, match=r"task\.path: jsonl needs a file"):
        load_task(TaskConfig(name="jsonl"))
    with pytest.raises(TaskError, match=r"task\.path: '/no/such\.jsonl' does not exist"):
        load("/no/such.jsonl")


def test_split_names_match_whole_words(tmp_path: Path) -> None:
    file = write(tmp_path / "contest_attestation.jsonl", *rows(0, 20))
    assert split_files(file) == {"train": [file]}


# --------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "invalid JSON"),
        ('{"prompt": "' + "a" * 20, "invalid JSON"),
        ("[" * 100_000, "invalid JSON"),
        ('["a"]', "expected an object, found an array"),
        ('{"answer": 1}', r"'prompt' is missing \(task\.prompt_field\)"),
        ('{"prompt": 3, "answer": 1}', r"'prompt' is int, expected text \(task\.prompt_field\)"),
        ('{"prompt": " ", "answer": 1}', r"'prompt' is empty \(task\.prompt_field\)"),
        ('{"prompt": "?", "gold": 1}', r"'answer' is missing \(task\.answer_field\); the row has prompt, gold"),
        (
            '{"prompt": "?", "answer": null}',
            r"'answer' is empty \(task\.grader: number",
        ),
        ('{"prompt": "?", "answer": true}', "'answer' is bool, expected"),
        ('{"prompt": "?", "answer": [1]}', "'answer' is list, expected"),
        ('{"prompt": "?", "answer": ""}', "'answer' is empty"),
        ('{"prompt": "?", "answer": "eighteen"}', "'answer' must be one number, or end in '#### N', found 'eighteen'"),
        ('{"prompt": "?", "answer": "17 or 18"}', "'answer' must be one number"),
        ('{"prompt": "?", "answer": NaN}', "'answer' is NaN"),
        ('{"prompt": "?", "answer": ' + "9" * 5000 + "}", "invalid JSON"),
        ('{"prompt": "?", "answer": 1, "template": 3}', r"'template' is int, expected text \(task\.template_field\)"),
        ('{"prompt": "?", "answer": 1, "template": "r2"}', "'template': 'r2' is neither one of r1, chat, question nor"),
    ],
)
def test_malformed_row_error_has_file_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row(1)) + "\n\n" + line + "\n")
    with pytest.raises(TaskError, match=message) as error:
        load(file).size("train")
    assert str(error.value).startswith(f"{file}, line 3: ")


def test_binary_and_empty_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match="cannot read"):
        load(tmp_path).size("train")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(TaskError, match="has no rows"):
        load(tmp_path / "empty.jsonl").size("train")


def test_fields_and_templates_of_rows(tmp_path: Path) -> None:
    file = write(
        tmp_path / "test.jsonl",
        {"q": "Braces {x} and {question}?\u2028Yes?", "gold": "#### 1,800", "how": "Q: {question}\nA:"},
        {"q": "Two?", "gold": 2, "how": "chat"},
        {"q": "Three?", "gold": "3", "how": None},
    )
    task = load(
        file, prompt_field="q", answer_field="gold", template_field="how", template="question", system_prompt="Hi"
    )
    assert task.problem("test", 0).prompt == "Q: Braces {x} and {question}?\u2028Yes?\nA:"
    assert task.problem("test", 0).answer == "1,800"
    assert task.problem("test", 1).messages[0] == ("system", "Hi")
    assert task.problem("test", 1).messages[1][1].startswith("Two?\n\nReason step by step")
    assert task.problem("test", 2).prompt == "Three?"
    with pytest.raises(TaskError, match=r"task\.template: 'r2'"):
        load(file, template="r2")


# ------------------------------------------------------------------------------------------------------------ graders


def test_number_grader_accepts_every_notation(tmp_path: Path) -> None:
    answers = [18, -1.5, "1,800", "3/4", "so it is\n#### 7", 10**30, 1e-7]
    file = write(tmp_path / "test.jsonl", *({"prompt": f"{a}?", "answer": a} for a in answers))
    task = load(file)
    for index in range(len(answers)):
        verdict = answered(task, task.problem("test", index).answer, index=index)
        assert (verdict.correct, verdict.flexible) == (True, True)
    assert not answered(task, "19").correct
    assert answered(task, "18", truncated=True).reason == "truncated"


def test_text_grader_ignores_case_and_space(tmp_path: Path) -> None:
    task = load(write(tmp_path / "test.jsonl", {"prompt": "Capital of Peru?", "answer": "Lima"}), grader="text")
    assert [answered(task, text).correct for text in ("Lima", " lima\n", "LIMA", "Lima!", "Not Lima", "Limas", "")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "gold", "correct"),
    [
        ("10²", "102", False), ("2³", "23", False), ("½", "1⁄2", False), ("Masse", "Maße", False), ("ﬁx", "fix", False),
        ("MASSE", "Maße", False), ("№ 5", "No 5", False), ("①", "1", False), ("cafe\u0301", "CAFÉ", True),
        ("it’s", "it's", True), ("“Go”", '"go"', True), ("ÅNGSTRÖM", "\u212bngström", True),
    ],
)  # fmt: skip
def test_texts_that_mean_different_things_differ(tmp_path: Path, answer: str, gold: str, correct: bool) -> None:
    task = load(write(tmp_path / "test.jsonl", {"prompt": "?", "answer": gold}), grader="text")
    assert answered(task, answer).correct is correct
    assert answered(task, gold).correct


def test_a_power_is_not_a_copy_of_a_number(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", {"prompt": "52", "answer": "52"})
    write(tmp_path / "train.jsonl", {"prompt": "5²", "answer": "25"}, {"prompt": " 52 ", "answer": "52"})
    task = load(tmp_path)
    assert [task.problem("train", index).question.strip() for index in range(task.size("train"))] == ["5²"]


def test_held_out_rows_stay_those_of_earlier_versions(tmp_path: Path) -> None:
    task = load(write(tmp_path / "all.jsonl", *({"prompt": f"Straße {i}²", "answer": i} for i in range(40))))
    assert [task.problem("test", index).answer for index in range(task.size("test"))] == ["9", "15", "21", "24", "26"]


OWN = """
from grpo_train.tasks import Verdict
def even(attempt):
    if "crash" in attempt.completion:
        raise KeyError("crash")
    number = int(attempt.completion.split("<answer>")[1].split("<")[0])
    return number % attempt.problem.data["modulus"] == 0
def verdict(attempt):
    return Verdict(True, True, "ok", "yes", metrics={"own/length": float(len(attempt.completion))})
def nothing(attempt):
    return None
"""


def test_user_grader_gets_the_whole_row(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    file = write(tmp_path / "test.jsonl", {"prompt": "A multiple of 7?", "answer": {"any": "thing"}, "modulus": 7})
    task = load(file, grader=f"{tmp_path / 'own.py'}:even")
    assert task.problem("test", 0).answer == '{"any": "thing"}'
    assert [answered(task, number).reason for number in ("14", "15")] == ["ok", "wrong"]
    assert [answered(task, number).formatted for number in ("14", "15")] == [True, True]
    cut = answered(task, "14", truncated=True)
    assert (cut.correct, cut.formatted) == (False, False)
    failed = answered(task, "crash")
    assert (failed.correct, failed.reason, failed.metrics) == (False, "grader_error", {"grader/failed": 1.0})
    assert failed.facts == {"grader_error": "KeyError: 'crash'"}
    whole = load(file, grader=f"{tmp_path / 'own.py'}:verdict")
    assert answered(whole, "x").metrics == {"own/length": float(len("so</think> <answer>x</answer>"))}
    with pytest.raises(
        TaskError, match=r"task\.grader: '.*own\.py:nothing' returned None; return a Verdict, or True or"
    ):
        answered(load(file, grader=f"{tmp_path / 'own.py'}:nothing"), "x")


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        ("numbr", r"task\.grader: 'numbr' must be one of number, text, math, none, or your own file.py:function"),
        ("no_such_module:f", r"task\.grader: .*no module 'no_such_module'"),
        ("/no/such.py:f", r"task\.grader: .*no such file: /no/such\.py"),
    ],
)
def test_unknown_grader_error_has_the_key(tmp_path: Path, grader: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        load(write(tmp_path / "test.jsonl", row(1)), grader=grader)


def test_user_task_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(
        "from dataclasses import replace\nfrom grpo_train.tasks import jsonl\n"
        "def load(config): return jsonl.load(config.model_copy(update={'name': 'jsonl'}))\n"
    )
    file = write(tmp_path / "test.jsonl", row(1))
    task = load_task(TaskConfig(name=f"{tmp_path / 'my_task.py'}:load", path=str(file)))
    assert task.size("test") == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", r"task\.name: '.*my_task\.py:load' raised ZeroDivisionError: division by zero"),
        (
            "return {'name': 'mine'}",
            r"returned a dict, which has no name, label, .*judge: it must take",
        ),
    ],
)
def test_broken_user_task_is_an_error(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "my_task.py").write_text(f"def load(config):\n    {body}\n")
    with pytest.raises(TaskError, match=message):
        load_task(TaskConfig(name=f"{tmp_path / 'my_task.py'}:load"))


def test_user_grader_with_array_or_exit(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import numpy\ndef array(attempt): return numpy.array([1, 0])\ndef leaves(attempt): raise SystemExit\n"
    )
    file = write(tmp_path / "test.jsonl", row(1))
    with pytest.raises(TaskError, match=r"odd\.py:array' returned array"):
        answered(load(file, grader=f"{tmp_path / 'odd.py'}:array"), "x")
    assert answered(load(file, grader=f"{tmp_path / 'odd.py'}:leaves"), "x").reason == "grader_error"


# ------------------------------------------------------------------------------------------------------------ overlap


def test_texts_that_share_13_words() -> None:
    words = [f"word{number}" for number in range(20)]
    assert normal_text("  The\u00a0QUICK\n fox’s ") == "the quick fox's"
    assert len(ngrams(" ".join(words))) == 8
    assert ngrams("too short") == set()
    copied = "Before, " + ", ".join(words[3:16]).upper() + "! After."
    assert sharing([copied, " ".join(words[3:15])], [" ".join(words)]) == [0]
