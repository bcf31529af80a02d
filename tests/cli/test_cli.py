"""The command line as a hostile user has it: words on stderr, an exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir, StatusWriter, create_run
from tests.support.engine import GRPO_TRAIN, REPOSITORY, environment, grpo_train, train_here, write_config


@pytest.fixture(scope="module")
def finished(make_root: Callable[[], Path]) -> RunDir:
    root = make_root()
    return train_here(root, write_config(root, run__total_steps=1), "finished")


def words(done: subprocess.CompletedProcess[str], code: int | None = None) -> str:
    """stderr of a command that was refused: words, no traceback."""
    assert done.returncode == code if code is not None else done.returncode != 0, done
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.strip()
    return done.stderr


def snapshot(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != ".lock")


BAD_STARTS: dict[str, tuple[list[str], str]] = {
    "config missing": (["--cfg", "nowhere.yaml"], "cannot read the config nowhere.yaml: No such file or directory"),
    "config is a directory": (["--cfg", "config"], "cannot read the config config: Is a directory"),
    "unknown key": (["--cfg", "CFG", "--set", "run.total_step=3"], "did you mean run.total_steps?"),
    "wrong type": (["--cfg", "CFG", "--set", "run.total_steps=many"], "should be a valid integer"),
    "no assignment": (["--cfg", "CFG", "--set", "run.total_steps"], "write section.key=value"),
    "does not divide": (["--cfg", "CFG", "--set", "rollout.buffer_size=5"], "buffer_size 5 does not divide"),
    "does not divide by processes": (["--cfg", "CFG", "--nproc", "3"], "buffer_size 4 does not divide by run.nproc 3"),
    "no processes": (["--cfg", "CFG", "--nproc", "0"], "--nproc"),
    "ckpt missing": (["--cfg", "CFG", "--ckpt", "/nowhere"], "/nowhere holds neither a peft adapter"),
    "ckpt is no model": (["--cfg", "CFG", "--ckpt", "config"], "holds neither a peft adapter"),
    "unknown task": (["--cfg", "CFG", "--set", "task.name=additon"], "did you mean addition?"),
    "a key of another task": (
        ["--cfg", "CFG", "--set", "task.opponent=models/tiny"],
        "task.opponent has no effect on task.name addition: leave it out (it is for code_game)",
    ),
    "unknown task to evaluate on": (
        ["--cfg", "CFG", "--set", "eval.datasets=[mbbp]"],
        "eval.datasets: no task is called 'mbbp'; did you mean mbpp?",
    ),
    "data missing": (["--cfg", "CFG", "--set", "task.name=gsm8k", "--set", "task.path=/no"], "'/no' does not exist"),
    "data broken": (["--cfg", "CFG", "--set", "task.name=gsm8k", "--set", "task.path=CFG"], "this is no JSON object"),
    "unknown backbone": (["--cfg", "CFG", "--set", "model.backbone=qwen2_5_51"], "did you mean qwen2_5_15?"),
    "no such model": (["--cfg", "CFG", "--set", "model.backbone=/models/none"], "is no model directory"),
    "bad name": (["--cfg", "CFG", "--run-name", "../up"], "'../up' cannot name a run"),
    "taken name": (["--cfg", "CFG", "--run-name", "finished"], "already exists"),
    "no config given": ([], "--cfg"),
    "unknown option": (["--config", "CFG"], "--config"),
}


@pytest.mark.parametrize("what", BAD_STARTS)
def test_a_start_that_cannot_work_makes_no_run(finished: RunDir, what: str) -> None:
    arguments, message = BAD_STARTS[what]
    cfg = str(finished.root / "small.yaml")
    before = snapshot(finished.root)
    done = grpo_train("train", *(argument.replace("CFG", cfg) for argument in arguments), root=finished.root)
    assert message in words(done, 2)
    assert snapshot(finished.root) == before


BAD_REQUESTS: dict[str, tuple[list[str], str]] = {
    "resume unknown": (["resume", "--training-run", "finishd"], "no run named 'finishd' under"),
    "show unknown": (["show", "finishd"], "did you mean finished?"),
    "stop unknown": (["stop", "--training-run", "finishd"], "did you mean finished?"),
    "eval unknown": (["eval", "--training-run", "finishd"], "did you mean finished?"),
    "stop finished": (["stop", "--training-run", "finished"], "finished is not running: it is finished"),
    "resume done": (["resume", "--training-run", "finished"], "say how many more with --additional-steps"),
    "resume unknown step": (["resume", "--training-run", "finished", "--from-step", "9"], "complete steps: 1"),
    "resume no step": (["resume", "--training-run", "finished", "--from-step", "last"], "use latest, final or a step"),
    "resume no more": (["resume", "--training-run", "finished", "--additional-steps", "0"], "--additional-steps"),
    "model is there": (["tiny-model", "--out", "MODEL"], "holds a model already"),
    "model below a file": (["tiny-model", "--out", "MODEL/config.json/x"], "cannot write the model"),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_a_request_that_cannot_be_met_changes_nothing(finished: RunDir, what: str) -> None:
    arguments, message = BAD_REQUESTS[what]
    model = str(finished.root / "models" / "tiny")
    before = snapshot(finished.root)
    done = grpo_train(*(argument.replace("MODEL", model) for argument in arguments), root=finished.root)
    assert message in words(done)
    assert snapshot(finished.root) == before


def test_a_live_run_is_neither_resumed_nor_named_twice(root: Path) -> None:
    run = create_run(root, {}, "live")
    run.config_file.write_text(write_config(root).read_text())
    status = StatusWriter(run.path)
    status.update(state="running")
    assert "live is running: stop it first" in words(grpo_train("resume", "--training-run", "live", root=root), 2)
    status.update(state="running", host="far", boot_id="x")
    resume = grpo_train("resume", "--training-run", "live", root=root)
    assert "live is running on far: stop it first" in words(resume, 2)
    assert "live runs on far" in words(grpo_train("stop", "--training-run", "live", "--now", root=root))
    status.update(state="finished")  # and yet somebody holds the lock
    (run.training_state / "step_1").mkdir()
    (run.training_state / "step_1" / "MANIFEST.json").write_text('{"files": {}}')
    assert "another process is writing" in words(grpo_train("resume", "--training-run", "live", root=root), 2)
    status.close()


def test_lists_are_for_people_and_for_programs(finished: RunDir) -> None:
    listed = grpo_train("runs", root=finished.root)
    assert "finished" in listed.stdout
    (row,) = json.loads(grpo_train("runs", "--json", root=finished.root).stdout)
    assert (row["run"], row["state"], row["step"], row["total_steps"]) == ("finished", "finished", 1, 1)
    shown = json.loads(grpo_train("show", "finished", "--json", root=finished.root).stdout)
    assert shown["checkpoints"] == [
        {"step": 1, "path": str(finished.training_state / "step_1"), "complete": True, "problem": ""}
    ]
    empty = grpo_train("runs", root=finished.root / "models")
    assert (empty.returncode, "no runs under" in empty.stdout) == (0, True)


def test_help_says_what_there_is() -> None:
    text = grpo_train("--help", root=None).stdout
    for command in ("train", "resume", "stop", "runs", "show", "eval", "tiny-model"):
        assert command in text
    assert "supervise" not in text


def test_a_reader_that_leaves_early_is_no_error(finished: RunDir) -> None:
    command = f"{' '.join(GRPO_TRAIN)} show finished --json | head -1"
    done = subprocess.run(
        command, shell=True, env=environment(finished.root), capture_output=True, text=True, timeout=60, cwd=REPOSITORY
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------- read-only places


@pytest.fixture
def read_only(finished: RunDir, tmp_path: Path) -> Path:
    """The root on a file system that is mounted read-only; where nothing can be mounted, without write permission."""
    place = tmp_path / "ro"
    place.mkdir()
    if os.geteuid() == 0 and subprocess.run(["mount", "--bind", str(finished.root), str(place)]).returncode == 0:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        yield place
        subprocess.run(["umount", str(place)], check=True)
        return
    assert os.geteuid() != 0, "root can neither mount here nor be refused by permissions: run the tests as a user"
    folders = [finished.root, *(path for path in finished.root.rglob("*") if path.is_dir())]
    modes = [path.stat().st_mode for path in folders]
    for path in folders:
        path.chmod(0o555)
    yield finished.root
    for path, mode in zip(folders, modes, strict=True):
        path.chmod(mode)


def test_a_read_only_root_is_named(read_only: Path) -> None:
    before = snapshot(read_only)
    cfg = str(read_only / "small.yaml")
    for arguments in (
        ["train", "--cfg", cfg],
        ["eval", "--training-run", "finished"],
        ["resume", "--training-run", "finished", "--additional-steps", "1"],
    ):
        error = words(grpo_train(*arguments, root=read_only))
        assert "Read-only file system" in error or "Permission denied" in error
        assert str(read_only) in error
    assert grpo_train("runs", root=read_only).returncode == 0
    assert grpo_train("show", "finished", root=read_only).returncode == 0
    assert snapshot(read_only) == before


def test_two_starts_at_once_under_one_name_make_one_run(root: Path) -> None:
    cfg = write_config(root, run__total_steps=1)
    results: list[subprocess.CompletedProcess[str]] = []
    start = lambda: results.append(grpo_train("train", "--cfg", cfg, "--run-name", "twin", root=root))  # noqa: E731
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.returncode for result in results) == [0, 2]
    assert RunDir(root / "training_runs" / "twin").observed_state().state == "finished"


def test_the_tasks_as_json_have_every_name_that_task_name_takes() -> None:
    done = grpo_train("tasks", "--json", root=None)
    assert done.returncode == 0, done.stderr
    tasks = json.loads(done.stdout)["tasks"]
    assert tasks["gsm8k"] == tasks["gsm8k_r1_template"] != ""
    assert {"addition", "mbpp", "tictactoe"} <= set(tasks)
