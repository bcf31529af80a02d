"""A resumed evaluation writes the same bytes as an uninterrupted one."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_train.evaluation.plan import plan_evaluation
from grpo_train.evaluation.request import EvalRequest
from grpo_train.evaluation.results import keys, partial
from grpo_train.evaluation.workers import worker
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_json
from grpo_train.tasks.addition import AdditionTask
from tests.support.engine import REPOSITORY, environment, grpo_train, wait_for
from tests.support.evaluating import (
    SAMPLED,
    copy_of,
    evaluate_here,
    evaluate_until,
    files_of,
    partial_of,
    record_generated,
    step_of,
    stopped_after,
)
from tests.support.forked import Fork


def test_a_kill_at_any_write_changes_no_byte(trained: RunDir, whole: dict[str, bytes], tmp_path: Path) -> None:
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


def test_only_missing_samples_are_generated(
    run: RunDir, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate_until(run, 2, torn=True)
    done = set(partial_of(run).completions())
    assert len(done) == 8
    items = record_generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert sorted(items) == sorted(set(range(24)) - done)
    items.clear()
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert items == [], "already complete"
    assert files_of(step_of(run)) == whole


def test_sigkill_of_the_command(run: RunDir, whole: dict[str, bytes], tmp_path: Path) -> None:
    """Of the real command, with samples on disk; its workers end with it."""
    options = ["eval", "--training-run", "trained", "--steps", "2", "--num-problems", "12", "--num-samples", "2"]
    words = [*options, "--temperature", "1", "--batch-size", "2"]
    seen = 0
    for writes in (1, 3):
        variables = stopped_after(writes, tmp_path / f"after_{writes}", "os.kill(os.getppid(), signal.SIGKILL)")
        process = Fork(["grpo_train.cli", *words], environment(run.root, **variables), REPOSITORY)
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, output
        wait_for(lambda: not workers_of(run), "the workers to end")
        assert not step_of(run).exists()
        done = len(partial_of(run).completions())
        assert seen < done < 24
        seen = done
    finished = grpo_train(*words, root=run.root)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"resuming: {seen} of 24 samples done" in finished.stdout
    assert files_of(step_of(run)) == whole


def workers_of(run: RunDir) -> list[str]:
    """Evaluating processes of this root."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"LOCALFS_ROOT={run.root}".encode() in entry.read_bytes().split(b"\0"):
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def test_other_settings_replace_only_when_complete(
    run: RunDir, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SAMPLED, "temperature", 0.5)
        assert evaluate_until(run, 3, torn=False)
    assert files_of(step_of(run)) == whole, "the old result stays until the new one is complete"
    items = record_generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert items == [], "the result of the first settings is complete"
    assert evaluate_here(run.root, "trained", steps="2", **{**SAMPLED, "temperature": 0.7}) == 0
    assert sorted(items) == list(range(24)), "no sample of temperature 0.5 is reused"
    assert (read_json(step_of(run) / "summary.json") or {})["metrics"]["temperature"] == 0.7


# --------------------------------------------------------------------------------------------------------- processes


def test_two_processes_write_the_same_files(run: RunDir, whole: dict[str, bytes]) -> None:
    """The real command, on the CPU."""
    done = grpo_train(
        "eval", "--training-run", "trained", "--steps", "2", "--num-problems", "12", "--num-samples", "2",
        "--temperature", "1", "--batch-size", "2", "--nproc", "2", root=run.root,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert files_of(step_of(run)) == whole
    assert (read_json(step_of(run) / "timing.json") or {})["processes"] == 2


def test_three_processes_finish_what_two_started(run: RunDir, whole: dict[str, bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SAMPLED, "nproc", 2)
        assert evaluate_until(run, 3, torn=True)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED, nproc=3) == 0
    assert files_of(step_of(run)) == whole


def test_checkpoints_do_not_accumulate_in_memory(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live tensors before each of four checkpoints."""
    import torch

    for step in (3, 4):
        shutil.copytree(run.training_state / "step_2", run.training_state / f"step_{step}")
    held: list[int] = []
    original = worker.evaluate_target

    def tensors() -> list[torch.Tensor]:
        """Of numbers: transformers keeps tables of tokens for the last eight tokenizers."""
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.is_floating_point()]

    others = tensors()  # of tests before this one
    known = {id(each) for each in others}

    def evaluate(*arguments: Any) -> None:
        held.append(sum(each.nbytes for each in tensors() if id(each) not in known))
        original(*arguments)

    monkeypatch.setattr(worker, "evaluate_target", evaluate)
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    plan, _ = plan_evaluation(run.root, EvalRequest("trained", **SAMPLED))
    task = AdditionTask(name="addition", label="addition")
    config = keys.Config.model_validate(plan.config)
    problems = [task.problem("test", index) for index in plan.indices]
    targets = []
    for target in plan.targets:
        key = keys.key_of(plan, target, config, task, problems)
        Path(plan.folder).mkdir(parents=True, exist_ok=True)
        partial.Partial.beside(plan.result_folder(target)).open(key)
        targets.append(replace(target, key=key))
    file = run.root / "plan.json"
    file.write_text(json.dumps(replace(plan, targets=targets).to_json()))
    read_end, write_end = os.pipe()
    monkeypatch.setattr(sys, "argv", ["worker", str(file), str(write_end), "0", "1"])
    assert worker.main() == 0
    os.close(write_end)
    events = [json.loads(line)["event"] for line in os.read(read_end, 1 << 16).splitlines()]
    os.close(read_end)
    assert events.count("done") == 4
    assert held[1:] == [held[0]] * 3
