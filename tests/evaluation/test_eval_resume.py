"""An evaluation that was interrupted and run again is the one that was not; what differs is not mixed."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_train.evaluation.plan import EvalRequest, make_plan
from grpo_train.evaluation.results import keys, partial
from grpo_train.evaluation.workers import worker as child
from grpo_train.rollout import seed_of
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_json
from grpo_train.tasks.addition import AdditionTask
from tests.support.engine import GRPO_TRAIN, environment, grpo_train, wait_for
from tests.support.evaluating import (
    SAMPLED,
    copy_of,
    evaluate_here,
    evaluate_until,
    files_of,
    generated,
    partial_of,
    step_of,
)

# ------------------------------------------------------------------------------------------------------- interrupted


def test_killed_at_every_write_it_goes_on_to_the_same_files(
    trained: RunDir, whole: dict[str, bytes], tmp_path: Path
) -> None:
    points = 0
    while True:
        run = copy_of(trained, tmp_path / f"at_{points}")
        if not evaluate_until(run, points, torn=points % 2 == 1):
            break
        assert not step_of(run).exists()
        points += 1
        assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
        assert files_of(step_of(run)) == whole, f"killed at write {points - 1}"
        assert not partial_of(run).path.exists()
    assert points == 6, "three chunks of completions, three of verdicts"


def test_only_what_is_missing_is_generated(
    run: RunDir, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate_until(run, 2, torn=True)
    there = set(partial_of(run).completions())
    assert len(there) == 8
    items = generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert sorted(items) == sorted(set(range(24)) - there)
    items.clear()
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert items == [], "complete already"
    assert files_of(step_of(run)) == whole


def test_killed_at_random_by_a_signal(run: RunDir, whole: dict[str, bytes]) -> None:
    """The real command line; parent and child get SIGKILL when a random number of samples is on disk."""
    words = ["eval", "--training-run", "trained", "--steps", "2", "--num-problems", "12", "--num-samples", "2"]
    command = [*words, "--temperature", "1", "--batch-size", "2"]
    seen = 0
    for low in (1, 9):
        wanted = random.randint(low, low + 7)
        process = subprocess.Popen(
            [*GRPO_TRAIN, *command],
            env=environment(run.root),
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        files = partial_of(run).path
        lines = lambda: sum(file.read_bytes().count(b"\n") for file in files.glob("completions.*"))  # noqa: B023, E731
        try:
            wait_for(lambda: lines() >= wanted or process.poll() is not None, "samples")  # noqa: B023
        finally:
            process.send_signal(signal.SIGKILL)
            said, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, said
        wait_for(lambda: not children_of(run), "the children's end")
        assert not step_of(run).exists()
        assert len(partial_of(run).completions()) >= seen
        seen = len(partial_of(run).completions())
    done = grpo_train(*command, root=run.root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"goes on with {seen} of 24 samples" in done.stdout
    assert files_of(step_of(run)) == whole


def children_of(run: RunDir) -> list[str]:
    """Evaluating processes of this root."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"LOCALFS_ROOT={run.root}".encode() in entry.read_bytes().split(b"\0"):
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


# -------------------------------------------------------------------------------------------------------------- keys


def test_other_settings_start_afresh_and_replace_only_when_complete(
    run: RunDir, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SAMPLED, "temperature", 0.5)
        assert evaluate_until(run, 3, torn=False)
    assert files_of(step_of(run)) == whole, "the old result stays until there is a new one"
    items = generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert items == [], "that of the first settings is complete"
    assert evaluate_here(run.root, "trained", steps="2", **{**SAMPLED, "temperature": 0.7}) == 0
    assert sorted(items) == list(range(24)), "nothing of temperature 0.5 is in it"
    assert (read_json(step_of(run) / "summary.json") or {})["metrics"]["temperature"] == 0.7


def test_the_key_names_all_that_matters(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(step: int = 2, **request: Any) -> dict[str, Any]:
        plan, _ = make_plan(run.root, EvalRequest("trained", steps=str(step), **{**SAMPLED, **request}))
        config = keys.Config.model_validate(plan.config)
        task = AdditionTask(name="addition", label="addition")
        problems = [task.problem(config.eval.split, index) for index in plan.indices]
        return keys.key_of(plan, plan.targets[0], config, task, problems)

    first = key()
    assert key() == first
    assert key(batch_size=64) == first == key(nproc=2, timeout=5.0)
    for other in ({"step": 1}, {"temperature": 0.5}, {"top_p": 0.9}, {"num_samples": 3}, {"num_problems": 7},
                  {"max_completion_length": 9}, {"split": "train"}):  # fmt: skip
        assert key(**other)["samples"] != first["samples"], other
        assert key(**other)["grading"] == first["grading"], other
    keys.folder_key.cache_clear()
    tokenizer = next((run.root / "models" / "tiny").glob("tokenizer.json"))
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert key()["samples"]["weights"] != first["samples"]["weights"]
    keys.folder_key.cache_clear()


def test_a_graders_key_is_the_source_that_it_uses(tmp_path: Path) -> None:
    files: dict[Path, None] = {}
    keys._gather(keys.PACKAGE / "tasks" / "addition.py", files, set())
    names = {str(file.relative_to(keys.PACKAGE)) for file in files}
    assert {"tasks/addition.py", "rewards/accuracy.py", "rewards/number_parser.py", "tasks/base.py"} <= names
    assert not names & {"tasks/gsm8k.py", "tasks/__init__.py", "schema.py"}
    own, libraries = tmp_path / "mine.py", set[str]()
    own.write_text("import json\nimport numpy as np\nfrom grpo_train.rewards.number import grade_number\n")
    files.clear()
    keys._gather(own, files, libraries)
    assert libraries == {"numpy"}
    assert own in files
    assert keys.PACKAGE / "rewards" / "number.py" in files


def test_seeds_are_a_samples_own() -> None:
    seeds = {seed_of(base, label, index, sample) for base in (0, 1) for label in ("a", "b")
             for index in range(20) for sample in range(4)}  # fmt: skip
    assert len(seeds) == 320
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(3, "addition", 7, 1) == seed_of(3, "addition", 7, 1)


# --------------------------------------------------------------------------------------------------------- processes


def test_two_processes_make_what_one_makes(run: RunDir, whole: dict[str, bytes]) -> None:
    """Really two: the command line, on the CPU."""
    done = grpo_train(
        "eval", "--training-run", "trained", "--steps", "2", "--num-problems", "12", "--num-samples", "2",
        "--temperature", "1", "--batch-size", "2", "--nproc", "2", root=run.root,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert files_of(step_of(run)) == whole
    assert (read_json(step_of(run) / "timing.json") or {})["processes"] == 2


def test_what_two_began_three_can_finish(run: RunDir, whole: dict[str, bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SAMPLED, "nproc", 2)
        assert evaluate_until(run, 3, torn=True)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED, nproc=3) == 0
    assert files_of(step_of(run)) == whole


def test_several_checkpoints_do_not_pile_up(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live tensors after each of four checkpoints, as ``child.main`` leaves them."""
    import torch

    for step in (3, 4):
        shutil.copytree(run.training_state / "step_2", run.training_state / f"step_{step}")
    held: list[int] = []
    original = child.evaluate

    def evaluate(*arguments: Any) -> None:
        gc.collect()
        held.append(sum(each.nbytes for each in gc.get_objects() if isinstance(each, torch.Tensor)))
        original(*arguments)

    monkeypatch.setattr(child, "evaluate", evaluate)
    monkeypatch.setattr(child, "die_with_parent", lambda number: None)
    plan, _ = make_plan(run.root, EvalRequest("trained", **SAMPLED))
    task = AdditionTask(name="addition", label="addition")
    config = keys.Config.model_validate(plan.config)
    problems = [task.problem("test", index) for index in plan.indices]
    targets = []
    for target in plan.targets:
        key = keys.key_of(plan, target, config, task, problems)
        Path(plan.folder).mkdir(parents=True, exist_ok=True)
        partial.Partial.beside(plan.final(target)).open(key)
        targets.append(replace(target, key=key))
    file = run.root / "plan.json"
    file.write_text(json.dumps(replace(plan, targets=targets).to_json()))
    read_end, write_end = os.pipe()
    monkeypatch.setattr(sys, "argv", ["child", str(file), str(write_end), "0", "1"])
    assert child.main() == 0
    os.close(write_end)
    said = [json.loads(line)["event"] for line in os.read(read_end, 1 << 16).splitlines()]
    os.close(read_end)
    assert said.count("done") == 4
    assert held[1:] == [held[0]] * 3
