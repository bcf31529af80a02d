"""Registration of tasks: names, options, unused keys."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_train import tasks
from grpo_train.config import dump_config, load_config
from grpo_train.config.schema import EveryTask, TaskConfig
from grpo_train.tasks import TaskError, load_task, load_worked_task, refuse_unused, task_kind, task_kinds
from grpo_train.tasks.shared.generated import GeneratedTask
from grpo_train.tasks.shared.self_play import SelfPlayTask

COMMON = {*EveryTask.model_fields, "parts"}
CONFIG = Path(__file__).resolve().parents[2] / "config"


def test_every_task_file_is_listed_under_its_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(tasks.__path__)}
    assert modules == {*tasks.FILES, "shared", "check", "check_lines"}
    assert [kind.name for kind in task_kinds()] == list(tasks.FILES)
    assert all(kind.summary and not kind.summary.endswith(".") for kind in task_kinds())
    names = [name for kind in task_kinds() for name in kind.names]
    assert len(names) == len(set(names))
    assert task_kind("gsm8k_r1_template") is task_kind("gsm8k")


def test_user_task_with_examples_is_worked(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from grpo_train.tasks import addition\ndef load(config): return addition.load(config)\n")
    problem = load_worked_task(TaskConfig(name=f"{file}:load")).problem("train", 0)
    assert problem.prompt == "13+17="
    with pytest.raises(TaskError, match="'mbpp' has no worked examples"):
        load_worked_task(TaskConfig(name="mbpp"))


def test_missing_path_and_unknown_name_are_errors() -> None:
    with pytest.raises(TaskError, match=r"task\.path: '/no/such/dir' does not exist"):
        load_task(TaskConfig(path="/no/such/dir"))
    with pytest.raises(TaskError, match=r"task\.name: unknown task 'gms8k'; did you mean gsm8k\?"):
        load_task(TaskConfig(name="gms8k"))


def test_tasks_do_not_import_torch() -> None:
    program = (
        "import sys; from grpo_train.config.schema import TaskConfig; from grpo_train.tasks import load_task\n"
        "load_task(TaskConfig(name='addition')).problem('test', 0)\n"
        "sys.exit(', '.join({'torch', 'transformers', 'datasets'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def options(file: str) -> tuple[str, ...]:
    return task_kind(file).options


class Watched(TaskConfig):
    """Records which of its keys are read."""

    def __getattribute__(self, key: str) -> Any:
        if key in TaskConfig.model_fields:
            READ.add(key)
        return super().__getattribute__(key)


READ: set[str] = set()


def test_options_are_the_keys_a_task_reads() -> None:
    """Checked at run time for generated tasks and games; in the source for the others, whose data is not here."""
    for file in tasks.FILES:
        assert set(options(file)) < set(TaskConfig.model_fields) - COMMON, file
        text = (Path(tasks.__file__).parent / f"{file}.py").read_text()
        assert set(re.findall(r"config\.([a-z_]+)", text)) & set(TaskConfig.model_fields) <= {
            *options(file), *COMMON,
        }, file  # fmt: skip
        if file in ("addition", "kuhn_poker") or "GeneratedTask" in text or "SelfPlayTask" in text:
            READ.clear()
            task = load_task(Watched(name=file, template="chat"))
            assert isinstance(task, GeneratedTask | SelfPlayTask) or file == "addition"
            task.size("train")
            task.problem("train", 0)
            if isinstance(task, SelfPlayTask):
                task.match(task.problem("train", 0))
            assert set(options(file)) == READ - COMMON, file


@pytest.mark.parametrize("file", tasks.FILES)
def test_unused_keys_are_refused(file: str) -> None:
    other = {
        "path": "x", "splits": {"test": "x"}, "split_seed": 1, "wrong_rows": "drop", "delimiter": ";",
        "level": 3, "digits": 3, "operators": "*", "template": "chat", "system_prompt": "x", "few_shot": 1,
        "visible_tests": 2, "prompt_field": "x", "answer_field": "x", "template_field": "x", "grader": "text",
        "dataset": "x", "opponent": "x", "invalid_move_return": -2.0, "invalid_move_other_return": 1.0,
        "options": {"size": 3},
    }  # fmt: skip
    assert {*other, *COMMON} == set(TaskConfig.model_fields)
    refuse_unused(TaskConfig(name=file, limit=3, rewards=["format"], correct_reward=3))
    refuse_unused(TaskConfig.model_validate({"name": file, **{key: other[key] for key in options(file)}}))
    unread = sorted(set(other) - set(options(file)))
    with pytest.raises(TaskError) as caught:
        refuse_unused(TaskConfig.model_validate({"name": file, **{key: other[key] for key in unread}}))
    lines = str(caught.value).split("\n")
    assert sorted(line.partition(" ")[0] for line in lines) == [f"task.{key}" for key in unread]
    for line in lines:
        key = line.partition(" ")[0].removeprefix("task.")
        users = [each for each in tasks.FILES if key in options(each)] or ["tasks of your own"]
        assert line.endswith(f" has no effect on task.name {file}: remove it (used by {', '.join(users)})")


def test_keys_of_evaluated_tasks_are_used() -> None:
    config = TaskConfig(name="addition", few_shot=3)
    refuse_unused(config, ["mbpp"])
    with pytest.raises(TaskError, match=r"task\.few_shot has no effect on task\.name addition"):
        refuse_unused(config, ["gsm8k"])
    with pytest.raises(TaskError, match=r"eval\.datasets: unknown task 'mbbp'; did you mean mbpp\?"):
        refuse_unused(config, ["mbbp"])
    refuse_unused(TaskConfig(name="own.py:load", few_shot=3))  # its keys are unknown
    refuse_unused(TaskConfig(name="addition", few_shot=3), ["own.py:load"])


@pytest.mark.parametrize("file", sorted(CONFIG.rglob("*.yaml")), ids=str)
def test_our_configs_have_no_unused_keys(file: Path) -> None:
    if "example" in file.name:
        return
    config = load_config(file.read_text(), source=str(file))
    refuse_unused(config.task, config.eval.datasets)
    resolved = load_config(dump_config(config))  # with every default written out
    refuse_unused(resolved.task, resolved.eval.datasets)
