"""Dataset checks and ``grpo-train check-dataset``: counts, output, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_train.cli import app
from grpo_train.config import schema
from grpo_train.tasks import TaskError, load_task
from grpo_train.tasks.check import CHECKS, DatasetReport, SplitReport, duplicates_in
from grpo_train.tasks.check_lines import report_lines
from grpo_train.tasks.gsm8k import _rows_of_hub
from tests.support.data import is_official


def check(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check-dataset", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def write(file: Path, *rows: Any) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_all_gsm8k_answers_are_right(gsm8k_dir: Path) -> None:
    status, output = check("gsm8k", "--path", gsm8k_dir)
    official = is_official("gsm8k_test.jsonl")
    train, test = (7473, 1319) if official else (8, 8)
    assert status == 0
    assert f"train      {train}/{train} reference solutions are correct, 0 duplicates" in output
    assert f"test       {test}/{test} reference solutions are correct, 0 duplicates" in output
    assert "train and test: 0 problems are identical" in output
    assert not official or "4 share 13 consecutive words" in output


@pytest.mark.parametrize("given", ["missing/rows.jsonl", "hf:name"])
def test_a_path_is_no_misspelled_name(given: str) -> None:
    status, output = check(given)
    assert status == 2
    assert given in output
    assert "unknown dataset" not in output


def test_single_split_as_json(tmp_path: Path) -> None:
    question = "How many eggs are left when a hen lays nine and a fox takes three?"
    file = write(tmp_path / "test.jsonl", *({"question": q, "answer": "#### 6"} for q in (question, question.upper())))
    status, output = check("gsm8k", "--path", file, "--json")
    report = json.loads(output)
    assert status == 0
    assert report["splits"] == [{"split": "test", "rows": 2, "right": 2, "wrong": [], "duplicates": 1, "tokens": None}]
    assert (report["dataset"], report["path"], report["overlaps"], report["is_good"]) == ("gsm8k", str(file), [], True)


def test_overlaps_between_splits_are_counted(tmp_path: Path) -> None:
    shared = "a farmer has three fields and each of them has seven rows of"
    write(tmp_path / "train.jsonl", *({"q": q, "a": 1} for q in (f"Once {shared} corn.", "Short?", "Same?", "same? ")))
    write(tmp_path / "test.jsonl", *({"q": q, "a": 1} for q in (f"Today {shared} beans.", "Same?", "Other?")))
    status, output = check("jsonl", "--path", tmp_path, "--prompt-field", "q", "--answer-field", "a")
    assert status == 0
    assert "train      2/2 reference solutions are correct, 0 duplicates" in output
    assert "0 problems are identical, 1 share 13 consecutive words" in output
    assert "2 training problems dropped: identical to test problems" in output


def test_wrong_references_are_listed_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def odd(attempt): return attempt.problem.data['n'] % 2 == 1\n")
    file = write(tmp_path / "test.jsonl", *({"prompt": f"{n}?", "answer": "yes", "n": n} for n in range(20)))
    status, output = check("jsonl", "--path", file, "--grader", f"{tmp_path / 'own.py'}:odd")
    assert status == 1
    assert "test       10/20 reference solutions are correct" in output
    assert "test 0: 'yes' is wrong" in output
    assert "… and 5 more" in output


def test_latex_answers_are_right(tmp_path: Path) -> None:
    answers = (r"\frac{1}{2}", r"2\sqrt{3}", r"\text{Monday}", "(1,2)", "2004!", "x^2+1")
    file = write(tmp_path / "test.jsonl", *({"problem": f"{a}?", "answer": a} for a in answers))
    status, output = check("math", "--path", file)
    assert (status, "test       6/6 reference solutions are correct" in output) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gsm9k",), "error: unknown dataset 'gsm9k'; did you mean gsm8k?"),
        (("gsm8k", "--path", "/no/such/file"), "error: task.path: '/no/such/file' does not exist"),
        (("jsonl",), "error: task.path: jsonl needs a file"),
    ],
)
def test_usage_errors_exit_2(arguments: tuple[str, ...], message: str) -> None:
    status, output = check(*arguments)
    assert (status, message in output) == (2, True)


def test_malformed_row_error_has_file_and_line(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", {"question": "?", "answer": "#### 1"}, {"question": "?", "answer": "1"})
    status, output = check("gsm8k", "--path", file)
    assert status == 2
    assert f"error: {file}, line 2: 'answer' must end in '#### N'" in output


def test_check_of_another_dataset_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def checker(config: Any, _: object) -> DatasetReport:
        if config.path:
            raise TaskError("task.path: no")
        return DatasetReport(config.name, config.path, [SplitReport("test", 974, 974)])

    monkeypatch.setitem(CHECKS, "other", checker)
    assert check("other") == (
        0,
        "other: from the hub\n  test       974/974 reference solutions are correct, 0 duplicates\n974/974\n",
    )
    assert check("other", "--path", "x")[0] == 2


LEVELS = [{"prompt": f"What is {n} plus one?", "answer": n + 1, "level": n % 3} for n in range(30)]


def test_any_file_is_checked_by_its_path(tmp_path: Path) -> None:
    rows = [*LEVELS, {"prompt": "A?", "answer": "?"}, {"prompt": "B?"}]
    file = write(tmp_path / "a.jsonl", *rows)
    status, output = check(file)
    assert status == 1
    assert f"data: {file}\n  2 rows cannot be used (task.wrong_rows: drop trains without them)\n" in output
    assert f"    {file}, line 31: 'answer' must be one number" in output
    assert f"    {file}, line 32: 'answer' is missing" in output
    assert output.splitlines()[-1] == "30/32"
    assert output.count("User: What is ") == 10, "ten rendered prompts"
    report = json.loads(check(file, "--json")[1])
    assert [len(report[key]) for key in ("unreadable", "prompts")] == [2, 10]
    assert report["is_good"] is False


def test_lengths_are_those_of_the_model(tmp_path: Path, root: Path) -> None:
    file = write(tmp_path / "test.jsonl", *LEVELS)
    arguments = (file, "--model", "tiny", "--root", root, "--set", "task.template=question")
    status, output = check(*arguments, "--set", "rollout.max_prompt_length=20")
    assert status == 0
    tokens = json.loads(check(*arguments, "--json")[1])["splits"][0]["tokens"]
    assert 1 < tokens["min"] <= tokens["median"] <= tokens["p95"] <= tokens["max"]
    assert tokens["max"] == tokens["min"] + 1, "the tiny model's tokens are single digits"
    assert f"prompts have {tokens['min']} to {tokens['max']} tokens" in output
    assert "are longer than rollout.max_prompt_length 20" in output


def test_rewards_of_gold_and_empty_completions(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def level(attempt, verdict): return None if attempt.problem.columns['level'] == 0 else verdict.correct\n"
        "def short(attempt, verdict): return -len(attempt.completion)\n"
        "def one(prompts, completions, **columns): return [1.0]\n"
    )
    file = write(tmp_path / "test.jsonl", *LEVELS)
    own = f"{tmp_path / 'own.py'}"
    status, output = check(file, "--reward", "accuracy", "--reward", f"{own}:level", "--reward", f"{own}:short")
    assert status == 0
    assert "  reward accuracy: 2 for gold answers, 0 for empty completions\n" in output
    assert "  reward level: 1, None for 10 of 30 for gold answers, 0, None for 10 of 30 for empty" in output
    assert "warning: short does not pay more for gold answers than for empty completions" in output
    status, output = check(file, "--reward", f"{own}:one")
    assert (status, f"'one' returned 1 values for 2 completions; expected one for each ({own}:3)" in output) == (
        2,
        True,
    )
    status, output = check(file, "--reward", "acuracy")
    assert (status, "unknown reward function 'acuracy'; did you mean accuracy?" in output) == (2, True)


def test_prompts_alone_are_checked(tmp_path: Path) -> None:
    file = write(tmp_path / "prompts.jsonl", *({"prompt": row["prompt"]} for row in LEVELS))
    assert check(file, "--grader", "none")[0] == 0


def test_a_config_names_data_and_model(tmp_path: Path, root: Path) -> None:
    write(tmp_path / "test.jsonl", *({"messages": [{"role": "user", "content": row["prompt"]}]} for row in LEVELS))
    task = f"task: {{name: data, path: {tmp_path}, grader: none, rewards: [format]}}"
    config = tmp_path / "c.yaml"
    config.write_text(f"model: {{backbone: tiny}}\n{task}\n")
    status, output = check("--cfg", config, "--root", root)
    assert (status, "this model has no chat template" in output) == (2, True)
    template = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"
    (root / "models" / "tiny" / "chat_template.jinja").write_text(template)
    status, output = check("--cfg", config, "--root", root)
    assert status == 0
    assert "    <user>What is 27 plus one?<assistant>\n" in output
    assert "tokens" in output
    status, output = check()
    assert (status, "name a task, a file or hf:OWNER/NAME" in output) == (2, True)


def test_each_task_of_a_mixture_is_checked(tmp_path: Path, root: Path) -> None:
    files = {"good": write(tmp_path / "good.jsonl", *LEVELS), "bad": write(tmp_path / "bad.jsonl", *LEVELS, {"q": 1})}
    parts = [{"name": "data", "label": label, "path": str(file)} for label, file in files.items()]
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"model": {"backbone": "tiny"}, "task": [*parts, {"name": "arithmetic"}]}))
    arguments = ("--cfg", config, "--root", root, "--set", "task[0].template=question", "--set", "task[1].limit=20")
    status, output = check(*arguments)
    assert status == 1
    assert output.startswith(f"task[0] good\ndata: {files['good']}\n")
    assert f"\n\ntask[1] bad\ndata: {files['bad']}\n  1 rows cannot be used" in output
    assert output.endswith("task[2] arithmetic\narithmetic: not checked (only gsm8k, jsonl, data, math, mbpp are)\n")
    report = json.loads(check(*arguments, "--json")[1])
    is_good = {label: each and each["is_good"] for label, each in report["tasks"].items()}
    assert (is_good, report["is_good"]) == ({"good": True, "bad": False, "arithmetic": None}, False)
    assert check(*arguments, "good")[0] == 0
    status, output = check(*arguments, "--path", files["good"])
    assert (status, "name the task that --path is for (good, bad, arithmetic)" in output) == (2, True)
    assert check(*arguments, files["good"])[0] == 0
    files["bad"].unlink()
    status, output = check(*arguments)
    assert (status, "error: task[1] bad: task.path: " in output) == (2, True)


def test_duplicates_and_notes() -> None:
    assert duplicates_in(["a b", "A  b", "c"]) == 1
    assert list(report_lines(DatasetReport("x", "y", [], [], ["note"]))) == ["x: y", "  note", "0/0"]


def test_train_file_is_not_a_validation_split(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", *({"question": f"{i} and one", "answer": f"#### {i + 1}"} for i in range(3)))
    status, output = check("gsm8k", "--path", file)
    assert (status, output.splitlines()[-1]) == (0, "3/3")
    with pytest.raises(TaskError, match=r"is the train split \(by its name\) and has no validation split beside it"):
        load_task(schema.TaskConfig(name="gsm8k", path=str(file))).size("validation")


def test_hub_gsm8k_has_the_published_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": "one and one", "answer": "#### 2"}]
    loaded: list[str] = []

    def load(name: str, config: str, split: str) -> list[dict[str, str]]:
        loaded.append(split)
        return rows

    _rows_of_hub.cache_clear()
    monkeypatch.setattr("datasets.load_dataset", load)
    status, output = check("gsm8k")
    _rows_of_hub.cache_clear()
    assert (status, output.splitlines()[-1], loaded) == (0, "2/2", ["train", "test"])
