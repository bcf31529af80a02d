"""Checkpoints: complete or invisible, however the writing process ends."""

from __future__ import annotations

import ast
import errno
import json
import os
import random
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_train.run_dir import RunDir, RunDirError, create_run
from grpo_train.run_dir.files import atomic_symlink
from grpo_train.run_dir.keeping import remove_hidden
from grpo_train.run_dir.manifest import HashedFile
from grpo_train.run_dir.processes import start_ticks
from grpo_train.train.checkpoint import (
    CheckpointError,
    generator_states,
    load_extra,
    load_training_state,
    restore_generators,
    seed_everything,
)
from grpo_train.train.distributed import World
from grpo_train.train.retention import prune_checkpoints
from grpo_train.train.worker import main
from tests.support.engine import (
    REPOSITORY,
    assert_same_run,
    grpo_train,
    resume_here,
    rows,
    run_of,
    train_here,
    write_config,
)
from tests.support.killing import disk_calls, killed_at
from tests.support.saving import EXTRA, Trainer, make_trainer, whole


@pytest.fixture(scope="module")
def trainer(tiny_model: Path) -> Trainer:
    return make_trainer(tiny_model, "none")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path / "root", {}, "one")


# -------------------------------------------------------------------------------------------------------- kill -9


def test_kill_during_save_leaves_complete_checkpoints(trainer: Trainer, run: RunDir) -> None:
    """Kills before every file-system change made from Python that adds or removes a name, and every third other one.

    tests/soak kills before every system call, also with LoRA.
    """

    def save_and_prune() -> None:
        trainer.save(run, 2, final=True, extra=EXTRA)
        prune_checkpoints(run, keep_last=1, keep_every=0)

    trainer.save(run, 1, extra=EXTRA)
    kept = shutil.copytree(run.training_state, run.path / "kept", symlinks=True)
    made = disk_calls(save_and_prune)
    assert len(made) > 60
    assert {"fsync", "rename", "replace", "symlink", "torch.save", "rmdir"} <= set(made)
    seen = set()
    for n in (n for n in range(len(made)) if made[n] in ("rename", "replace", "symlink", "rmdir") or n % 3 == 0):
        shutil.rmtree(run.training_state)
        shutil.copytree(kept, run.training_state, symlinks=True, copy_function=os.link)
        killed_at(n, save_and_prune)
        steps = whole(run)
        latest = run.resume_point()
        assert latest is not None
        assert latest.step == steps[-1]
        assert load_extra(latest, "probes") == EXTRA["probes"]
        seen.add(tuple(steps))
        remove_hidden(run)
        assert not list(run.training_state.glob(".*.tmp")), f"left by a kill before touch {n}, {made[n]}"
    assert seen == {(1,), (1, 2), (2,)}, "kills on both sides of both renames"


def test_kill_during_rewind_leaves_a_resumable_run(trainer: Trainer, run: RunDir) -> None:
    for step in (1, 2, 3):
        trainer.save(run, step, final=step == 3)
    kept = shutil.copytree(run.training_state, run.path / "kept", symlinks=True)
    for n in range(len(disk_calls(lambda: run.rewind(1) and None))):
        shutil.rmtree(run.training_state)
        shutil.copytree(kept, run.training_state, symlinks=True)
        killed_at(n, lambda: run.rewind(1) and None)
        assert whole(run)[0] == 1
        run.rewind(1)
        assert whole(run) == [1]
        assert run.checkpoint("latest").step == 1


def test_leftovers_of_a_live_process_are_kept(run: RunDir) -> None:
    parent = os.getppid()
    theirs = run.training_state / f".step_2.{parent}-{start_ticks(parent)}-aa.tmp"
    dead = run.training_state / f".step_2.{parent}-1-aa.tmp"
    link = run.training_state / ".step_latest.12ab.tmp"
    theirs.mkdir()
    dead.mkdir()
    link.symlink_to("step_1")
    remove_hidden(run)
    assert os.listdir(run.training_state) == [theirs.name]


# ------------------------------------------------------------------------------------------------------- full disks


@pytest.fixture
def full_after_the_first_save(trainer: Trainer, tmp_path: Path) -> Iterator[Path]:
    """A root with room for one and a half checkpoints: a small tmpfs, or a limit on file sizes."""
    root = tmp_path / "disk"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(root)]
    if os.geteuid() == 0 and subprocess.run(mount).returncode == 0:
        yield root
        subprocess.run(["umount", "-l", str(root)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield root
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def taken_by(folder: Path) -> int:
    """Bytes on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def fill(root: Path, leave: int) -> None:
    """Leave ``leave`` bytes of free space (or limit the size of files to it)."""
    if os.path.ismount(root):
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        (root / "ballast").write_bytes(b"\0" * max(0, free - leave))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (leave, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize("room", [100_000, 300_000], ids=["no room for weights", "no room for the optimizer"])
def test_full_disk_keeps_earlier_checkpoints(trainer: Trainer, full_after_the_first_save: Path, room: int) -> None:
    run = create_run(full_after_the_first_save, {}, "one")
    trainer.save(run, 1)
    fill(full_after_the_first_save, room)
    with pytest.raises(CheckpointError) as caught:
        trainer.save(run, 2)
    assert f"cannot save {run.training_state / 'step_2'}" in str(caught.value)
    reason = r"(disk full \(No space left on device\)|File too large)\. Earlier checkpoints are intact; (free|raise)"
    assert re.search(reason, str(caught.value))
    assert caught.value.code == "disk_full"
    assert os.listdir(run.training_state).count("step_1") == 1
    assert sorted(os.listdir(run.training_state)) == ["step_1", "step_latest"]
    assert whole(run) == [1]


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng.pt", "training_info.json"])
@pytest.mark.parametrize(
    ("number", "code", "fix"),
    [
        (errno.ENOSPC, "disk_full", "free disk space"),
        (errno.EDQUOT, "disk_full", "have the quota raised"),
        (errno.EROFS, "read_only", "make the file system writable"),
        (errno.EIO, "io", "check the disk"),
    ],
)
def test_a_failed_save_says_what_the_disk_said(
    trainer: Trainer, run: RunDir, file: str, number: int, code: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises an error of its own ("unexpected pos") from the disk's."""
    trainer.save(run, 1)
    write = HashedFile.write

    def fails(hashed: HashedFile, data: bytes) -> int:
        if Path(hashed._file.name).name == file:
            raise OSError(number, os.strerror(number))
        return write(hashed, data)

    monkeypatch.setattr(HashedFile, "write", fails)
    with pytest.raises(CheckpointError, match=rf"step_2: .*{os.strerror(number)}.* intact; .*{fix}, then") as caught:
        trainer.save(run, 2)
    assert caught.value.code == code
    assert sorted(os.listdir(run.training_state)) == ["step_1", "step_latest"]


def test_run_resumes_after_a_full_disk(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """Exit code, status and message on the command line; with free space, the resume is bit-exact."""
    reference_root = make_root()
    straight = train_here(reference_root, write_config(reference_root, run__total_steps=4), "straight")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = taken_by(reference_root / "models") + int(2.5 * taken_by(straight.training_state / "step_1")) + 200_000
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)]
    mounted = os.geteuid() == 0 and subprocess.run(mount).returncode == 0
    try:
        shutil.copytree(reference_root / "models", disk / "models")
        cfg = write_config(disk, run__total_steps=4)
        if mounted:  # room for two checkpoints
            done = grpo_train("train", "--cfg", cfg, "--run-name", "one", root=disk)
        else:
            done = grpo_train(
                "train", "--cfg", cfg, "--run-name", "one", root=disk,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
            )  # fmt: skip
        run = run_of(disk, "one")
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stdout + done.stderr
        assert "cannot save" in done.stdout
        assert "free disk space" in done.stdout
        status = run.read_status() or {}
        assert status["state"] == "crashed"
        assert "cannot save" in status["error"]["summary"]
        saved = whole(run)
        assert saved == list(range(1, len(saved) + 1))
        assert len(saved) < 4
        assert not list(run.training_state.glob(".*"))
        if saved:
            if mounted:
                subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
            done = grpo_train("resume", "--training-run", "one", root=disk)
            assert done.returncode == 0, done.stdout + done.stderr
            assert_same_run(run, straight, 4)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True)


# ---------------------------------------------------------------------------------------------------- saved content


def test_extra_files_are_restored(trainer: Trainer, run: RunDir) -> None:
    trainer.save(run, 1)
    trainer.save(run, 2, extra=EXTRA)
    assert load_extra(run.checkpoint(1), "probes") is None, "a checkpoint of an older version"
    saved = run.checkpoint(2, deep=True)
    assert load_extra(saved, "probes") == EXTRA["probes"]
    buffer = load_extra(saved, "buffer")
    assert buffer is not None
    assert torch.equal(buffer.pop("ids"), EXTRA["buffer"]["ids"])
    assert buffer == {key: value for key, value in EXTRA["buffer"].items() if key != "ids"}
    manifest = json.loads((saved.path / "MANIFEST.json").read_text())
    assert {"probes.pt", "buffer.pt"} <= manifest["files"].keys()
    os.truncate(saved.path / "buffer.pt", 10)
    with pytest.raises(RunDirError, match=r"buffer\.pt has 10 bytes"):
        run.resume_point()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"probes": {"mean": np.float64(1)}}, r"probes\['mean'\] is a float64"),
        ({"probes": {"mean": [0.5, {3: np.zeros(1)}]}}, r"probes\['mean'\]\[1\]\[3\] is a ndarray"),
        ({"buffer": {Path("x"): 1}}, r"buffer's keys\[0\] is a \w*Path"),
        ({"buffer": random.Random()}, "buffer is a Random; only tensors and plain values can be saved"),
        ({"optimizer": {}}, "'optimizer' is not a valid name"),
        ({"../probes": {}}, "'../probes' is not a valid name"),
    ],
)
def test_unloadable_extra_is_an_error(trainer: Trainer, run: RunDir, extra: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        trainer.save(run, 1, extra=extra)
    assert whole(run) == []


def test_damaged_step_in_the_way_is_set_aside(trainer: Trainer, run: RunDir) -> None:
    """step_latest points to 1 and step 2 is damaged: the resumed run saves step 2 again."""
    trainer.save(run, 1)
    trainer.save(run, 2)
    atomic_symlink(run.training_state / "step_latest", "step_1")
    (run.training_state / "step_2" / "optimizer.pt").unlink()
    trainer.save(run, 2)
    assert whole(run) == [1, 2]
    (attic,) = (run.training_state / "superseded").iterdir()
    assert os.listdir(attic) == ["step_2"]


def test_every_rank_gets_the_resume_point(trainer: Trainer, run: RunDir) -> None:
    assert World().from_main(run.resume_point) is None
    trainer.save(run, 1)
    assert World().from_main(run.resume_point) == run.checkpoint(1)
    values: list[Any] = []

    class Two(World):
        def broadcast(self, value: Any) -> Any:
            values.append(value)
            return values[0]

    os.truncate(run.training_state / "step_1" / "rng.pt", 10)
    for rank in (0, 1):
        with pytest.raises(RunDirError, match=r"rng\.pt has 10 bytes"):
            Two(rank, rank, 2).from_main(run.resume_point)
    assert values[1] is None, "rank 1 read nothing"


def test_nothing_is_unpickled() -> None:
    """Every torch.load has weights_only=True, and no other function that executes file content is used.

    The sandbox is excluded: it passes jobs to programs by marshal, but does not read their output that way. So are the
    messages to and from the process of user-defined reward functions, which never were in a file.
    """
    loads = 0
    for file in sorted((REPOSITORY / "grpo_train").rglob("*.py")):
        if "sandbox" in file.parts or str(file.relative_to(REPOSITORY)) in MESSAGES:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            where = f"{file.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".") for alias in node.names]
                assert not [name for name in names if name.startswith(UNPICKLERS)], where
            if isinstance(node, ast.Attribute):
                assert not ast.unparse(node).startswith(UNPICKLERS), where
                loads += ast.unparse(node) == "torch.load"
            if isinstance(node, ast.Call):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if ast.unparse(node.func) == "torch.load":
                    assert keywords.get("weights_only") == "True", where
                    loads -= 1
                assert keywords.get("allow_pickle", "False") == keywords.get("trust_remote_code", "False") == "False", (
                    where
                )
    assert loads == 0, "torch.load is only ever called directly"


MESSAGES = ("grpo_train/rewards/user_functions.py", "grpo_train/rewards/helpers/functions.py")
UNPICKLERS = (
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),
    *("torch.serialization", "torch.jit", "torch.package", "numpy.load", "np.load", "yaml.load", "yaml.unsafe_load"),
)


def test_random_generators_are_restored() -> None:
    def draw() -> tuple[Any, ...]:
        numbers = (random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn()))
        return *numbers, torch.rand(2)

    seed_everything(3, 1)
    draw()
    states = generator_states()
    first = draw()
    restore_generators(states)
    again = draw()
    assert first[:4] == again[:4]
    assert torch.equal(first[4], again[4])
    seed_everything(3, 0)
    assert draw()[0] != first[0]


def test_training_state_is_restored(trainer: Trainer, run: RunDir) -> None:
    trainer.save(run, 1, final=True)
    other = torch.optim.AdamW(trainer.policy.trainable(), lr=7.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(other, lambda done: 1.0)
    info = load_training_state(run.checkpoint("final"), other, scheduler, World())
    assert (info["step"], info["num_tokens"], info["world_size"], info["format"]) == (1, 1, 1, 1)
    assert scheduler.state_dict() == trainer.scheduler.state_dict()
    for key, value in trainer.optimizer.state_dict()["state"].items():
        for name, tensor in value.items():
            assert torch.equal(tensor, other.state_dict()["state"][key][name])


def test_run_killed_during_save_resumes(make_root: Callable[[], Path]) -> None:
    """One forked training process is killed while it saves step 3; a resume completes the run."""
    root = make_root()
    cfg = write_config(root, run__total_steps=4)
    straight = train_here(root, cfg, "straight")

    def third_step(run: RunDir) -> Callable[[], None]:
        return lambda: main(["--run-dir", str(run.path), "--until", "3"]) and None  # type: ignore[func-returns-value]

    made = disk_calls(third_step(train_here(root, cfg, "counted", "--until", "2")))
    rename = len(made) - 1 - made[::-1].index("rename")  # makes the step visible
    for name, point in (("half_optimizer", made.index("torch.save") + 1), ("hidden", rename), ("no_link", rename + 1)):
        run = train_here(root, cfg, name, "--until", "2")
        killed_at(point, third_step(run))
        assert whole(run) == ([1, 2, 3] if name == "no_link" else [1, 2])
        resume_here(run, total=4)
        assert_same_run(run, straight, 4)
        assert len(rows(run)) == 4
