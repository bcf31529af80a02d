"""The wheel, installed where no checkout and no torch are: what a user of ``uv tool install`` has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_train.run_dir import list_runs
from grpo_train.run_dir.version import VERSION
from tests.support.agent import eventually
from tests.support.engine import REPOSITORY
from tests.support.pty_program import PtyProgram
from tests.support.ssh_box import choose_config, confirm, connect, ssh_box, tab_to


def uv() -> str:
    """The uv that scripts/setup.sh has found or installed."""
    return shutil.which("uv") or str(REPOSITORY / ".uv" / "bin" / "uv")


def copy_source(folder: Path) -> None:
    """Copy the files of this tree that git has or would add, without the tests."""
    names = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, check=True
    )
    for name in filter(None, names.stdout.decode().split("\0")):
        if (REPOSITORY / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an empty environment with the wheel of this tree, and the dependency versions of these tests."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_source(folder / "source")
    frozen = run([uv(), "pip", "freeze", "--exclude-editable", "--python", sys.executable])
    (folder / "versions.txt").write_text(frozen)
    run([uv(), "build", "-q", "--wheel", "--out-dir", str(folder), str(folder / "source")])
    (wheel,) = folder.glob("*.whl")
    run([uv(), "venv", "-q", "--python", sys.executable, str(folder / "env")])
    python = str(folder / "env" / "bin" / "python")
    run([uv(), "pip", "install", "-q", "--python", python, "--constraints", str(folder / "versions.txt"), str(wheel)])
    return folder / "env" / "bin"


def run(command: list[str], cwd: Path | None = None, status: int = 0) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_wheel_brings_no_torch(installed: Path) -> None:
    packages = run([uv(), "pip", "list", "--python", str(installed / "python")])
    assert "textual" in packages
    assert not {"torch", "transformers", "numpy"} & {line.split(" ")[0] for line in packages.splitlines()}


def test_commands_work_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    assert VERSION in run([str(installed / "grpo-tui"), "--version"], tmp_path)
    assert VERSION in run([str(installed / "grpo-train"), "--version"], tmp_path)
    run([str(installed / "grpo-train"), "init", "mine"], tmp_path)
    examples = {path.name for path in (REPOSITORY / "config").glob("*.yaml")}
    assert examples <= {path.name for path in (tmp_path / "mine").glob("*.yaml")}


def test_training_without_torch_names_the_fix(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("run: {total_steps: 1}\n")
    command = [str(installed / "grpo-train"), "train", "--cfg", "c.yaml", "--root", str(tmp_path)]
    output = run(command, tmp_path, status=2)
    assert "torch" in output
    assert "[train]" in output


@pytest.mark.parametrize(
    ("cached", "answer", "said", "status"),
    [
        ("no", "n\n", "nothing was downloaded; to do it later, run: ", 2),
        ("no", "\x04", "nothing was downloaded", 2),
        ("no", "y\n", "started: tool run --python ", 0),
        ("yes", "", "started: tool run --offline --python ", 0),
    ],
)
def test_the_demo_asks_before_it_downloads(
    installed: Path, tmp_path: Path, cached: str, answer: str, said: str, status: int
) -> None:
    """Started as by uvx, from an environment in uv's cache. The uv that it calls prints what it would run: the engine
    is 3 GB; tests/soak/test_clean_install.py downloads it."""
    (tmp_path / "archive-v0").mkdir()
    (tmp_path / "archive-v0" / "env").symlink_to(installed.parent)
    script = tmp_path / "uv"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *--offline*--version) test $CACHED = yes; exit;; pip*) exit 1;; esac\n'
        'echo "started: $*"\n'
    )
    script.chmod(0o755)
    run_from = tmp_path / "archive-v0" / "env" / "bin"
    variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "UV": str(script), "CACHED": cached, "TERM": "dumb"}
    command = [str(run_from / "python"), str(run_from / "grpo-tui"), "--demo", "--fresh"]
    program = PtyProgram(command, variables, size=(200, 30))
    try:
        if answer:
            program.until("Download it and start the demo? [y/N]")
            program.type(answer)
        assert program.end() == status
        assert said in program.text
        assert "GB, once" in program.text or not answer or sys.platform != "linux"
        (wheel,) = installed.parent.parent.glob("*.whl")
        assert f"--from 'grpo-tui[train] @ {wheel.as_uri()}' grpo-tui --demo --fresh" in program.text or not answer
    finally:
        program.close()


def test_a_failed_installation_ends_the_demo(installed: Path, tmp_path: Path) -> None:
    """Not started by uvx: the command that adds the extra to this environment runs. Here uv refuses."""
    (tmp_path / "uv").write_text('#!/bin/sh\necho "uv was asked: $1 $2"; exit 7\n')
    (tmp_path / "uv").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    program = PtyProgram(
        [str(installed / "grpo-tui"), "--demo", "--fresh"], {"HOME": str(tmp_path), "PATH": path, "TERM": "dumb"}
    )
    try:
        program.until("[y/N]")
        program.type("y\n")
        assert program.end() == 2
        assert "uv was asked: pip install" in program.text
        assert "the engine was not installed: this command failed with code 7: uv pip install" in program.text
    finally:
        program.close()


def test_the_demo_config_launches_over_ssh(
    installed: Path, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty directory, with a box that has no checkout."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with ssh_box(tmp_path, root) as box, box.app(installed / "grpo-tui") as screen:
        connect(screen)
        choose_config(screen, "demo", "demo.yaml  (this machine)")
        tab_to(screen, "processes")
        screen.wait_for("✔", "supervise", timeout=30)
        screen.press("Enter")
        screen.wait_for_focus("Launch")
        confirm(screen)
        started = eventually(lambda: list_runs(root), 30)[0]
        eventually(lambda: sum(1 for _ in started.read_log("train_log.jsonl")) >= 2, 90)
        screen.wait_for("step 2", "reward", timeout=30)
        screen.press("q")
