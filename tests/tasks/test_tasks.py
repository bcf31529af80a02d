"""Tasks: splits, prompts, and what a person reads when the data is wrong."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_train import tasks
from grpo_train.config import dump_config, load_config
from grpo_train.config.schema import Task as TaskConfig
from grpo_train.tasks import Attempt, TaskError, data_order, describe, load_task, refuse_unused, task_files
from grpo_train.tasks.shared.generated import GeneratedTask
from grpo_train.tasks.shared.self_play import SelfPlayTask
from tests.support.data import is_official

CONFIG = Path(__file__).resolve().parents[2] / "config"


def test_addition_holds_out_1024_problems() -> None:
    task = load_task(TaskConfig(name="addition"))
    assert (task.name, task.label, task.stop) == ("addition", "addition", ("</answer>",))
    assert (task.size("train"), task.size("test")) == (90 * 90 - 1024, 1024)
    train = {task.problem("train", index).prompt for index in range(task.size("train"))}
    test = {task.problem("test", index).prompt for index in range(task.size("test"))}
    assert len(train) == task.size("train")
    assert len(test) == 1024
    assert not train & test
    # The split must not move between versions of Python or of this code: old checkpoints were trained on it.
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


def test_gsm8k_of_a_directory(gsm8k_dir: Path) -> None:
    task = load_task(TaskConfig(name="gsm8k", path=str(gsm8k_dir)))
    assert (task.name, task.label) == ("gsm8k", "gsm8k_r1_template")
    problem = task.problem("test", 1)
    assert problem.prompt.startswith("A conversation between User and Assistant. The User asks a question")
    assert problem.prompt.endswith(f"</answer>.\nUser: {problem.question}\nAssistant: <think>")
    assert problem == task.problem("test", 1)
    assert task.judge(Attempt(problem, f"so</think> <answer>{problem.answer}</answer>")).correct
    if is_official("gsm8k_test.jsonl"):
        assert (task.size("train"), task.size("test")) == (7473, 1319)


def test_gsm8k_by_its_label_and_from_either_file(gsm8k_dir: Path) -> None:
    whole = load_task(TaskConfig(name="gsm8k", path=str(gsm8k_dir)))
    for file in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        task = load_task(TaskConfig(name="gsm8k_r1_template", path=str(gsm8k_dir / file)))
        for split in ("train", "test"):
            assert task.size(split) == whole.size(split)
            assert task.problem(split, 0) == whole.problem(split, 0)


def test_limit_is_for_training_only(gsm8k_dir: Path) -> None:
    task = load_task(TaskConfig(name="gsm8k", path=str(gsm8k_dir), limit=3))
    assert task.size("train") == 3
    assert task.size("test") > 3


def write_rows(file: Path, *rows: str) -> Path:
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


ROW = json.dumps({"question": "Braces {x} and {question}?", "answer": "#### 1,800"})


def test_a_lone_test_file_evaluates_and_does_not_train(tmp_path: Path) -> None:
    task = load_task(TaskConfig(path=str(write_rows(tmp_path / "test.jsonl", ROW, "", ROW))))
    assert task.size("test") == 2
    assert "User: Braces {x} and {question}?\n" in task.problem("test", 1).prompt
    with pytest.raises(
        TaskError, match=r"test\.jsonl' is the test split .* no train split beside it; looked for train"
    ):
        task.size("train")


def test_a_lone_file_of_any_name_trains_and_does_not_evaluate(tmp_path: Path) -> None:
    task = load_task(TaskConfig(path=str(write_rows(tmp_path / "mine.jsonl", ROW))))
    assert task.size("train") == 1
    with pytest.raises(TaskError, match=r"no test split beside it; looked for test\.jsonl, gsm8k_test\.jsonl"):
        task.size("test")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", "no JSON object"),
        ('"a text"', "expected an object, found a str"),
        ('{"answer": "#### 1"}', "'question' is missing"),
        ('{"question": "?", "answer": 1}', "'answer' is a int, not a text"),
        ('{"question": "?", "answer": "18"}', "must end in '#### N'"),
        ('{"question": "?", "answer": "#### eighteen"}', "must end in '#### N'"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    task = load_task(TaskConfig(path=str(write_rows(tmp_path / "train.jsonl", ROW, row))))
    with pytest.raises(TaskError) as error:
        task.size("train")
    assert f"{tmp_path / 'train.jsonl'}, line 2: " in str(error.value)
    assert message in str(error.value)


def test_an_empty_and_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("\n")
    (tmp_path / "test.jsonl").write_bytes(b"\xff\xfe\x00")
    task = load_task(TaskConfig(path=str(tmp_path)))
    with pytest.raises(TaskError, match="has no rows"):
        task.size("train")
    with pytest.raises(TaskError, match="cannot read"):
        task.size("test")


def test_a_byte_order_mark_and_the_older_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFS_ROOT", str(tmp_path))
    folder = tmp_path / "rlp_datasets" / "processed" / "gsm"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text(ROW + "\n", encoding="utf-8-sig")
    assert load_task(TaskConfig(path="gsm")).size("train") == 1


def test_a_missing_path_and_an_unknown_name() -> None:
    with pytest.raises(TaskError, match=r"task\.path: '/no/such/dir' does not exist"):
        load_task(TaskConfig(path="/no/such/dir"))
    with pytest.raises(TaskError, match=r"task\.name: no task is called 'gms8k'; did you mean gsm8k\?"):
        load_task(TaskConfig(name="gms8k"))


def test_offline_without_a_path_says_what_to_do(tmp_path: Path) -> None:
    program = (
        "from grpo_train.config.schema import Task; from grpo_train.tasks import load_task, TaskError\n"
        "try: load_task(Task()).size('train')\nexcept TaskError as error: print(error)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert "HF_HUB_OFFLINE is set" in run.stdout
    assert "set task.path to their directory" in run.stdout


def test_tasks_and_rewards_load_no_torch() -> None:
    program = (
        "import sys; from grpo_train.config.schema import Task; from grpo_train.tasks import load_task\n"
        "load_task(Task(name='addition')).problem('test', 0)\n"
        "sys.exit(', '.join({'torch', 'transformers', 'datasets'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_data_order_is_a_permutation_per_epoch() -> None:
    epochs = [[data_order(7, 3, 7 * epoch + offset) for offset in range(7)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert data_order(7, 3, 8) == epochs[1][1]  # no state: any position, in any order
    assert [data_order(7, 4, position) for position in range(7)] != epochs[0]
    assert epochs[0] == [5, 1, 4, 3, 6, 0, 2]  # a resumed run of another Python must go on in the same order
    with pytest.raises(ValueError, match="size"):
        data_order(0, 0, 0)


def test_every_task_is_listed_and_says_what_it_asks() -> None:
    assert {"addition", "gsm8k", "jsonl", "math", "reasoning_gym"} <= set(task_files())
    for file in task_files():
        assert describe(file).startswith(f"{file}: "), file


# --------------------------------------------------------------------------------------- keys without effect


def options(file: str) -> tuple[str, ...]:
    return importlib.import_module(f"grpo_train.tasks.{file}").OPTIONS


class Watched(TaskConfig):
    """Remembers which of its keys were read."""

    def __getattribute__(self, key: str) -> Any:
        if key in TaskConfig.model_fields:
            READ.add(key)
        return super().__getattribute__(key)


READ: set[str] = set()


def test_a_task_says_which_keys_it_reads() -> None:
    """Of generated tasks and games exactly; of the others, whose data is not here, what their own text says."""
    for file in task_files():
        assert set(options(file)) < set(TaskConfig.model_fields) - set(tasks.COMMON), file
        text = (Path(tasks.__file__).parent / f"{file}.py").read_text()
        assert set(re.findall(r"config\.([a-z_]+)", text)) & set(TaskConfig.model_fields) <= {
            *options(file), *tasks.COMMON,
        }, file  # fmt: skip
        if file in ("addition", "kuhn_poker") or "GeneratedTask" in text or "SelfPlayTask" in text:
            READ.clear()
            task = load_task(Watched(name=file, template="chat"))
            assert isinstance(task, GeneratedTask | SelfPlayTask) or file == "addition"
            task.size("train")
            task.problem("train", 0)
            if isinstance(task, SelfPlayTask):
                task.match(task.problem("train", 0))
            assert READ - set(tasks.COMMON) == set(options(file)), file


@pytest.mark.parametrize("file", task_files())
def test_a_key_that_its_task_does_not_read_is_refused(file: str) -> None:
    other = {
        "path": "x", "level": 3, "digits": 3, "operators": "*", "template": "chat", "system_prompt": "x", "few_shot": 1,
        "visible_tests": 2, "prompt_field": "x", "answer_field": "x", "template_field": "x", "grader": "text",
        "dataset": "x", "opponent": "x", "invalid_move_return": -2.0, "invalid_move_other_return": 1.0,
    }  # fmt: skip
    assert {*other, *tasks.COMMON} == set(TaskConfig.model_fields)
    refuse_unused(TaskConfig(name=file, limit=3, rewards=["format"], correct_reward=3))
    refuse_unused(TaskConfig.model_validate({"name": file, **{key: other[key] for key in options(file)}}))
    unread = sorted(set(other) - set(options(file)))
    with pytest.raises(TaskError) as caught:
        refuse_unused(TaskConfig.model_validate({"name": file, **{key: other[key] for key in unread}}))
    lines = str(caught.value).split("\n")
    assert sorted(line.partition(" ")[0] for line in lines) == [f"task.{key}" for key in unread]
    for line in lines:
        key = line.partition(" ")[0].removeprefix("task.")
        users = [each for each in task_files() if key in options(each)]
        assert line.endswith(f" has no effect on task.name {file}: leave it out (it is for {', '.join(users)})")


def test_a_key_may_be_for_a_task_that_is_evaluated() -> None:
    config = TaskConfig(name="addition", few_shot=3)
    refuse_unused(config, ["mbpp"])
    with pytest.raises(TaskError, match=r"task\.few_shot has no effect on task\.name addition"):
        refuse_unused(config, ["gsm8k"])
    with pytest.raises(TaskError, match=r"eval\.datasets: no task is called 'mbbp'; did you mean mbpp\?"):
        refuse_unused(config, ["mbbp"])
    refuse_unused(TaskConfig(name="own.py:load", few_shot=3))  # who knows what it reads
    refuse_unused(TaskConfig(name="addition", few_shot=3), ["own.py:load"])


@pytest.mark.parametrize("file", sorted(CONFIG.rglob("*.yaml")), ids=str)
def test_the_configs_here_set_no_key_without_effect(file: Path) -> None:
    if "example" in file.name:
        return
    config = load_config(file.read_text(), source=str(file))
    refuse_unused(config.task, config.eval.datasets)
    resolved = load_config(dump_config(config))  # with every default written out
    refuse_unused(resolved.task, resolved.eval.datasets)
