"""Runs on a mixture of tasks, and a curriculum that raises a task's level."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import load_config
from grpo_train.config.loading import ConfigError, changed_keys, dump_config
from grpo_train.evaluation.plan import each_task, plan_evaluation
from grpo_train.evaluation.request import EvalError, EvalRequest, resolve_config
from grpo_train.rewards.types import TaskError
from grpo_train.supervisor.resume import prepare_resume
from grpo_train.supervisor.stages import all_stages
from grpo_train.tasks import load_task, refuse_unused
from grpo_train.tasks.shared.mixture import MixtureOrder
from grpo_train.train.curriculum import LevelControl
from grpo_train.train.pass_rates import resolved
from grpo_train.train.worker import main
from tests.support.engine import assert_same_run, config_text, rows, run_of, train_here
from tests.support.two_processes import run_in_two

TWO_LEVELS: list[dict[str, Any]] = [
    {"name": "arithmetic", "weight": 2, "limit": 500},
    {
        "name": "arithmetic",
        "label": "harder",
        "level": 3,
        "limit": 500,
        "correct_reward": 1.0,
        "rewards": ["accuracy", "format"],
    },
]


def text_of(tasks: Any, **changes: Any) -> str:
    document = yaml.safe_load(config_text(**changes))
    return yaml.safe_dump({**document, "task": tasks}, sort_keys=False)


def write_mixture(root: Path, tasks: Any = TWO_LEVELS, **changes: Any) -> Path:
    path = root / "mixture.yaml"
    path.write_text(text_of(tasks, **changes))
    return path


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(0, 5000))
def test_every_prefix_holds_the_shares(weights: list[float], length: int) -> None:
    order = MixtureOrder(weights)
    drawn = [0] * len(weights)
    for position in range(min(length, 2000)):
        part, earlier = order.at(position)
        assert earlier == drawn[part]
        drawn[part] += 1
        for k, weight in enumerate(weights):
            share = max(1, round(weight * 1000 / max(weights)))
            total = sum(max(1, round(each * 1000 / max(weights))) for each in weights)
            assert abs(drawn[k] - (position + 1) * share / total) < 1
    assert order.at(length + 10**9) == MixtureOrder(weights).at(length + 10**9)


def test_a_list_of_tasks_survives_its_dump() -> None:
    config = load_config(text_of(TWO_LEVELS))
    assert config.task.name == "arithmetic+harder"
    assert load_config(dump_config(config)) == config
    assert yaml.safe_load(dump_config(config))["task"]["name"] == "arithmetic+harder"
    raised = load_config(text_of(TWO_LEVELS), ["task[1].level=4"])
    assert changed_keys(config, raised) == {"task[1].level": (3, 4)}


@pytest.mark.parametrize(
    ("tasks", "override", "message"),
    [
        (TWO_LEVELS, "task.level=4", "task is a list of 2: name one of task[0] arithmetic, task[1] harder"),
        (TWO_LEVELS, "task[2].level=4", "--set task[2].level=4: task is a list of 2"),
        ({"name": "echo"}, "task[0].level=4", "--set task[0].level=4: task is not a list of tasks"),
        ([{"name": "echo"}] * 2, "", "two parts are named echo; give one a label"),
        ([{"name": "echo", "levl": 1}], "", "unknown key 'task[0].levl'; did you mean task[0].level?"),
        ([{"name": "echo", "level": 11}], "", "task[0].level: input should be less than or equal to 10"),
        ([], "", "the list is empty"),
        (["echo"], "", "task[0]: expected a mapping"),
        ({"parts": [{"name": "echo"}], "level": 2}, "", "task.level has no effect beside task.parts"),
    ],
)  # fmt: skip
def test_wrong_mixtures_are_refused(tasks: Any, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text_of(tasks), [override] if override else [], source="mixture.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith(("mixture.yaml", "--set"))


def test_problems_of_the_parts_follow_each_other() -> None:
    """As an evaluation of all parts numbers them."""
    task = load_task(load_config(text_of(TWO_LEVELS)).task)
    sizes = [part.size("test") for part in task.parts.values()]
    assert task.size("test") == sum(sizes)
    found = [task.problem("test", index) for index in (0, sizes[0] - 1, sizes[0], sum(sizes) - 1)]
    assert [(each.task, each.index) for each in found] == [
        ("arithmetic", 0), ("arithmetic", sizes[0] - 1), ("harder", 0), ("harder", sizes[1] - 1),
    ]  # fmt: skip
    with pytest.raises(IndexError):
        task.problem("test", sum(sizes))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"name": "tictactoe"}, "task[1].name: tictactoe is a self-play game, which does not mix"),
        ({"name": "code_game"}, "task[1].name: code_game is a game against another model, which does not mix"),
        ({"name": "jsonl"}, "task[1].path: jsonl needs"),
        ({"name": "echoo"}, "task[1].name: unknown task 'echoo'"),
        ({"name": "pattern", "digits": 3}, "task[1].digits has no effect on task.name pattern"),
    ],
)
def test_tasks_that_do_not_mix_are_refused(part: dict[str, Any], message: str) -> None:
    config = load_config(text_of([{"name": "echo"}, part]))
    check = refuse_unused if "digits" in part else load_task
    with pytest.raises(TaskError) as caught:
        check(config.task)
    assert str(caught.value).startswith(message)


def test_each_task_of_a_mixture_is_evaluated() -> None:
    config = load_config(text_of(TWO_LEVELS, run__eval_every=3, run__total_steps=3))
    refuse_unused(config.task, ["harder"])
    assert [stage.dataset for stage in all_stages(config) if stage.kind == "eval"] == ["arithmetic", "harder"]


@pytest.mark.parametrize(
    ("tasks", "dataset"),
    [
        (TWO_LEVELS, "arithmetic"),
        (TWO_LEVELS, "harder"),
        (TWO_LEVELS, "addition"),
        ({"name": "arithmetic"}, "addition"),
    ],
)
def test_an_evaluation_has_no_curriculum(tasks: Any, dataset: str) -> None:
    """It names a task of the run, which an evaluation of another one lacks."""
    config = load_config(text_of(tasks, **CURRICULUM))
    evaluated = resolve_config(config, EvalRequest(None, dataset=dataset))
    assert evaluated.task.name == ("arithmetic" if dataset == "harder" else dataset)


def test_mixtures_log_each_task_and_resume_bit_for_bit(make_root: Callable[[], Path]) -> None:
    torch.set_num_threads(1)
    root = make_root()
    cfg = write_mixture(root, run__total_steps=4, algorithm__num_iterations=2)
    whole = train_here(root, cfg, "whole")
    parts = train_here(root, cfg, "parts", "--until", "1")
    prepare_resume(parts, "latest", 4)
    assert main(["--run-dir", str(parts.path)]) == 0
    assert_same_run(parts, whole, 4)
    samples = rows(whole, "rollouts.jsonl")
    for row in rows(whole):
        buffer = (row["step"] - 1) // 2
        mine = [sample for sample in samples if sample["step"] == 2 * buffer + 1]
        for task in ("arithmetic", "harder"):
            own = [sample for sample in mine if sample["task"] == task]
            assert row[f"task/{task}/prompts"] == len(own) / 4
            assert row[f"task/{task}/reward"] == pytest.approx(sum(sample["reward"] for sample in own) / len(own))
            assert row[f"task/{task}/accuracy"] == sum(sample["correct"] for sample in own) / len(own)
        assert {name for sample in mine for name in sample["rewards"] if sample["task"] == "arithmetic"} == {"accuracy"}
    assert [sample["task"] for sample in samples[::4]].count("harder") == 2
    request = EvalRequest("whole", steps="4")
    plans = [plan_evaluation(root, each)[0] for each in each_task(root, request)]
    assert [(plan.label, plan.config["task"]["level"]) for plan in plans] == [("arithmetic", 1), ("harder", 3)]
    with pytest.raises(EvalError, match=r"name one of its tasks with --dataset \(arithmetic, harder\)"):
        plan_evaluation(root, request)


def _train(root: str, cfg: str) -> int:
    return main(["--cfg", cfg, "--root", root, "--run-name", "two"])


def test_two_processes_draw_the_prompts_of_one(make_root: Callable[[], Path]) -> None:
    root = make_root()
    cfg = write_mixture(root, run__total_steps=2, model__device="cpu")
    one = train_here(root, cfg, "one")
    assert run_in_two(_train, str(root), str(cfg)) == [0, 0]
    drawn = [
        [(s["step"], s["group"], s["task"], s["index"]) for s in rows(run, "rollouts.jsonl")]
        for run in (one, run_of(root, "two"))
    ]
    assert drawn[0] == drawn[1]


CURRICULUM = {
    "curriculum__task": "arithmetic", "curriculum__threshold": 0, "curriculum__window": 2,
    "algorithm__num_iterations": 1,
}  # fmt: skip


@pytest.mark.parametrize("tasks", [TWO_LEVELS, {"name": "arithmetic", "limit": 500}], ids=["mixture", "single"])
def test_a_curriculum_resumes_bit_for_bit(tasks: Any, make_root: Callable[[], Path]) -> None:
    """A raise before the save, and a window that spans it."""
    torch.set_num_threads(1)
    root = make_root()
    cfg = write_mixture(root, tasks, **CURRICULUM)
    whole = train_here(root, cfg, "whole")
    parts = train_here(root, cfg, "parts", "--until", "3")
    prepare_resume(parts, "latest", 6)
    assert main(["--run-dir", str(parts.path)]) == 0
    assert_same_run(parts, whole, 6)
    for run in (whole, parts):
        logged = rows(run)
        assert [row["task/arithmetic/level"] for row in logged] == [1, 1, 2, 2, 3, 3]
        raised = [row for row in rows(run, "events.jsonl") if row["event"] == "level_raised"]
        assert [(row["step"], row["task"], row["level"]) for row in raised] == [
            (2, "arithmetic", 2), (4, "arithmetic", 3), (6, "arithmetic", 4),
        ]  # fmt: skip
        drawn = [row for row in rows(run, "rollouts.jsonl") if row["task"] == "arithmetic"]
        for event in raised:
            window = [row["correct"] for row in drawn if event["step"] - 1 <= row["step"] <= event["step"]]
            assert event["accuracy"] == sum(window) / len(window)
    own = {row["prompt"] for row in rows(whole, "rollouts.jsonl") if row["task"] == "arithmetic" and row["step"] > 4}
    first = {row["prompt"] for row in rows(whole, "rollouts.jsonl") if row["task"] == "arithmetic" and row["step"] < 3}
    assert max(map(len, own)) > max(map(len, first))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curriculum__window": 3}, "curriculum.window has no effect without curriculum.threshold"),
        ({"curriculum__threshold": 0.5}, "curriculum.task is not set: name one of arithmetic, harder"),
        ({"curriculum__threshold": 0.5, "curriculum__task": "echo"}, "curriculum.task: the run has no task echo"),
    ],
)
def test_wrong_curricula_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(text_of(TWO_LEVELS, **changes))


def test_a_curriculum_needs_levels() -> None:
    config = load_config(config_text(curriculum__threshold=0.5, task__name="addition"))
    with pytest.raises(TaskError, match="curriculum: task addition has no levels"):
        LevelControl(config)


# -------------------------------------------------------------------------------------------- task.pass_rate


def write_measurement(root: Path, name: str = "base", rates: tuple[float, ...] = (0.0, 0.5, 1.0)) -> str:
    """An evaluation of the first 300 training problems of addition, whose rates take turns."""
    task = load_task(load_config("task: {name: addition}").task)
    folder = root / "eval_runs" / f"@{name}_addition_train" / "model_addition_train"  # as eval --model names it
    folder.mkdir(parents=True)
    (folder.parent / "status.json").write_text(json.dumps({"model": "models/tiny"}))
    facts = {"metrics": {"split": "train", "num_samples": 4}, "task": {"name": "addition"}}
    (folder / "summary.json").write_text(json.dumps(facts))
    with (folder / "completions.jsonl").open("w") as file:
        for index in range(300):
            problem = task.problem("train", index)
            for sample in range(4):
                row = {"question": problem.question, "gold": problem.answer, "correct": sample < 4 * rates[index % 3]}
                file.write(json.dumps({"index": index, **row}) + "\n")
    return str(folder.parent.relative_to(root))


def test_problems_outside_the_pass_rate_are_left_out(
    make_root: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A resume needs only the run's copy of the rates."""
    torch.set_num_threads(1)
    root = make_root()
    source = write_measurement(root)
    cfg = write_mixture(root, {"name": "addition", "pass_rate": [0.1, 0.9]})
    run = train_here(root, cfg, "measured", "--until", "1")
    assert "keeps 100 training problems; left out: 200 outside the range, 6,776 that" in capsys.readouterr().out
    assert yaml.safe_load(run.config_file.read_text())["task"]["pass_rate"]["source"].startswith(source)
    shutil.rmtree(root / "eval_runs")
    prepare_resume(run, "latest", 3)
    assert main(["--run-dir", str(run.path)]) == 0
    assert {sample["index"] % 3 for sample in rows(run, "rollouts.jsonl")} == {1}
    info = json.loads((run.training_state / "step_3/training_info.json").read_text())
    assert info["pass_rate"] == {"addition": {"kept": 100, "outside": 200, "not_measured": 6776}}


@pytest.mark.parametrize(
    ("task", "measurements", "message"),
    [
        ({"pass_rate": [0.1, 0.9]}, [], "task.pass_rate: no measurement of tiny on addition; make one with"),
        ({"pass_rate": [0.1, 0.9]}, ["a", "b"], "task.pass_rate: several measurements, eval_runs/@a_addition_train"),
        ({"pass_rate": {"range": [0, 1], "source": "eval_runs/no"}}, ["a"], "'eval_runs/no' must be an evaluation on"),
    ],
)  # fmt: skip
def test_pass_rates_need_a_measurement(
    task: dict[str, Any], measurements: list[str], message: str, tmp_path: Path
) -> None:
    for name in measurements:
        write_measurement(tmp_path, name)
    config = load_config(text_of({"name": "addition", **task}))
    with pytest.raises(TaskError) as caught:
        resolved(config.task, config, tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [[0.9, 0.1], [0.1], [0.1, 1.5], 0.5])
def test_wrong_pass_rates_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"task\.pass_rate"):
        load_config(text_of({"name": "addition", "pass_rate": value}))
