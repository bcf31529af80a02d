"""Evaluation plans: steps, names, subsets, environment variables, and rejected requests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.evaluation.plan import plan_evaluation, subset
from grpo_train.evaluation.request import EvalError, EvalRequest, environment_overrides
from grpo_train.policy.locate import PolicyError
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.files import read_jsonl
from tests.support.data import data_file
from tests.support.engine import command_here, write_micro


def targets(run: RunDir, **request: object) -> list[str]:
    plan, _ = plan_evaluation(run.root, EvalRequest("trained", **request))  # type: ignore[arg-type]
    return [target.name for target in plan.targets]


# ------------------------------------------------------------------------------------------------------------- plan


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ("all", ["step_1", "step_2", "step_3"]),
        ("latest", ["step_3"]),
        ("final", ["step_3"]),
        ("latest,final,3", ["step_3"]),
        ("3, 1,", ["step_3", "step_1"]),
        ("2,latest", ["step_2", "step_3"]),
    ],
)
def test_each_requested_step_is_a_target_once(three_steps: RunDir, steps: str, names: list[str]) -> None:
    assert targets(three_steps, steps=steps) == names


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"steps": "lastest"}, "'lastest' is not a step"),
        ({"steps": "7"}, r"no checkpoint step_7 \(complete steps: 1, 2, 3\)"),
        ({"steps": ""}, "--steps"),
        ({"dataset": "gsmk8"}, "unknown task 'gsmk8'; did you mean gsm8k"),
        ({"dataset": "gsm8k", "dataset_path": "/nowhere"}, "'/nowhere' does not exist"),
        ({"ckpt_path": Path("/nowhere")}, "no model found"),
        ({"opponents": ["random"]}, "--opponent random: task addition is not a game"),
        ({"dataset": "tictactoe", "opponents": ["no/where"]}, r"eval\.opponents: .*no/where: no model found"),
    ],
)
def test_invalid_requests_are_rejected(three_steps: RunDir, request_: dict[str, object], message: str) -> None:
    with pytest.raises(EvalError, match=message):
        targets(three_steps, **request_)


def test_a_split_without_problems_is_rejected(three_steps: RunDir, tmp_path: Path) -> None:
    """Published splits of MBPP go by task_id: a file with a part of them has only some of the splits."""
    row = next(row for _, row in read_jsonl(data_file("mbpp.jsonl")) if row["task_id"] == 11)
    (tmp_path / "mbpp.jsonl").write_text(json.dumps({**row, "task_id": 1}))
    with pytest.raises(EvalError, match="task mbpp: its test split has no problems"):
        targets(three_steps, dataset="mbpp", dataset_path=str(tmp_path))
    cfg = write_micro(tmp_path, task__name="mbpp", task__path=str(tmp_path))
    done = command_here("train", "--cfg", cfg, root=three_steps.root)
    assert (done.returncode, "task mbpp: its train split has no problems" in done.stderr) == (2, True)


def test_games_take_the_first_problems(three_steps: RunDir) -> None:
    whole, few, half = (
        plan_evaluation(
            three_steps.root, EvalRequest("trained", dataset="tictactoe", num_problems=most, subset_frac=share)
        )[0]
        for most, share in ((None, 1.0), (3, 1.0), (None, 0.5))
    )
    assert few.indices == [0, 1, 2]
    assert half.indices == list(range(len(whole.indices) // 2))


def test_an_unknown_run_is_rejected(three_steps: RunDir) -> None:
    with pytest.raises(RunDirError, match="did you mean trained"):
        plan_evaluation(three_steps.root, EvalRequest("traind"))


@given(st.integers(1, 400), st.integers(0, 5), st.lists(st.floats(0.001, 1), min_size=2, max_size=4))
def test_subsets_are_seeded_and_nested(size: int, seed: int, fractions: list[float]) -> None:
    previous: set[int] = set()
    for fraction in sorted(fractions):
        chosen = subset(size, fraction, seed)
        assert chosen == subset(size, fraction, seed) == sorted(set(chosen))
        assert 1 <= len(chosen) <= size
        assert len(chosen) - size * fraction < 1
        assert previous <= set(chosen)
        previous = set(chosen)
    assert subset(size, 1.0, seed) == list(range(size))


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\nb", "x" * 200])
def test_names_outside_the_tree_are_rejected(run: RunDir, name: str) -> None:
    with pytest.raises(EvalError, match="invalid name for results"):
        plan_evaluation(run.root, EvalRequest("trained", ckpt_path=run.training_state / "step_2", name=name))


def test_names_of_own_steps_are_reserved(run: RunDir, tmp_path: Path) -> None:
    own = run.training_state / "step_2"
    (plan, _) = plan_evaluation(run.root, EvalRequest("trained", ckpt_path=own))
    assert plan.targets[0].name == "step_2"
    with pytest.raises(EvalError, match="--name step_1: this name is reserved"):
        plan_evaluation(run.root, EvalRequest("trained", ckpt_path=own, name="step_1"))
    (tmp_path / "step_2").symlink_to(run.training_state / "step_1")
    with pytest.raises(EvalError, match="--ckpt-path step_2: this name is reserved"):
        plan_evaluation(run.root, EvalRequest("trained", ckpt_path=tmp_path / "step_2"))


def test_step_numbers_are_normalized(run: RunDir) -> None:
    (plan, skipped) = plan_evaluation(run.root, EvalRequest("trained", steps="00,0,02,2"))
    assert ([target.name for target in plan.targets], skipped) == (["step_0", "step_2"], [])
    for text in ("²", "٣"):
        with pytest.raises(EvalError, match=f"'{text}' is not a step"):
            plan_evaluation(run.root, EvalRequest("trained", steps=text))


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, {"task": {}, "eval": {}}),
        ({"MBPP_EVAL_NUM_QUESTIONS": "20", "MBPP_EVAL_TEMPERATURE": "0"},
         {"eval": {"num_problems": 20, "temperature": 0}}),
        ({"MBPP_DATASET_PATH": "/data", "MBPP_EVAL_TIMEOUT_SECONDS": "2.5"},
         {"task": {"path": "/data"}, "eval": {"problem_seconds": 2.5}}),
    ],
)  # fmt: skip
def test_mbpp_variables(variables: dict[str, str], found: dict[str, Any]) -> None:
    assert environment_overrides(variables) == {"task": {}, "eval": {}, **found}


@pytest.mark.parametrize(
    "variables",
    [{"MBPP_EVAL_NUM_QUESTIONS": "many"}, {"MBPP_EVAL_NUM_QUESTIONS": "0"}, {"MBPP_EVAL_TEMPERATURE": "-1"},
     {"MBPP_EVAL_TIMEOUT_SECONDS": "soon"}],
)  # fmt: skip
def test_invalid_variables_are_named(variables: dict[str, str]) -> None:
    (name,) = variables
    with pytest.raises(EvalError, match=f"{name}={variables[name]}"):
        environment_overrides(variables)


def test_several_greedy_samples_are_rejected(run: RunDir) -> None:
    with pytest.raises(EvalError, match="samples at temperature 0 are identical"):
        plan_evaluation(run.root, EvalRequest("trained", num_samples=4))


def test_runs_of_the_older_layout(three_steps: RunDir, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(three_steps.root / "models", root / "models")
    old = root / "rl_runs" / "old"
    shutil.copytree(three_steps.training_state / "step_2" / "model", old / "step_5")  # no manifest, no model/
    for name in ("old", "rl_runs/old", str(old)):
        plan, _ = plan_evaluation(root, EvalRequest(name, dataset="addition", steps="all"))
        assert [(target.name, target.step) for target in plan.targets] == [("step_5", 5)]
        assert (plan.run, plan.root, plan.config["model"]["backbone"]) == ("old", str(root), "models/tiny")
    adapter = old / "step_5" / "adapter_config.json"
    adapter.write_text(adapter.read_text().replace("models/tiny", "/nowhere/tiny"))
    with pytest.raises(PolicyError, match=r"base model '/nowhere/tiny' of .*step_5 not found: set --base"):
        plan_evaluation(root, EvalRequest("old", dataset="addition"))


def test_ckpt_path_implies_its_run(three_steps: RunDir) -> None:
    plan, _ = plan_evaluation(Path("/nowhere"), EvalRequest(None, ckpt_path=three_steps.training_state / "step_2"))
    assert (plan.run, plan.root) == ("trained", str(three_steps.root))
    with pytest.raises(EvalError, match="--training-run is required"):
        plan_evaluation(three_steps.root, EvalRequest(None, ckpt_path=three_steps.root / "models" / "tiny"))
