"""A backup of a run, and the way back: what travels, what is proven, what is carried forward."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_train.backup.destinations import Destination
from grpo_train.backup.job import working_on
from grpo_train.backup.overview import list_backups
from grpo_train.backup.restore import pick_steps, restore_folder
from grpo_train.backup.runs import back_up_all, back_up_run, restore_run
from grpo_train.backup.snapshot import parse_snapshot
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.processes import identity
from tests.support.backups import (
    backup,
    contents,
    folder_destination,
    home_of,
    make_evaluation,
    make_run,
    newest,
    objects,
    rewind,
    save,
    set_state,
    train_to,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(tmp_path: Path) -> Destination:
    return folder_destination(tmp_path / "disk")


# --------------------------------------------------------------------------------------------------- round trip


def test_restored_run_has_the_same_bytes(root: Path, disk: Destination, tmp_path: Path) -> None:
    run = make_run(root, "one", 10, 20)
    (run.path / "tensorboard").mkdir()
    (run.path / "tensorboard" / "events.out.tfevents.1").write_bytes(os.urandom(300))
    (run.path / "notes with spaces & 'quotes'.md").write_text("mine\n")
    (run.path / "empty.txt").touch(mode=0o600)
    make_evaluation(root, "one", "addition", 10, 20)
    before = contents(root)
    result = back_up_run(root, "training_runs", "one", disk)
    assert (result.snapshot, result.is_new, result.steps, result.omitted) == (1, True, (10, 20), ())
    shutil.rmtree(root)
    elsewhere = tmp_path / "other" / "root"
    done = restore_run(elsewhere, "one", disk)
    assert done.steps == (10, 20)
    after = contents(elsewhere)
    assert after == {name: value for name, value in before.items() if not name.startswith("transfers")} | {
        name: value for name, value in after.items() if name.startswith("transfers")
    }
    assert RunDir(elsewhere / "training_runs" / "one").checkpoint("latest", deep=True).step == 20


def test_only_new_bytes_are_sent(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    backup(run, disk)
    again = backup(run, disk)
    assert (again.is_new, again.snapshot, again.objects_sent) == (False, 1, 0)
    size = (run.logs / "rollouts.jsonl").stat().st_size
    train_to(run, 11)
    new = (run.logs / "rollouts.jsonl").stat().st_size - size
    result = backup(run, disk)
    assert (result.is_new, result.snapshot) == (True, 2)
    file = next(file for file in newest(run, disk).files if file.path == "logs/rollouts.jsonl")
    assert [part.size for part in file.parts] == [size, new]
    assert result.objects_sent == 2, "one segment each of two logs"


def test_restore_by_shell_joins_segments(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    for step in (11, 12, 13):
        backup(run, disk)
        train_to(run, step)
    backup(run, disk)
    (folder,) = Path(disk.store.url).glob("training_runs/one--*/logs/rollouts.jsonl")
    joined = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert joined == (run.logs / "rollouts.jsonl").read_bytes()


def test_live_run_is_cut_at_whole_lines(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    me = identity()
    facts = {"pid": me.pid, "pid_start": me.pid_start, "host": me.host, "boot_id": me.boot_id}
    set_state(run, "running", **facts)
    whole = (run.logs / "train_log.jsonl").read_bytes()
    with (run.logs / "train_log.jsonl").open("ab") as log:
        log.write(b'{"step": 11, "rew')
    backup(run, disk)
    snapshot = newest(run, disk)
    assert snapshot.live
    assert next(f.size for f in snapshot.files if f.path == "logs/train_log.jsonl") == len(whole)
    assert snapshot.log_steps["logs/train_log.jsonl"] == 10
    set_state(run, "stopped")
    backup(run, disk)
    cut = next(f.size for f in newest(run, disk).files if f.path == "logs/train_log.jsonl")
    assert cut == len(whole) + 17, "of a stopped run every byte counts"


def test_chosen_steps_are_backed_up(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10, 20, 30)
    assert backup(run, disk, steps="10").steps == (10,)
    assert {link.target for link in newest(run, disk).links} == {"step_10"}
    assert backup(run, disk, steps="latest").steps == (10, 30), "10 is carried forward"
    with pytest.raises(RunDirError, match="no complete step_40"):
        backup(run, disk, steps="40")
    assert backup(run, disk).steps == (10, 20, 30)


def test_dry_run_sends_nothing(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    result = backup(run, disk, dry_run=True)
    assert result.bytes_sent > 0
    assert objects(disk) == {}
    assert not result.is_new


# ------------------------------------------------------------------------------------------------------- damage


def test_damaged_checkpoints_are_left_out(root: Path, disk: Destination) -> None:
    """A flipped bit has the right size; it is found while the file is sent."""
    run = make_run(root, "one", 10, 20, 30)
    flip(run.training_state / "step_20" / "optimizer.pt")
    (run.training_state / "step_30" / "MANIFEST.json").unlink()
    result = backup(run, disk)
    assert result.steps == (10,)
    assert {(each.path, each.code) for each in result.omitted} == {
        ("training_state/step_20", "damaged_here"),
        ("training_state/step_30", "damaged_here"),
    }
    assert {link.target for link in newest(run, disk).links} == {"step_10"}


def test_damage_here_keeps_the_good_copy(root: Path, disk: Destination, tmp_path: Path) -> None:
    run = make_run(root, "one", 10, 20)
    good = contents(run.training_state / "step_10")
    backup(run, disk)
    (run.training_state / "step_10" / "MANIFEST.json").write_text("{}")
    assert backup(run, disk).steps == (10, 20)
    restore_folder(tmp_path / "b", home_of(run), disk)
    assert contents(tmp_path / "b/training_runs/one/training_state/step_10") == good


@pytest.mark.parametrize("how", ["flip", "cut", "grow", "remove", "swap"])
def test_damaged_objects_spoil_only_their_step(root: Path, disk: Destination, tmp_path: Path, how: str) -> None:
    run = make_run(root, "one", 10, 20)
    backup(run, disk)
    home = home_of(run)
    (file,) = Path(disk.store.url).glob("training_runs/*/training_state/step_20--*/optimizer.pt")
    if how == "flip":
        flip(file)
    elif how == "cut":
        os.truncate(file, 3)
    elif how == "grow":
        file.write_bytes(file.read_bytes() + b"x")
    elif how == "remove":
        file.unlink()
    else:
        (other,) = Path(disk.store.url).glob("training_runs/*/training_state/step_10--*/optimizer.pt")
        shutil.copy(other, file)
    result = restore_folder(tmp_path / "b", home, disk)
    assert result.steps == (10,)
    assert [each.path for each in result.omitted] == ["training_state/step_20"]
    there = RunDir(tmp_path / "b" / "training_runs" / "one")
    assert [c.step for c in there.checkpoints()] == [10]
    assert there.checkpoint("latest", deep=True).step == 10
    found = verify(tmp_path / "b", home, disk)
    assert [damage.spoils for damage in found.damaged] == [("training_state/step_20/optimizer.pt",)]
    assert not found.damaged[0].repaired, "not on this machine"
    assert verify(root, home, disk).is_sound, "stored again from the run"
    assert verify(tmp_path / "b", home, disk).damaged == ()
    again = restore_folder(tmp_path / "b", home, disk)
    assert (again.steps, again.is_new) == ((20,), False)
    assert there.checkpoint("latest", deep=True).step == 20


def test_missing_objects_are_sent_again(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10, 20)
    backup(run, disk)
    before = objects(disk)
    (file,) = Path(disk.store.url).glob("training_runs/*/training_state/step_20--*/optimizer.pt")
    file.unlink()
    rows = list(list_backups(root, disk))
    assert [(row.state, "optimizer.pt" in row.reason) for row in rows[0].snapshots] == [("damaged", True)]
    result = backup(run, disk)
    assert (result.is_new, result.objects_sent) == (True, 1)
    assert objects(disk) == before


def test_lost_steps_are_named(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10, 20)
    backup(run, disk)
    shutil.rmtree(run.training_state / "step_10")
    (file,) = Path(disk.store.url).glob("training_runs/*/training_state/step_10--*/optimizer.pt")
    file.unlink()
    result = backup(run, disk)
    assert result.steps == (20,)
    assert [(each.path, each.code) for each in result.omitted] == [("training_state/step_10", "lost")]


# ------------------------------------------------------------------------------------------------ carry forward


def test_removed_steps_are_carried_forward(root: Path, disk: Destination, tmp_path: Path) -> None:
    run = make_run(root, "one", 10, 20)
    good = contents(run.training_state)
    for step in (30, 40):
        backup(run, disk)
        shutil.rmtree(run.checkpoints()[0].path)
        train_to(run, step)
        save(run, step)
    assert backup(run, disk).steps == (10, 20, 30, 40)
    assert [(step.step, step.on_box) for step in newest(run, disk).steps] == [
        (30, True), (40, True), (20, False), (10, False),
    ]  # fmt: skip
    restore_folder(tmp_path / "b", home_of(run), disk)
    after = contents(tmp_path / "b/training_runs/one/training_state")
    assert {name: value for name, value in after.items() if name in good} == good | {"step_latest": "-> step_40"}


def test_rewound_steps_do_not_come_back_as_latest(root: Path, disk: Destination, tmp_path: Path) -> None:
    run = make_run(root, "one", 10, 20, 30, 40)
    backup(run, disk)
    shutil.rmtree(run.training_state / "step_30")
    rewind(run, 10)
    backup(run, disk)
    shutil.rmtree(run.training_state / "superseded")
    train_to(run, 15, "again")
    save(run, 15, "again")
    train_to(run, 20, "again")
    save(run, 20, "again")
    result = backup(run, disk)
    assert result.steps == (10, 15, 20, 30, 40)
    restore_folder(tmp_path / "b", home_of(run), disk)
    there = RunDir(tmp_path / "b" / "training_runs" / "one")
    assert [c.step for c in there.checkpoints()] == [10, 15, 20]
    assert there.checkpoint("latest", deep=True).step == 20
    assert contents(there.training_state / "step_20") == contents(run.training_state / "step_20")
    old = sorted(path.name for path in there.training_state.glob("superseded/*/*"))
    assert old == ["step_20", "step_30", "step_40"]


def test_replaced_log_bytes_are_kept(root: Path, disk: Destination) -> None:
    """A power cut may take the end of a log that was backed up; a resume then writes other bytes there."""
    run = make_run(root, "one", 10)
    backup(run, disk)
    log = run.logs / "train_log.jsonl"
    os.truncate(log, log.stat().st_size // 2)
    append_jsonl(log, {"step": 6, "reward": 0.5})
    result = backup(run, disk)
    assert [(each.path, each.code) for each in result.omitted] == [("logs/train_log.jsonl", "log_changed")]
    file = next(file for file in newest(run, disk).files if file.path == "logs/train_log.jsonl")
    assert file.size == log.stat().st_size
    assert len(file.replaced) == 1
    assert backup(run, disk).omitted == ()


# --------------------------------------------------------------------------------------------- whole roots


def test_everything_in_a_root_is_backed_up(root: Path, disk: Destination, tmp_path: Path) -> None:
    run = make_run(root, "one", 10)
    make_evaluation(root, "one", "addition", 10)
    (root / "sweeps" / "s 1").mkdir(parents=True)
    (root / "sweeps" / "s 1" / "sweep.json").write_text('{"runs": {}}')
    older = root / "rl_runs" / "it's old"
    shutil.copytree(run.training_state / "step_10", older / "step_5")
    (older / "step_5" / "MANIFEST.json").unlink()
    broken = make_run(root, "two", 10)
    broken.launch_file.unlink()
    broken.launch_file.mkdir()
    done, failed = back_up_all(root, disk)
    assert {(each.kind, each.name) for each in done} == {
        ("training_runs", "one"), ("eval_runs", "one_addition"), ("sweeps", "s 1"), ("rl_runs", "it's old"),
    }  # fmt: skip
    assert [(each.name, each.code) for each in failed] == [("two", "unreadable")]
    for name in ("one", "s 1", "it's old"):
        restore_run(tmp_path / "b", name, disk)
    for folder in ("training_runs/one", "eval_runs/one_addition", "sweeps/s 1", "rl_runs/it's old"):
        assert contents(tmp_path / "b" / folder) == contents(root / folder), folder
    rows = list(list_backups(root, disk))
    assert all(row.lag is not None and row.lag.is_none for row in rows)
    train_to(run, 12)
    lag = next(row.lag for row in list_backups(root, disk) if row.name == "one")
    assert lag is not None
    assert (lag.log_steps, lag.steps) == (2, ())


def test_starting_weights_travel_along(root: Path, disk: Destination, tmp_path: Path) -> None:
    base = root / "models" / "mine"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")
    (base / "model.safetensors").write_bytes(b"w" * 1000)
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "adapter_config.json").write_text("{}")
    for name in ("one", "two"):
        run = make_run(root, name, 10)
        launch = json.loads(run.launch_file.read_text())
        run.launch_file.write_text(json.dumps({**launch, "ckpt": str(outside)}))
        run.config_file.write_text("model: {backbone: models/mine}\n")
        backup(run, disk)
    assert len([key for key in objects(disk) if key.startswith("weights/mine--")]) == 2, "stored once"
    done = restore_run(tmp_path / "b", "one", disk)
    assert contents(tmp_path / "b" / "models" / "mine") == contents(base)
    assert done.weights == ((str(outside), str(tmp_path / "b" / "checkpoints" / "elsewhere")),)
    assert contents(tmp_path / "b" / "checkpoints" / "elsewhere") == contents(outside)


def test_second_backup_says_who_is_first(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    with working_on(root, "training_runs", "one", "verify"), pytest.raises(RunDirError, match="grpo-train verify"):
        backup(run, disk)
    assert backup(run, disk).is_new


def test_other_runs_are_never_replaced(root: Path, disk: Destination, tmp_path: Path) -> None:
    run = make_run(root, "one", 10)
    backup(run, disk)
    other = make_run(tmp_path / "b", "one", 5)
    before = contents(other.path)
    with pytest.raises(RunDirError, match="is another run") as caught:
        restore_folder(tmp_path / "b", home_of(run), disk)
    assert caught.value.code == "name_taken"
    train_to(run, 20)
    backup(run, disk)
    restore_folder(tmp_path / "c", home_of(run), disk, number=1)
    with pytest.raises(RunDirError, match="lacks log lines"):
        restore_folder(tmp_path / "c", home_of(run), disk)
    assert contents(other.path) == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_manifest_reads_as_it_was_written(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    backup(run, disk)
    snapshot = newest(run, disk)
    assert parse_snapshot(snapshot.to_json()) == snapshot


def test_files_of_w_and_b_stay_here(root: Path, disk: Destination) -> None:
    run = make_run(root)
    (run.path / "wandb" / "offline-run-1").mkdir(parents=True)
    (run.path / "wandb" / "offline-run-1" / "run-1.wandb").write_bytes(b"grows")
    backup(run, disk)
    assert [file.path for file in newest(run, disk).files if file.path.startswith("wandb/")] == []


def test_links_out_of_a_run_are_named(root: Path, disk: Destination) -> None:
    run = make_run(root)
    (run.path / "notes").symlink_to("../../../notes")
    (run.path / "inside").symlink_to("config.yaml")
    done = backup(run, disk)
    assert [(each.path, each.code) for each in done.omitted] == [("notes", "outside")]
    assert [link.path for link in newest(run, disk).links] == ["inside"]


def test_damaged_small_files_leave_nothing_behind(root: Path, disk: Destination, tmp_path: Path) -> None:
    long_name = "n" * 250
    run = make_run(root, "one", 10)
    (run.path / long_name).write_text("mine")
    backup(run, disk)
    (stored,) = Path(disk.store.url).glob("training_runs/*/files/*-config.yaml")
    flip(stored)
    result = restore_folder(tmp_path / "b", home_of(run), disk)
    assert [each.path for each in result.omitted] == ["config.yaml"]
    there = tmp_path / "b" / "training_runs" / "one"
    assert (there / long_name).read_text() == "mine"
    assert not list(there.rglob("*.partial"))


def test_which_checkpoints_are_named() -> None:
    def snapshot(*steps: int, latest: str = "") -> Any:
        paths = [SimpleNamespace(path=f"training_state/step_{step}", step=step) for step in steps]
        links = [SimpleNamespace(path="training_state/step_latest", target=latest)] if latest else []
        old = SimpleNamespace(path="superseded/1/step_90", step=90)
        return SimpleNamespace(number=3, steps=[*paths, old], links=links)

    def named(which: str, latest: str = "") -> list[int]:
        return [step.step for step in pick_steps(snapshot(20, 10, 30, latest=latest), which)]

    assert (named("all"), named("logs"), named("10,30")) == ([20, 10, 30, 90], [], [10, 30])
    assert (named("latest", "step_20"), named("latest"), named("latest", "step_70")) == ([20], [30], [30])
    for which, message in (
        ("10,40", r"snapshot 3 has no step_40 \(steps: 10, 20, 30\)"),
        ("90", "has no step_90"),
        ("newest", "--steps newest: use all, latest, logs, or steps such as 10,20"),
        ("10,", "--steps 10,:"),
    ):
        with pytest.raises(RunDirError, match=message):
            named(which)
