"""Retention of checkpoints: the rules, and that a checkpoint in use is never removed."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.evaluation import runner
from grpo_train.evaluation.output import Output
from grpo_train.evaluation.plan import EvalPlan, paths_in_use
from grpo_train.evaluation.request import EvalRequest
from grpo_train.evaluation.targets import Target, Unfinished
from grpo_train.run_dir import Checkpoint, RunDir, StatusWriter, create_run, problem_of, read_table
from grpo_train.run_dir.files import atomic_symlink, read_json, utc_now
from grpo_train.run_dir.processes import boot_id, identity, run_id_of
from grpo_train.run_dir.removal import exists_after_removal, hidden_name, remove_leftovers
from grpo_train.train import retention
from grpo_train.train.retention import prune_checkpoints
from tests.support.engine import GRPO_TRAIN, rows, running, train_here, wait_for, write_config
from tests.support.patience import PATIENCE
from tests.support.saving import small_checkpoint, whole


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Steps 1 to 5."""
    run = create_run(tmp_path / "root", {}, "one")
    for step in range(1, 6):
        small_checkpoint(run, step)
    return run


def events_of(run: RunDir, event: str) -> list[dict[str, Any]]:
    return [row for row in rows(run, "events.jsonl") if row["event"] == event]


# ------------------------------------------------------------------------------------------------------------- rules


@given(
    steps=st.sets(st.integers(1, 30), min_size=1),
    damaged=st.sets(st.integers(1, 30), max_size=3),
    keep_last=st.integers(0, 6),
    keep_every=st.integers(0, 7),
    final=st.integers(1, 30),
    read=st.sets(st.integers(1, 30), max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_only_what_the_rules_keep_stays(
    steps: set[int], damaged: set[int], keep_last: int, keep_every: int, final: int, read: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = create_run(Path(folder), {}, "one")
        for step in sorted(steps):
            small_checkpoint(run, step)
        if final in steps:
            atomic_symlink(run.training_state / "step_final", f"step_{final}")
        for step in damaged & steps:
            (run.training_state / f"step_{step}" / "optimizer.pt").unlink()
        announce(run, *read)
        complete = sorted(steps - damaged)
        stay = {
            step
            for step in steps
            if keep_last == 0
            or step in complete[-keep_last:]
            or (keep_every and step % keep_every == 0)
            or step in damaged | {final, max(steps)} | read
        }
        assert prune_checkpoints(run, keep_last=keep_last, keep_every=keep_every) == sorted(steps - stay)
        assert {checkpoint.step for checkpoint in run.checkpoints()} == stay
        assert not list(run.training_state.glob(".*"))
        assert [row["steps"] for row in events_of(run, "pruned")] == ([sorted(steps - stay)] if steps - stay else [])
        assert prune_checkpoints(run, keep_last=keep_last, keep_every=keep_every) == []


def test_superseded_steps_stay(run: RunDir) -> None:
    run.rewind(3)
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 2]
    (attic,) = (run.training_state / "superseded").iterdir()
    assert sorted(os.listdir(attic)) == ["step_4", "step_5"]


# ---------------------------------------------------------------------------------------------------- evaluations


def announce(run: RunDir, *steps: int, name: str = "one_addition", **status: Any) -> Path:
    """Write an evaluation's status.json as :class:`StatusWriter` does, for this process, so that it is live."""
    folder = run.root / "eval_runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    me = identity()
    pending = [f"training_runs/{run.name}/training_state/step_{step}" for step in steps]
    content = {
        "state": "evaluating", "training_run": run.name, "pending": pending, "updated_at": utc_now(),
        "pid": me.pid, "pid_start": me.pid_start, "host": me.host, "boot_id": me.boot_id, **status,
    }  # fmt: skip
    (folder / "status.json").write_text(json.dumps(content))
    return folder / "status.json"


LONG_AGO = "2020-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("status", "live"),
    [
        ({}, True),
        ({"state": "finished"}, False),
        ({"pid_start": 1}, False),
        ({"boot_id": "another"}, not boot_id()),
        ({"host": "elsewhere"}, True),
        ({"host": "elsewhere", "updated_at": LONG_AGO}, False),
        ({"training_run": "another"}, True),
    ],
    ids=["live", "ended", "dead", "rebooted", "other host", "silent other host", "other run"],
)
def test_live_evaluations_keep_their_steps(run: RunDir, status: dict[str, Any], live: bool) -> None:
    announce(run, 1, 3, **status)
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == ([2, 4] if live else [1, 2, 3, 4])


@pytest.mark.parametrize("spelling", ["{state}/step_2", "{state}/step_2/model", "{link}/step_2", "{root}/../step_2"])
def test_all_spellings_of_a_path_count(run: RunDir, tmp_path: Path, spelling: str) -> None:
    (tmp_path / "localfs").symlink_to(run.root)
    (tmp_path / "step_2").symlink_to(run.training_state / "step_2")
    link = tmp_path / "localfs" / "training_runs" / "one" / "training_state"
    announce(run, pending=[spelling.format(state=run.training_state, link=link, root=run.root)])
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 3, 4]
    announce(run, pending=[])
    through_the_link = RunDir(tmp_path / "localfs" / "training_runs" / "one")
    announce(run, 2)
    small_checkpoint(run, 6)
    assert prune_checkpoints(through_the_link, keep_last=1, keep_every=0) == [5]


def test_starting_weights_of_other_runs_stay(run: RunDir) -> None:
    """They may be the base of its LoRA adapter, needed by every resume and evaluation."""
    create_run(run.root, {"ckpt": str(run.training_state / "step_2" / "model")}, "shell")
    create_run(run.root, {"ckpt": "training_runs/one/training_state/step_3"}, "agent")
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 4]


def test_step_announced_during_removal_stays(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the removal's first and second check."""

    def announce_now(step: int) -> str:
        announce(run, 1, 2)
        return hidden_name(step)

    monkeypatch.setattr(retention, "hidden_name", announce_now)
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [3, 4]
    assert whole(run) == [1, 2, 5]
    assert not list(run.training_state.glob(".*"))


def test_evaluations_wait_for_a_removal(run: RunDir) -> None:
    place = run.training_state / "step_1"
    going = run.training_state / hidden_name(1)
    going.mkdir()
    threading.Timer(0.2, lambda: place.rename(going)).start()
    assert not exists_after_removal(place), "removed"
    going = run.training_state / hidden_name(2)
    going.mkdir()
    threading.Timer(0.2, going.rmdir).start()
    assert exists_after_removal(run.training_state / "step_2" / "model"), "the removal backed off"
    assert not going.exists()
    going.mkdir()
    assert exists_after_removal(run.training_state / "step_2", patience_s=0.1), "leftover of a kill"
    assert exists_after_removal(run.training_state / "step_3")
    assert not exists_after_removal(run.training_state / "step_7")


def _evaluate_repeatedly(path: Path, until: Path, result: Any) -> None:
    """Announce the oldest step, check that it exists, and read it: it must stay to the end."""
    run = RunDir(path)
    folder = run.root / "eval_runs" / "one_addition"
    folder.mkdir(parents=True)
    status = StatusWriter(folder, training_run=run.name)
    read, vanished, broken = 0, 0, []
    while not until.exists():
        steps = run.checkpoints()
        if not steps:
            continue
        place = steps[0].path
        status.update(state="evaluating", pending=[os.path.relpath(place, run.root)])
        if not exists_after_removal(place):
            vanished += 1
            continue
        for _ in range(3):
            if problem := problem_of(place, deep=True):
                broken.append(f"{place.name}: {problem}")
        read += 1
        status.update(pending=[])
    result.put((read, vanished, broken))


def test_no_race_removes_a_step_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path / "root", {}, "one")
    is_read = retention.is_read

    def check_slowly(run: RunDir, checkpoint: Checkpoint) -> bool:
        answer = is_read(run, checkpoint)
        time.sleep(0.002)  # widens the window between check and removal
        return answer

    monkeypatch.setattr(retention, "is_read", check_slowly)
    until = tmp_path / "until"
    context = multiprocessing.get_context("fork")
    result = context.Queue()
    reader = context.Process(target=_evaluate_repeatedly, args=(run.path, until, result))
    reader.start()
    pruned: list[int] = []
    for step in range(1, 250):
        small_checkpoint(run, step)
        pruned += prune_checkpoints(run, keep_last=1, keep_every=0)
    until.write_text("")
    read, vanished, broken = result.get(timeout=PATIENCE * 30)
    reader.join()
    print(f"{len(pruned)} pruned, {read} read, {vanished} vanished before they were read")
    assert broken == []
    assert read > 3
    assert len(pruned) > 100
    assert not events_of(run, "prune_failed")


# ------------------------------------------------------------------------------------------------------- failures


def test_failed_rename_is_logged_and_training_continues(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == []
    (row,) = events_of(run, "prune_failed")
    assert (row["step"], "Permission denied" in row["error"]) == (5, True)
    assert whole(run) == [1, 2, 3, 4, 5]
    assert not list(run.training_state.glob(".*"))


def test_failed_deletion_is_retried_later(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(path: Path) -> None:
        raise OSError(39, "Directory not empty", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", busy)
        assert prune_checkpoints(run, keep_last=4, keep_every=0) == [1]
    assert "Directory not empty" in events_of(run, "prune_failed")[0]["error"]
    assert whole(run) == [2, 3, 4, 5]
    remove_leftovers(run)
    assert not list(run.training_state.glob(".*"))


@pytest.mark.parametrize("status", [{"pid": "many"}, {"pending": 3}, {"host": "elsewhere", "updated_at": "noon"}])
def test_malformed_status_prevents_removal(run: RunDir, status: dict[str, Any]) -> None:
    file = announce(run, 1, **status)
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == []
    assert str(file) in events_of(run, "prune_failed")[0]["error"]
    assert whole(run) == [1, 2, 3, 4, 5]


def test_malformed_status_between_checks_keeps_step(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status becomes unreadable between the two checks."""
    monkeypatch.setattr(retention, "hidden_name", lambda step: announce(run, 1, pid="many") and hidden_name(step))
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == []
    assert whole(run) == [1, 2, 3, 4, 5]


def test_full_disk_does_not_end_the_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RunDir, event: str, **fields: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDir, "log_event", full)
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 2, 3, 4]


# -------------------------------------------------------------------------------------------- the evaluation's side


@pytest.fixture
def quiet_runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs an evaluation's parent in this process, without its process-wide settings."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(runner, "become_subreaper", lambda: None)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def plan_of(run: RunDir, *steps: int) -> EvalPlan:
    config = {
        "eval": {"timeout": 1, "max_completion_length": None},
        "rollout": {"max_completion_length": 8},
        "task": {},
        "run": {"seed": 0},
    }
    targets = [Target(f"step_{step}", step, str(run.training_state / f"step_{step}")) for step in steps]
    folder = run.root / "eval_runs" / "one_addition"
    return EvalPlan(run.name, str(run.root), str(folder), "addition", config, [0], targets, None)


def evaluate_here(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, plan: EvalPlan, child: Callable[[Any, EvalPlan], set[str]]
) -> tuple[int, dict[str, Any]]:
    """Run an evaluation whose child is a function; returns exit code and final status."""
    monkeypatch.setattr(runner, "make_plan", lambda root, request: (plan, []))
    monkeypatch.setattr(runner, "each_task", lambda root, request: [request])
    monkeypatch.setattr(runner.Evaluation, "_run_workers", child)
    (outcome,) = runner.run_evaluations(run.root, [EvalRequest(run.name)])
    return outcome.exit_code, read_json(Path(plan.folder) / "status.json") or {}


def test_evaluations_announce_steps_until_done(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, quiet_runner: None
) -> None:
    seen: list[list[int]] = []

    def child(self: Any, plan: EvalPlan) -> set[str]:
        seen.append(prune_checkpoints(run, keep_last=1, keep_every=0))
        self._release(plan, {"step_3"})
        seen.append(prune_checkpoints(run, keep_last=1, keep_every=0))
        return {target.name for target in plan.targets}

    code, status = evaluate_here(run, monkeypatch, plan_of(run, 3, 4), child)
    assert (code, status["state"], status["pending"]) == (0, "finished", [])
    assert seen == [[1, 2], [3]]
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [4]


def test_removed_step_is_skipped_not_failed(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, quiet_runner: None, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(run, 2, 5)
    asked: list[str] = []

    def child(self: Any, plan: EvalPlan) -> set[str]:
        asked.extend(target.name for target in plan.targets)
        return {target.name for target in plan.targets}

    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 2, 3, 4]
    code, status = evaluate_here(run, monkeypatch, plan, child)
    assert (code, status["state"], status["failures"], asked) == (0, "finished", [], ["step_5"])
    assert status["skipped"][0]["name"] == "step_2"
    assert "step_2: skipped: removed after it was requested" in capfd.readouterr().out
    (row,) = [row for row in read_table(Path(plan.folder)) if row["name"] == "step_2"]
    assert (row["status"], row["code"]) == ("skipped", "no_checkpoint")


def test_evaluation_without_remaining_steps_fails(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, quiet_runner: None
) -> None:
    plan = plan_of(run, 1)
    prune_checkpoints(run, keep_last=1, keep_every=0)
    code, status = evaluate_here(run, monkeypatch, plan, lambda self, plan: set())
    assert (code, status["state"], status["exit_code"]) == (1, "finished", 1)
    assert status["error"]["summary"].startswith("step_1: removed after")


def test_step_removed_while_read_is_not_a_failure(run: RunDir) -> None:
    """Removed by another host, whose status an NFS mount may show late, or by hand."""
    plan = plan_of(run, 1, 2)
    Path(plan.folder).mkdir(parents=True)
    status = StatusWriter(Path(plan.folder), training_run=run.name)
    evaluation = runner.Evaluation(plan, [], status, Output())
    shutil.rmtree(run.training_state / "step_1")
    evaluation._fail("step_1", "FileNotFoundError: model.safetensors", "io")
    evaluation._fail("step_2", "timed out after 1 s", "timeout")
    status.close()
    assert [failure.status for failure in evaluation._failed] == ["skipped", "failed"]
    assert evaluation._failed[1] == Unfinished("step_2", 2, "failed", "timed out after 1 s", "timeout")


def test_evaluations_announce_all_paths(run: RunDir, tmp_path: Path) -> None:
    """A checkpoint below a linked root, one outside it, an adapter's base; not the root itself (the backbone)."""
    (tmp_path / "localfs").symlink_to(run.root)
    outside = tmp_path / "step_9"
    outside.mkdir()
    state = tmp_path / "localfs" / "training_runs" / "one" / "training_state"
    plan = replace(plan_of(run), root=str(tmp_path / "localfs"), base="training_runs/one/training_state/step_1/model")
    targets = [
        Target("step_0", 0, plan.root),
        Target("latest", 5, str(state / "step_latest")),
        Target("mine", 9, str(outside)),
    ]
    inside = "training_runs/one/training_state"
    assert paths_in_use(plan, targets) == [f"{inside}/step_5", str(outside), f"{inside}/step_1/model"]


def test_killed_evaluation_releases_its_steps(make_root: Callable[[], Path]) -> None:
    root = make_root()
    cfg = write_config(root, run__total_steps=3, model__adapter="lora")
    run = train_here(root, cfg, "trained")
    folder = root / "eval_runs" / "trained_addition"
    command = [*GRPO_TRAIN, "eval", "--training-run", "trained", "--subset-frac", "0.3", "--batch-size", "4"]
    with running(command, root, run_id_of(folder)) as parent:
        status = lambda: read_json(folder / "status.json") or {}  # noqa: E731
        wait_for(lambda: status().get("pending"), "the evaluation to announce what it reads")
        assert prune_checkpoints(run, keep_last=1, keep_every=0) == []
        parent.kill()
        parent.wait()
    assert status()["pending"] == [f"training_runs/trained/training_state/step_{step}" for step in (1, 2, 3)]
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 2]
