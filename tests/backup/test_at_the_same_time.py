"""A backup beside a trainer that saves, prunes and rewinds, and two backups of one run."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup import collect, plan
from grpo_train.backup.logs import LogPlan
from grpo_train.backup.needs import BackupNeeds
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.take import BackupResult, back_up
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir, RunDirError, problem_of
from grpo_train.run_dir.errors import UserError
from grpo_train.train.retention import prune_checkpoints
from tests.support.backups import folder_destination, make_run, rewind, save, train_to
from tests.support.patience import PATIENCE


def _train(path: Path, rounds: int, ended: Path) -> None:
    """What a trainer does to its directory, without pause."""
    run = RunDir(path)
    for n in range(rounds):
        step = int(run.last_step_row()["step"]) + 1
        train_to(run, step, str(n))
        if not (run.training_state / f"step_{step}").exists():
            save(run, step, str(n))
        prune_checkpoints(run, keep_last=3, keep_every=0)
        if n % 7 == 6:
            steps = run.checkpoints()
            rewind(run, steps[0].step)
    ended.touch()


def test_backups_beside_a_trainer_are_right(tmp_path: Path) -> None:
    """Whatever it saves, prunes or rewinds meanwhile, a complete snapshot restores to a run that can be resumed."""
    run = make_run(tmp_path / "root", "one", 1)
    disk = folder_destination(tmp_path / "disk")
    ended = tmp_path / "ended"
    trainer = multiprocessing.get_context("fork").Process(target=_train, args=(run.path, 60, ended))
    trainer.start()
    made = []
    while not ended.exists() or not made:
        try:
            result = back_up(run.root, "training_runs", "one", disk)
            assert {each.code for each in result.omitted} <= {"damaged_here", "unreadable"}
            made += [result.snapshot] if result.is_new else []
        except RunDirError as error:
            assert error.code == "changed"  # noqa: PT017
    trainer.join(PATIENCE * 30)
    assert trainer.exitcode == 0
    assert not [row for row in run.read_log("events.jsonl") if row["event"] == "prune_failed"]
    home = Home("training_runs", "one", read_record(run.path).identity)
    assert verify(tmp_path / "nowhere", home, disk).is_sound
    for number in made:
        restore_folder(tmp_path / "b", home, disk, number=number)
        there = RunDir(tmp_path / "b" / "training_runs" / "one")
        point = there.checkpoint("latest", deep=True)
        logged = max(row["step"] for row in there.read_log("train_log.jsonl"))
        assert logged >= point.step, "the log reaches the checkpoint that a resume starts from"
        assert all(not problem_of(c.path, deep=True) for c in there.checkpoints())
        assert point.step == max(c.step for c in there.checkpoints())
        shutil.rmtree(tmp_path / "b")


def test_a_step_that_is_saved_again_is_not_taken_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind before the logs are read, and the same step again before the view is compared with the directory."""
    run = make_run(tmp_path / "root", "one", 1, 3)
    disk = folder_destination(tmp_path / "disk")
    back_up(run.root, "training_runs", "one", disk)
    plan_log, needs_of = plan.plan_log, plan.needs_of
    waiting = [rewind, train_to]

    def logs_after_a_rewind(*arguments: Any, **options: Any) -> LogPlan:
        if rewind in waiting:
            waiting.remove(rewind)
            rewind(run, 1)
        return plan_log(*arguments, **options)

    def needs_before_a_save(*arguments: Any) -> BackupNeeds:
        if train_to in waiting:
            waiting.remove(train_to)
            train_to(run, 3, "again")
            save(run, 3, "again")
        return needs_of(*arguments)

    monkeypatch.setattr(plan, "plan_log", logs_after_a_rewind)
    monkeypatch.setattr(plan, "needs_of", needs_before_a_save)
    assert back_up(run.root, "training_runs", "one", disk).is_new
    restore_folder(tmp_path / "b", Home("training_runs", "one", read_record(run.path).identity), disk)
    there = RunDir(tmp_path / "b" / "training_runs" / "one")
    assert [row["step"] for row in there.read_log("train_log.jsonl")] == [1, 2, 3]
    assert b"again" in (there.checkpoint("latest").path / "optimizer.pt").read_bytes()


def test_backups_of_two_boxes_do_not_collide(tmp_path: Path) -> None:
    """Copies of one run on two boxes, backed up at the same moment, both as continuations of snapshot 1."""
    first = make_run(tmp_path / "a", "one", 1)
    disk = folder_destination(tmp_path / "disk")
    for round_ in range(5):
        back_up(first.root, "training_runs", "one", disk)
        other = tmp_path / f"b{round_}"
        shutil.copytree(first.root, other, symlinks=True)
        second = RunDir(other / "training_runs" / "one")
        for run, salt in ((first, "here"), (second, "there")):
            train_to(run, 2 * round_ + 3, salt)
            save(run, 2 * round_ + 3, salt)
        barrier = threading.Barrier(2)
        done: list[BackupResult | UserError] = []

        def work(run: RunDir, barrier: threading.Barrier, done: list[BackupResult | UserError]) -> None:
            barrier.wait()
            try:
                done.append(back_up(run.root, "training_runs", "one", disk))
            except UserError as error:
                done.append(error)

        threads = [threading.Thread(target=work, args=(run, barrier, done)) for run in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results = [each for each in done if isinstance(each, BackupResult)]
        assert len(results) == 2, done
        assert len({(each.identity, each.snapshot) for each in results}) == 2, "two snapshots, never one replaced"
        for run in (first, second):
            home = Home("training_runs", "one", read_record(run.path).identity)
            found = StoredRun(disk.store, home)
            assert {each.state for each in found.snapshots()} == {"complete"}
            assert verify(tmp_path / "nowhere", home, disk).is_sound


def test_only_what_is_read_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruning does not wait for checkpoints that the store already has."""
    run = make_run(tmp_path / "root", "one", 1, 2, 3)
    disk = folder_destination(tmp_path / "disk")
    back_up(run.root, "training_runs", "one", disk, steps="1,2")
    announced: list[list[str]] = []
    pruned: list[int] = []
    store = disk.store.write

    def write(*arguments: Any) -> None:
        status = json.loads((run.root / "transfers" / "training_runs.one" / "status.json").read_text())
        announced.append(status["pending"])
        pruned.extend(prune_checkpoints(run, keep_last=1, keep_every=0))
        store(*arguments)

    save(run, 4)
    monkeypatch.setattr(disk.store, "write", write)
    assert back_up(run.root, "training_runs", "one", disk, transfers=1).steps == (1, 2, 3, 4)
    assert announced[0] == [f"training_runs/one/training_state/step_{step}" for step in (3, 4)]
    assert pruned == [1, 2]
    assert [c.step for c in run.checkpoints()] == [3, 4]


@pytest.mark.parametrize("place", ["training_state", "training_state/superseded/1"])
def test_a_checkpoint_that_appears_is_left_to_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Its files would be taken one by one, and could be gone in between."""
    run = make_run(tmp_path / "root", "one", 1, 2)
    (run.path / place).mkdir(parents=True, exist_ok=True)
    new = run.path / place / "step_3"
    shutil.copytree(run.training_state / "step_2", new)
    (run.path / place / "notes").mkdir()
    (run.path / place / "notes" / "mine.txt").write_text("kept")
    listed = collect.step_folders("training_runs", run.path)
    monkeypatch.setattr(collect, "step_folders", lambda *_: [path for path in listed if path != new])
    found = collect.collect("training_runs", run.path)
    assert not [file for file in found.files if "step_3" in file]
    assert f"{place}/notes/mine.txt" in found.files
    monkeypatch.undo()
    assert f"{place}/step_3" in [step.path for step in collect.collect("training_runs", run.path).steps]
