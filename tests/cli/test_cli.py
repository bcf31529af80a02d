"""The command line: messages, exit codes, and no side effects of rejected commands."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.cli.transfer import size_text
from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, StatusWriter, create_run
from grpo_train.run_dir.version import FORMAT, VERSION
from tests.support.engine import GRPO_TRAIN, REPOSITORY, command_here, environment, grpo_train, train_here, write_config
from tests.support.patience import PATIENCE


@pytest.fixture(scope="module")
def finished(make_root: Callable[[], Path]) -> RunDir:
    root = make_root()
    return train_here(root, write_config(root, run__total_steps=1), "finished")


def error_of(done: subprocess.CompletedProcess[str], code: int | None = None) -> str:
    """stderr of a rejected command, without a traceback."""
    assert done.returncode == code if code is not None else done.returncode != 0, done
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.strip()
    return done.stderr


def snapshot(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != ".lock")


def test_the_schema_is_json_and_its_reference_markdown(tmp_path: Path) -> None:
    schema, reference = (command_here("schema", *given, root=tmp_path).stdout for given in ((), ("--markdown",)))
    assert "optimizer" in json.loads(schema)["properties"]
    assert "| `learning_rate` |" in reference


BAD_STARTS: dict[str, tuple[list[str], str]] = {
    "config missing": (["--cfg", "nowhere.yaml"], "cannot read the config nowhere.yaml: No such file or directory"),
    "config is a directory": (["--cfg", "config"], "cannot read the config config: Is a directory"),
    "unknown key": (["--cfg", "CFG", "--set", "run.total_step=3"], "did you mean run.total_steps?"),
    "wrong type": (["--cfg", "CFG", "--set", "run.total_steps=many"], "should be a valid integer"),
    "no assignment": (["--cfg", "CFG", "--set", "run.total_steps"], "expected section.key=value"),
    "does not divide": (["--cfg", "CFG", "--set", "rollout.buffer_size=5"], "buffer_size 5 is not divisible"),
    "does not divide by processes": (["--cfg", "CFG", "--nproc", "3"], "buffer_size 4 is not divisible by run.nproc 3"),
    "no processes": (["--cfg", "CFG", "--nproc", "0"], "--nproc"),
    "ckpt missing": (["--cfg", "CFG", "--ckpt", "/nowhere"], "/nowhere holds neither a peft adapter"),
    "ckpt is no model": (["--cfg", "CFG", "--ckpt", "config"], "holds neither a peft adapter"),
    "unknown task": (["--cfg", "CFG", "--set", "task.name=additon"], "did you mean addition?"),
    "a key of another task": (
        ["--cfg", "CFG", "--set", "task.opponent=models/tiny"],
        "task.opponent has no effect on task.name addition: remove it (used by code_game)",
    ),
    "unknown task to evaluate on": (
        ["--cfg", "CFG", "--set", "eval.datasets=[mbbp]"],
        "eval.datasets: unknown task 'mbbp'; did you mean mbpp?",
    ),
    "data missing": (["--cfg", "CFG", "--set", "task.name=gsm8k", "--set", "task.path=/no"], "'/no' does not exist"),
    "data broken": (["--cfg", "CFG", "--set", "task.name=gsm8k", "--set", "task.path=CFG"], "invalid JSON"),
    "unknown backbone": (["--cfg", "CFG", "--set", "model.backbone=qwen2_5_51"], "did you mean qwen2_5_15?"),
    "no such model": (["--cfg", "CFG", "--set", "model.backbone=/models/none"], "is not a model directory"),
    "bad name": (["--cfg", "CFG", "--run-name", "../up"], "invalid run name '../up'"),
    "taken name": (["--cfg", "CFG", "--run-name", "finished"], "already exists"),
    "no config given": ([], "--cfg"),
    "unknown option": (["--config", "CFG"], "--config"),
}


@pytest.mark.parametrize("what", BAD_STARTS)
def test_rejected_starts_make_no_run(finished: RunDir, what: str) -> None:
    arguments, message = BAD_STARTS[what]
    cfg = str(finished.root / "small.yaml")
    before = snapshot(finished.root)
    done = command_here("train", *(argument.replace("CFG", cfg) for argument in arguments), root=finished.root)
    assert message in error_of(done, 2)
    assert snapshot(finished.root) == before


BAD_REQUESTS: dict[str, tuple[list[str], str]] = {
    "resume unknown": (["resume", "--training-run", "finishd"], "no run named 'finishd' under"),
    "show unknown": (["show", "finishd"], "did you mean finished?"),
    "stop unknown": (["stop", "--training-run", "finishd"], "did you mean finished?"),
    "eval unknown": (["eval", "--training-run", "finishd"], "did you mean finished?"),
    "stop finished": (["stop", "--training-run", "finished"], "finished is not running (finished)"),
    "resume done": (["resume", "--training-run", "finished"], "train further with --additional-steps"),
    "resume unknown step": (["resume", "--training-run", "finished", "--from-step", "9"], "complete steps: 1"),
    "resume no step": (["resume", "--training-run", "finished", "--from-step", "last"], "use latest, final or a step"),
    "resume no more": (["resume", "--training-run", "finished", "--additional-steps", "0"], "--additional-steps"),
    "resume bad key": (["resume", "--training-run", "finished", "--set", "run.sed=1"], "did you mean run.seed?"),
    "resume both": (["resume", "--training-run", "finished", "--nproc", "2", "--no-torchrun"], "exclude each other"),
    "resume older": (
        ["resume", "--training-run", "old"],
        "old is a run of the older layout, which can only be evaluated",
    ),
    "stop finished now": (["stop", "--training-run", "finished", "--now"], "finished is not running (finished)"),
    "model exists": (["tiny-model", "--out", "MODEL"], "already holds a model"),
    "model below a file": (["tiny-model", "--out", "MODEL/config.json/x"], "cannot write the model"),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_rejected_requests_change_nothing(finished: RunDir, what: str) -> None:
    arguments, message = BAD_REQUESTS[what]
    model = str(finished.root / "models" / "tiny")
    (finished.root / "rl_runs" / "old" / "step_1").mkdir(parents=True, exist_ok=True)
    before = snapshot(finished.root)
    done = command_here(*(argument.replace("MODEL", model) for argument in arguments), root=finished.root)
    assert message in error_of(done)
    assert snapshot(finished.root) == before


def test_live_runs_are_not_resumed(root: Path) -> None:
    run = create_run(root, {}, "live")
    run.config_file.write_text(write_config(root).read_text())
    status = StatusWriter(run.path)
    status.update(state="running")
    assert "live is running; stop it first" in error_of(command_here("resume", "--training-run", "live", root=root), 2)
    status.update(state="running", host="far", boot_id="x")
    resume = command_here("resume", "--training-run", "live", root=root)
    assert "live is running on far; stop it first" in error_of(resume, 2)
    assert "live is running on far; kill it there" in error_of(
        command_here("stop", "--training-run", "live", "--now", root=root)
    )
    status.update(state="finished")  # but another process holds the lock
    (run.training_state / "step_1").mkdir()
    (run.training_state / "step_1" / "MANIFEST.json").write_text('{"files": {}}')
    assert "another process is writing" in error_of(command_here("resume", "--training-run", "live", root=root), 2)
    status.close()


def test_runs_and_show_as_text_and_json(finished: RunDir) -> None:
    listed = command_here("runs", root=finished.root)
    assert "finished" in listed.stdout
    row = json.loads(command_here("runs", "--json", root=finished.root).stdout)[0]
    assert (row["run"], row["state"], row["step"], row["total_steps"]) == ("finished", "finished", 1, 1)
    shown = json.loads(command_here("show", "finished", "--json", root=finished.root).stdout)
    assert shown["checkpoints"] == [
        {"step": 1, "path": str(finished.training_state / "step_1"), "complete": True, "problem": ""}
    ]
    empty = command_here("runs", root=finished.root / "models")
    assert (empty.returncode, "no runs under" in empty.stdout) == (0, True)


def test_a_file_that_is_left_out_is_named(golden: Callable[[str], RunDir]) -> None:
    run = golden("first")
    run.events_file.write_text("17\n")
    report = ["report", "first", "-o", str(run.root / "page.html")]
    for words in (["runs"], ["runs", "--json"], ["show", "first"], report):
        done = command_here(*words, root=run.root)
        named = f"warning: {run.events_file} is left out: the line at byte 0"
        assert (done.returncode, done.stderr.count(named)) == (0, 1)
    assert command_here("tasks", root=run.root).stderr == ""


def test_help_lists_every_command() -> None:
    text = command_here("--help", root=None).stdout
    commands = "train resume stop sweep eval regrade compare runs show tasks check-dataset tiny-model init schema"
    for command in commands.split():
        assert f"│ {command} " in text
    assert "..." not in text.replace("[ARGS]...", "")
    assert "supervise" not in text


def test_closed_pipe_is_not_an_error(finished: RunDir) -> None:
    command = f"{' '.join(GRPO_TRAIN)} show finished --json | head -1"
    done = subprocess.run(
        command,
        shell=True,
        env=environment(finished.root),
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        cwd=REPOSITORY,
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------------------------------------- read-only roots


@pytest.fixture
def read_only(finished: RunDir, tmp_path: Path) -> Path:
    """The root on a read-only mount; without permission to mount, a root without write permission."""
    mount = tmp_path / "ro"
    mount.mkdir()
    if os.geteuid() == 0 and subprocess.run(["mount", "--bind", str(finished.root), str(mount)]).returncode == 0:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(mount)], check=True)
        yield mount
        subprocess.run(["umount", str(mount)], check=True)
        return
    assert os.geteuid() != 0, "root cannot mount here and ignores permissions; run the tests as a user"
    folders = [finished.root, *(path for path in finished.root.rglob("*") if path.is_dir())]
    modes = [path.stat().st_mode for path in folders]
    for path in folders:
        path.chmod(0o555)
    yield finished.root
    for path, mode in zip(folders, modes, strict=True):
        path.chmod(mode)


def test_read_only_root_is_named(read_only: Path) -> None:
    before = snapshot(read_only)
    cfg = str(read_only / "small.yaml")
    for arguments in (
        ["train", "--cfg", cfg],
        ["eval", "--training-run", "finished"],
        ["resume", "--training-run", "finished", "--additional-steps", "1"],
    ):
        error = error_of(grpo_train(*arguments, root=read_only))
        assert "Read-only file system" in error or "Permission denied" in error
        assert str(read_only) in error
    assert command_here("runs", root=read_only).returncode == 0
    assert command_here("show", "finished", root=read_only).returncode == 0
    assert snapshot(read_only) == before


def test_two_starts_with_one_name_make_one_run(root: Path) -> None:
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


def test_tasks_as_json_list_every_accepted_name() -> None:
    done = command_here("tasks", "--json", root=None)
    assert done.returncode == 0, done.stderr
    tasks = json.loads(done.stdout)["tasks"]
    assert tasks["gsm8k"] == tasks["gsm8k_r1_template"] != ""
    assert {"addition", "mbpp", "tictactoe"} <= set(tasks)


def test_version_names_the_format() -> None:
    assert command_here("--version", root=None).stdout == f"grpo-train {VERSION} (format {FORMAT})\n"


def test_init_writes_examples_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("mine")
    done = command_here("init", tmp_path, root=None)
    assert done.returncode == 0, done.stderr
    assert f"kept  {tmp_path / 'demo.yaml'}" in done.stdout
    assert f"wrote {tmp_path / 'ladder' / 'tiny.yaml'}" in done.stdout
    assert (tmp_path / "demo.yaml").read_text() == "mine"
    assert (tmp_path / "schema.json").read_bytes() == (REPOSITORY / "config" / "schema.json").read_bytes()


def test_resume_lists_changes_and_keeps_them(root: Path) -> None:
    run = train_here(root, write_config(root, run__total_steps=1), "one")
    options = ["--additional-steps", "1", "--set", "optimizer.learning_rate=1e-3", "--no-torchrun"]
    done = grpo_train("resume", "--training-run", "one", *options, root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "optimizer.learning_rate: 0.0003 -> 0.001\n" in done.stdout
    config = load_config(run.config_file.read_text())
    assert (config.optimizer.learning_rate, config.run.total_steps, config.run.nproc) == (1e-3, 2, 1)
    (resumed,) = (row for row in run.read_log("events.jsonl") if row["event"] == "resumed")
    assert resumed["changes"] == {"run.total_steps": [1, 2], "optimizer.learning_rate": [0.0003, 0.001]}


def test_status_carries_version_and_format(finished: RunDir, root: Path) -> None:
    run = create_run(root, {"config_text": "task: {name: additon}"}, "rejected")
    done = grpo_train("supervise", "rejected", root=root)
    assert done.returncode == 2
    status = run.read_status()
    assert status is not None
    assert (status["version"], status["format"], status["error"]["code"]) == (VERSION, FORMAT, "bad_task")


def test_tables_on_a_terminal(finished: RunDir) -> None:
    output = on_terminal([*GRPO_TRAIN, "runs"], finished.root)
    assert "✔ finished" in output
    assert "1/1" in output
    output = on_terminal([*GRPO_TRAIN, "show", "finished"], finished.root)
    assert "step_1" in output
    assert "complete" in output


def test_a_terminal_shows_a_progress_line(root: Path) -> None:
    config = write_config(root, run__total_steps=1)
    output = on_terminal([*GRPO_TRAIN, "train", "--cfg", str(config)], root)
    assert re.search(r"\r\x1b\[K[━─]{24}  [01]/1  ", output), "tests/supervisor has what follows"
    assert "finished" in output.splitlines()[-1]


def on_terminal(command: list[str], root: Path) -> str:
    """Output of a command whose stdin and stdout are a terminal."""
    controller, terminal = pty.openpty()
    child = subprocess.Popen(
        command, env=environment(root, TERM="xterm-256color", COLUMNS="120"), cwd=REPOSITORY, stdin=terminal,
        stdout=terminal, stderr=subprocess.STDOUT,
    )  # fmt: skip
    os.close(terminal)
    chunks = []
    with contextlib.suppress(OSError):  # EIO at the end
        while chunk := os.read(controller, 65536):
            chunks.append(chunk)
    os.close(controller)
    assert child.wait(timeout=60 * PATIENCE) == 0, b"".join(chunks)
    return b"".join(chunks).decode()


def test_device_on_a_machine_without_a_gpu() -> None:
    assert command_here("device", root=None).stdout == "CPU\n"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b"", "invalid JSON"),
        (b"not json", "invalid JSON"),
        (b"[1]", "instead of an object"),
        (b'{"config_text": "\xff"}', "invalid UTF-8"),
        (b"[" * 100_000, "nested more than"),
        (b"{}", "'config_text' is missing"),
        (b'{"config_text": 1}', "'config_text' must be a text"),
        (b'{"config_text": "", "ckpt": {}}', "'ckpt' must be a text"),
        (b'{"config_text": "", "nproc": "two"}', "'nproc' must be an integer"),
        (b'{"config_text": "", "overrides": {"a": 1}}', "'overrides' must be an array of texts"),
        (b'{"config_text": "", "job": 1}', "'job' must be an object"),
        (b'{"config_text": "", "job": {"nodes": "two"}}', "'nodes' must be an integer"),
    ],
)
def test_a_launch_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bytes, reason: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = command_here("check-launch", root=tmp_path, given=given)
    (line,) = error_of(done, 2).splitlines()
    assert line.startswith("error: standard input is not a launch: ")
    assert reason in line


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1_400_000_000, "1.4 GB"), (5e18, "5000.0 PB")]
)
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text
