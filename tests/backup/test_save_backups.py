"""``backup.every_save``: backups beside the training, trouble that ends nothing, and what ``keep_last`` may remove."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.backup_yaml import Bucket, Folder
from grpo_train.backup.destinations import open_destination, rate_beside_training
from grpo_train.backup.terminate import safe_to_terminate
from grpo_train.cli.backup import any_trains, trains
from grpo_train.cli.transfer import opened
from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, StatusWriter
from grpo_train.run_dir.backup_note import steps_in_backup
from grpo_train.run_dir.files import read_json
from grpo_train.supervisor.journal import Journal, ProgressLine
from grpo_train.supervisor.notify import Notifier
from grpo_train.supervisor.save_backups import SaveBackups
from grpo_train.train.retention import prune_checkpoints
from tests.support.backups import backup, folder_destination, make_run, newest, save, set_state, train_to
from tests.support.engine import command_here, events, grpo_train, rows, run_of, wait_for, write_config
from tests.support.stores import other_disk, write_destinations


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "root", "one", 10)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with other_disk(tmp_path) as folder:
        yield folder


@contextmanager
def supervised(run: RunDir) -> Iterator[tuple[SaveBackups, Callable[[], dict[str, Any]]]]:
    """What a supervisor does besides training, and its state."""
    config = load_config("backup: {every_save: true}")
    journal = Journal(run, ProgressLine(False))
    with closing(journal), SaveBackups(run, config, journal, Notifier(run, config.notify)).beside() as backups:
        yield backups, lambda: journal.status.fields["backup"]


def grow(run: RunDir, step: int) -> None:
    train_to(run, step)
    save(run, step)


def test_each_save_is_backed_up(run: RunDir, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    with supervised(run) as (_, state):
        wait_for(lambda: state() == {"state": "done", "step": 10}, "the first backup")
        grow(run, 20)
        wait_for(lambda: state() == {"state": "done", "step": 20}, "the second backup")
    to = open_destination(None, run.root, write=False)
    assert {step.step for step in newest(run, to).steps} == {10, 20}
    assert "backup_failed" not in events(run)


@pytest.mark.parametrize(("state", "stage", "is_slow"), [
    ("running", "train", True), ("evaluating", "eval", True), ("running", "backup", False), ("finished", "", False),
])  # fmt: skip
def test_a_backup_is_slow_while_the_run_trains(
    run: RunDir, disk: Path, monkeypatch: pytest.MonkeyPatch, state: str, stage: str, is_slow: bool
) -> None:
    """But not while its workflow waits for the backup, and not against a limit that the user has set."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    with closing(StatusWriter(run.path)) as status:
        status.update(state=state, stage=stage)
        assert trains(run) is any_trains(run.root) is is_slow
    write_destinations({"name": "disk", "folder": str(disk)})
    assert opened(None, run.root, is_training=is_slow).limit == (50_000_000 if is_slow else None)
    write_destinations({"name": "disk", "folder": str(disk), "limit": "1G"})
    assert opened(None, run.root, is_training=is_slow).limit == 1 << 30


@pytest.mark.parametrize(("cpus", "to_disk", "to_bucket"), [(1, 25, 25), (26, 100, 650)])
def test_how_slow_depends_on_the_processors(
    monkeypatch: pytest.MonkeyPatch, cpus: int, to_disk: int, to_bucket: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cpus)))
    assert rate_beside_training(Folder(name="disk", folder="/mnt/disk")) == to_disk * 1_000_000
    assert rate_beside_training(Bucket(name="s3")) == to_bucket * 1_000_000


def test_trouble_is_an_event_and_a_state(run: RunDir, disk: Path) -> None:
    """Nothing is described: told once. The next save goes where one is."""
    with supervised(run) as (_, state):
        wait_for(lambda: state()["state"] == "failed", "the failure")
        assert (state()["step"], state()["code"]) == (10, "no_destination")
        grow(run, 20)
        wait_for(lambda: state()["step"] == 20 and state()["state"] == "failed", "the second failure")
        write_destinations({"name": "disk", "folder": str(disk)})
        grow(run, 30)
        wait_for(lambda: state() == {"state": "done", "step": 30}, "the backup")
    (event,) = rows_of(run, "backup_failed")
    assert (event["step"], event["code"]) == (10, "no_destination")


def rows_of(run: RunDir, event: str) -> list[dict[str, Any]]:
    return [row for row in rows(run, "events.jsonl") if row["event"] == event]


def test_stages_come_before_save_backups(run: RunDir, disk: Path) -> None:
    """A backup that would take hours is ended for a stage, and continued after it."""
    (run.path / "large.bin").write_bytes(b"x" * 4_000_000)
    write_destinations({"name": "disk", "folder": str(disk), "limit": "1k"})
    status = run.root / "transfers" / "training_runs.one" / "status.json"
    with supervised(run) as (backups, state):
        wait_for(lambda: list(disk.rglob(".*.partial")) or list(disk.rglob("training_state")), "an upload")
        with backups.paused():
            assert command_here("backup", "--training-run", "one", "--limit", "1G", root=run.root).returncode == 0
            write_destinations({"name": "disk", "folder": str(disk)})
        wait_for(lambda: state() == {"state": "done", "step": 10}, "the backup")
        assert (read_json(status) or {})["state"] == "finished"
    assert "backup_failed" not in events(run)


def test_only_backed_up_steps_are_pruned(run: RunDir, tmp_path: Path) -> None:
    for step in (20, 30):
        grow(run, step)
    same = folder_destination(tmp_path / "same", same_disk=True)
    backup(run, same)
    assert prune_checkpoints(run, keep_last=1, keep_every=0, only_backed_up=True) == [], "no second copy"
    to = folder_destination(tmp_path / "disk")
    backup(run, to, steps="10")
    assert prune_checkpoints(run, keep_last=1, keep_every=0, only_backed_up=True) == [10]
    backup(run, to)
    assert steps_in_backup(run.path) == {10: "disk"}
    (run.training_state / "step_20" / "MANIFEST.json").write_text(
        (run.training_state / "step_20" / "MANIFEST.json").read_text() + "\n"
    )
    assert prune_checkpoints(run, keep_last=1, keep_every=0, only_backed_up=True) == [], "another step_20"
    (run.path / ".backup.json").write_text("damaged")
    assert prune_checkpoints(run, keep_last=1, keep_every=0, only_backed_up=True) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"backup__every_save": True, "backup__to": "dsik"},
        {"workflow__stages": ["train", {"backup": {"to": "dsik"}}]},
        {"workflow__stages": [{"repeat": {"every": 1, "stages": ["train", {"cleanup": {"to": "dsik"}}]}}]},
    ],
    ids=["every save", "stage", "repeated stage"],
)
def test_an_unknown_destination_is_refused_before_training(root: Path, disk: Path, changes: dict[str, Any]) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    done = command_here("train", "--cfg", write_config(root, **changes), "--run-name", "one", root=root)
    assert (done.returncode, "did you mean disk?" in done.stderr) == (2, True)
    assert not (root / "training_runs").exists()


def test_finished_run_can_lose_its_box(make_root: Callable[[], Path], disk: Path) -> None:
    """A real run: nothing that keep_last removed is lost, and its end is in the backup, too."""
    write_destinations({"name": "disk", "folder": str(disk)})
    root = make_root()
    cfg = write_config(
        root, run__total_steps=3, run__save_every=1, run__keep_last=1, model__adapter="lora", backup__every_save=True
    )
    done = grpo_train("train", "--cfg", cfg, "--run-name", "one", root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    run = run_of(root, "one")
    to = open_destination(None, root)
    verdict = safe_to_terminate(root, to)
    assert verdict.safe, verdict.obstacles
    assert {step.step for step in newest(run, to).steps} == {1, 2, 3}
    assert newest(run, to).state == "finished"
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [3], "keep_last holds once all are stored"


ENDS = "workflow: {stages: [train, cleanup: {to: gone}, backup: {to: disk}]}"


def test_the_end_goes_wherever_the_config_backs_up(
    run: RunDir, disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One destination that fails is named and costs the others nothing; a signal ends them all."""
    handlers: dict[int, Callable[..., Any]] = {}
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    write_destinations({"name": "disk", "folder": str(disk)}, {"name": "gone", "folder": str(disk / "gone")})
    config = load_config(ENDS)
    journal = Journal(run, ProgressLine(False))
    with closing(journal):
        backups = SaveBackups(run, config, journal, Notifier(run, config.notify))
        assert not backups.last()
        assert newest(run, open_destination("disk", run.root, write=False)).number == 1
        assert [(event["step"], event["code"]) for event in rows_of(run, "backup_failed")] == [(10, "no_bucket")]
        said = capsys.readouterr().out
        assert "backup of step 10 failed: " in said
        assert "one is not backed up as it ended: grpo-train backup --training-run one" in said
        (disk / "gone").mkdir()
        assert backups.last()
        handlers[signal.SIGTERM]()
        assert not backups.last()
        assert len(rows_of(run, "backup_failed")) == 1, "it was ended, it did not fail"


def test_failed_backup_is_shown(run: RunDir) -> None:
    set_state(run, "stopped", backup={"state": "failed", "step": 10, "code": "full", "error": "the disk is full"})
    assert "backup of step 10 failed: the disk is full" in command_here("show", "one", root=run.root).stdout
