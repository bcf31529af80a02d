"""Problems of a user's own: where files lie, what is held out, how answers are compared, what a bad row says."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import Task as TaskConfig
from grpo_train.tasks import Attempt, Task, TaskError, load_task
from grpo_train.tasks.jsonl import JsonlTask
from grpo_train.tasks.shared.data_files import split_files
from grpo_train.tasks.shared.overlap import ngrams, normal_text, sharing


def write(file: Path, *rows: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"What is {number} plus one?", "answer": number + 1, **more}


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [row(number) for number in range(first, first + count)]


def load(path: Path | str, **more: Any) -> JsonlTask:
    task = load_task(TaskConfig(name="jsonl", path=str(path), **more))
    assert isinstance(task, JsonlTask)
    return task


def say(task: Task, answer: str, split: Any = "test", index: int = 0, **more: Any) -> Any:
    completion = f"so</think> <answer>{answer}</answer>"
    return task.judge(Attempt(task.problem(split, index), completion, **more))


# -------------------------------------------------------------------------------------------------------------- files


def test_a_directory_with_a_file_for_each_split(tmp_path: Path) -> None:
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
    assert (task.data.notes, task.data.dropped) == ((), 0)


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
def test_other_layouts_of_two_splits(tmp_path: Path, names: tuple[str, ...], path: str) -> None:
    for place, name in enumerate(names):
        write(tmp_path / name, *rows(100 * place, 2))
    task = load(tmp_path / path)
    assert task.size("test") == 2
    assert task.size("train") == 2 * sum("train" in name for name in names)


def test_the_older_layout_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFS_ROOT", str(tmp_path))
    folder = tmp_path / "rlp_datasets" / "processed" / "sums"
    write(folder / "train.jsonl", *rows(0, 5))
    write(folder / "test.jsonl", *rows(100, 3))
    assert load("sums").path == folder
    assert load("sums").size("test") == 3
    with pytest.raises(
        TaskError, match=r"task\.path: 'products' does not exist, and neither does .*/processed/products"
    ):
        load("products")


def test_one_file_holds_out_a_tenth_by_its_text(tmp_path: Path) -> None:
    every = rows(0, 2000)
    task = load(write(tmp_path / "all.jsonl", *every))
    assert task.size("train") + task.size("test") == 2000
    assert 150 < task.size("test") < 250
    assert task.data.notes == (
        f"no test file: {task.size('test')} of 2000 problems are held out, by a hash of their text",
    )
    held_out = {task.problem("test", index).question for index in range(task.size("test"))}
    assert held_out.isdisjoint(task.problem("train", index).question for index in range(task.size("train")))
    random.Random(0).shuffle(every)
    more = load(
        write(tmp_path / "more.jsonl", *every, *rows(5000, 500))
    )  # other rows, another order: none changes sides
    assert held_out <= {more.problem("test", index).question for index in range(more.size("test"))}
    assert held_out.isdisjoint(more.problem("train", index).question for index in range(more.size("train")))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_a_few_rows_hold_out_one_at_least(tmp_path: Path, count: int) -> None:
    task = load(write(tmp_path / "few.jsonl", *rows(0, count)))
    assert task.size("test") >= 1
    assert task.size("train") >= 1


def test_one_row_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no test file and too few problems to hold any out"):
        load(write(tmp_path / "one.jsonl", row(1))).size("train")


def test_a_test_file_alone_does_not_train(tmp_path: Path) -> None:
    task = load(write(tmp_path / "test.jsonl", *rows(0, 3)))
    assert task.size("test") == 3
    with pytest.raises(TaskError, match=r"has no train split; it has test"):
        task.size("train")


def test_nothing_of_train_is_in_test(tmp_path: Path) -> None:
    copies = [row(7), {**row(8), "prompt": "  WHAT is 8\u00a0plus \n one?"}, {**row(9), "answer": 99}]
    write(tmp_path / "train.jsonl", *rows(0, 5), *copies)
    write(tmp_path / "test.jsonl", *rows(7, 3))
    task = load(tmp_path)
    assert (task.size("train"), task.data.dropped) == (5, 3)
    assert task.data.notes == ("3 training problems are dropped: they are test problems, word for word",)
    write(tmp_path / "copy" / "test.jsonl", row(7))
    with pytest.raises(TaskError, match=r"every training problem of .* is a test problem, too"):
        load(write(tmp_path / "copy" / "train.jsonl", row(7))).size("train")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"has no train\.jsonl and no test\.jsonl, found no \*\.jsonl"),
        (("a.jsonl", "b.jsonl"), r"found a\.jsonl, b\.jsonl"),
        (("a_train.jsonl", "b_train.jsonl"), r"several train files \(a_train\.jsonl, b_train\.jsonl\); give one"),
        (("train/data.arrow",), r"its \.arrow files must be written as JSONL first"),
    ],
)
def test_a_directory_without_splits_says_what_was_found(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        write(tmp_path / name, row(1))
    with pytest.raises(TaskError, match=message):
        load(tmp_path).size("train")


def test_no_path_and_a_path_that_is_not_there() -> None:
    with pytest.raises(TaskError, match=r"task\.path: jsonl needs a JSONL file"):
        load_task(TaskConfig(name="jsonl"))
    with pytest.raises(TaskError, match=r"task\.path: '/no/such\.jsonl' does not exist"):
        load("/no/such.jsonl")


def test_a_word_that_only_contains_test_is_no_split(tmp_path: Path) -> None:
    file = write(tmp_path / "contest_attestation.jsonl", *rows(0, 20))
    assert split_files(file) == {"train": [file]}


# --------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "this is no JSON object"),
        ('{"prompt": "' + "a" * 20, "this is no JSON object"),
        ("[" * 100_000, "this is no JSON object"),
        ('["a"]', "expected an object, found a list"),
        ('{"answer": 1}', r"'prompt' is missing \(task\.prompt_field\)"),
        ('{"prompt": 3, "answer": 1}', r"'prompt' is a int, not a text \(task\.prompt_field\)"),
        ('{"prompt": " ", "answer": 1}', r"'prompt' is empty \(task\.prompt_field\)"),
        ('{"prompt": "?", "gold": 1}', r"'answer' is missing \(task\.answer_field\); the row has prompt, gold"),
        (
            '{"prompt": "?", "answer": null}',
            r"'answer' is a NoneType, neither a text nor a number \(task\.grader: number",
        ),
        ('{"prompt": "?", "answer": true}', "'answer' is a bool, neither"),
        ('{"prompt": "?", "answer": [1]}', "'answer' is a list, neither"),
        ('{"prompt": "?", "answer": ""}', "'answer' is empty"),
        ('{"prompt": "?", "answer": "eighteen"}', "'answer' must be one number, or end in '#### N', found 'eighteen'"),
        ('{"prompt": "?", "answer": "17 or 18"}', "'answer' must be one number"),
        ('{"prompt": "?", "answer": NaN}', "'answer' must be one number"),
        ('{"prompt": "?", "answer": ' + "9" * 5000 + "}", "this is no JSON object"),
        ('{"prompt": "?", "answer": 1, "template": 3}', r"'template' is a int, not a text \(task\.template_field\)"),
        ('{"prompt": "?", "answer": 1, "template": "r2"}', "'template': 'r2' is neither one of r1, chat, question nor"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row(1)) + "\n\n" + line + "\n")
    with pytest.raises(TaskError, match=message) as error:
        load(file).size("train")
    assert str(error.value).startswith(f"{file}, line 3: ")


def test_a_file_that_is_no_text_and_one_without_rows(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match="cannot read"):
        load(tmp_path).size("train")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(TaskError, match="has no rows"):
        load(tmp_path / "empty.jsonl").size("train")


def test_fields_and_templates(tmp_path: Path) -> None:
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


def test_numbers_of_every_kind(tmp_path: Path) -> None:
    answers = [18, -1.5, "1,800", "3/4", "so it is\n#### 7", 10**30, 1e-7]
    file = write(tmp_path / "test.jsonl", *({"prompt": f"{a}?", "answer": a} for a in answers))
    task = load(file)
    for index in range(len(answers)):
        verdict = say(task, task.problem("test", index).answer, index=index)
        assert (verdict.correct, verdict.flexible) == (True, True)
    assert not say(task, "19").correct
    assert say(task, "18", truncated=True).reason == "truncated"


def test_texts_are_compared_whatever_their_case_and_space(tmp_path: Path) -> None:
    task = load(write(tmp_path / "test.jsonl", {"prompt": "Capital of Peru?", "answer": "Lima"}), grader="text")
    assert [say(task, text).correct for text in ("Lima", " lima\n", "LIMA", "Lima!", "Not Lima", "Limas", "")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


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


def test_a_grader_of_a_users_own_sees_the_whole_row(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    file = write(tmp_path / "test.jsonl", {"prompt": "A multiple of 7?", "answer": {"any": "thing"}, "modulus": 7})
    task = load(file, grader=f"{tmp_path / 'own.py'}:even")
    assert task.problem("test", 0).answer == '{"any": "thing"}'
    assert [say(task, number).reason for number in ("14", "15")] == ["ok", "wrong"]
    assert not say(task, "14", truncated=True).correct
    failed = say(task, "crash")
    assert (failed.correct, failed.reason, failed.metrics) == (False, "grader_error", {"grader/failed": 1.0})
    assert failed.facts == {"grader_error": "KeyError: 'crash'"}
    whole = load(file, grader=f"{tmp_path / 'own.py'}:verdict")
    assert say(whole, "x").metrics == {"own/length": float(len("so</think> <answer>x</answer>"))}
    with pytest.raises(
        TaskError, match=r"task\.grader: '.*own\.py:nothing' returned None; return a Verdict, or True or"
    ):
        say(load(file, grader=f"{tmp_path / 'own.py'}:nothing"), "x")


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        ("numbr", r"task\.grader: 'numbr' is none of number, text, math, nor your own module:function"),
        ("no_such_module:f", r"task\.grader: .*no module 'no_such_module'"),
        ("/no/such.py:f", r"task\.grader: .*no such file: /no/such\.py"),
    ],
)
def test_a_grader_that_is_none_is_named_with_its_key(tmp_path: Path, grader: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        load(write(tmp_path / "test.jsonl", row(1)), grader=grader)


def test_a_task_of_a_users_own(tmp_path: Path) -> None:
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
def test_a_task_of_a_users_own_that_is_none(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "my_task.py").write_text(f"def load(config):\n    {body}\n")
    with pytest.raises(TaskError, match=message):
        load_task(TaskConfig(name=f"{tmp_path / 'my_task.py'}:load"))


def test_an_array_is_no_verdict_and_leaving_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import numpy\ndef array(attempt): return numpy.array([1, 0])\ndef leaves(attempt): raise SystemExit\n"
    )
    file = write(tmp_path / "test.jsonl", row(1))
    with pytest.raises(TaskError, match=r"odd\.py:array' returned array"):
        say(load(file, grader=f"{tmp_path / 'odd.py'}:array"), "x")
    assert say(load(file, grader=f"{tmp_path / 'odd.py'}:leaves"), "x").reason == "grader_error"


# ------------------------------------------------------------------------------------------------------------ overlap


def test_what_two_texts_share() -> None:
    words = [f"word{number}" for number in range(20)]
    assert normal_text("  The\u00a0QUICK\n ﬁx ") == "the quick fix"
    assert len(ngrams(" ".join(words))) == 8
    assert ngrams("too short") == set()
    copied = "Before, " + ", ".join(words[3:16]).upper() + "! After."
    assert sharing([copied, " ".join(words[3:15])], [" ".join(words)]) == [0]
