"""Retention of checkpoints: the rules, and that a checkpoint in use is never removed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.run_dir import Checkpoint, RunDir, create_run
from grpo_train.run_dir.clock import SystemClock
from grpo_train.run_dir.files import atomic_symlink, utc_now
from grpo_train.run_dir.keeping import exists_after_removal, hidden_name, remove_hidden
from grpo_train.run_dir.processes import boot_id, identity
from grpo_train.train import retention
from grpo_train.train.retention import prune_checkpoints
from tests.support.clock import LeapingClock, TestClock
from tests.support.engine import rows
from tests.support.saving import small_checkpoint, whole


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
    class Waiting(SystemClock):
        """What happens elsewhere while an evaluation waits, once."""

        happens: Callable[[], object] | None = None

        def sleep(self, seconds: float) -> None:
            assert self.happens is not None, "nothing to wait for"
            self.happens()
            self.happens = None

    clock = Waiting()
    place = run.training_state / "step_1"
    going = run.training_state / hidden_name(1)
    going.mkdir()
    clock.happens = lambda: place.rename(going)
    assert not exists_after_removal(place, clock=clock), "removed"
    going = run.training_state / hidden_name(2)
    going.mkdir()
    clock.happens = going.rmdir
    assert exists_after_removal(run.training_state / "step_2" / "model", clock=clock), "the removal backed off"
    assert not going.exists()
    going.mkdir()
    assert exists_after_removal(run.training_state / "step_2", clock=LeapingClock()), "leftover of a kill"
    assert exists_after_removal(run.training_state / "step_3", clock=clock)
    assert not exists_after_removal(run.training_state / "step_7", clock=clock)


@pytest.mark.parametrize("check", [1, 2], ids=["before the hidden name", "before the rename"])
def test_no_order_removes_a_step_in_use(run: RunDir, monkeypatch: pytest.MonkeyPatch, check: int) -> None:
    """An evaluation announces the step after a check of the removal: one of the two sees the other.

    tests/soak lets them race.
    """
    is_read, clock, checks = retention.is_read, TestClock(), 0
    place = run.training_state / "step_1"

    def announce_after(run: RunDir, checkpoint: Checkpoint) -> bool:
        nonlocal checks
        answer = is_read(run, checkpoint)
        checks += 1
        if checks == check:
            announce(run, 1)
            reader.start()
            if check == 2:
                clock.wait_for_threads(1)
        return answer

    found: list[bool] = []
    reader = threading.Thread(target=lambda: found.append(exists_after_removal(place, clock=clock)))
    monkeypatch.setattr(retention, "is_read", announce_after)
    pruned = prune_checkpoints(run, keep_last=4, keep_every=0)
    clock.advance(1)
    reader.join()
    assert found == [place.exists()] == [check == 1]
    assert pruned == ([1] if check == 2 else [])


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
    remove_hidden(run)
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
