"""The program on a real terminal: how it starts, is suspended, and ends."""

from __future__ import annotations

import os
import shlex
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.pty_program import PtyProgram

REPO = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "grpo_tui.cli"]
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such terminals")

Run = Callable[..., PtyProgram]


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """An environment of its own, with two runs."""
    for name in ("first", "second"):
        folder = tmp_path / "root" / "training_runs" / f"run_{name}"
        (folder / "logs").mkdir(parents=True)
        (folder / "launch.json").write_text("{}")
        (folder / "status.json").write_text('{"state": "finished", "total_steps": 3}')
    return {
        **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TMUX", "COLUMNS", "LINES")},
        "HOME": str(tmp_path), "PYTHONPATH": str(REPO), "TERM": "xterm-256color",
        **{f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CACHE", "CONFIG", "STATE", "DATA")},
    }  # fmt: skip


@pytest.fixture
def run(world: dict[str, str], tmp_path: Path) -> Iterator[Run]:
    """Runs the program in that environment."""
    programs: list[PtyProgram] = []

    def started(*words: str, size: tuple[int, int] = (100, 30), **environment: str) -> PtyProgram:
        command = [*PROGRAM, "--root", str(tmp_path / "root"), *words]
        programs.append(PtyProgram(command, world | environment, size))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


def test_ctrl_z_suspends_and_fg_returns(run: Run, world: dict[str, str], tmp_path: Path) -> None:
    """Also where a wrapper started it (as uv run does), which stops with it."""
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f"#!/bin/sh\n{shlex.join(PROGRAM)} --root {tmp_path}/root\necho ended $?\n")
    wrapper.chmod(0o755)
    shell = PtyProgram(["/bin/bash", "--norc", "--noprofile", "-i"], world | {"PS1": "the-shell> "})
    try:
        shell.until("the-shell> ")
        shell.type(f"{wrapper}\n")
        for _ in range(2):
            shell.until("run_second")
            shell.until(" ms")
            shell.written = b""
            shell.type("\x1a")
            shell.until("Stopped")
            shell.until("the-shell> ")
            assert LEAVE in shell.written
            shell.written = b""
            shell.type("fg\n")
            shell.until(ENTER)
        shell.until("run_second")
        shell.type("q")
        shell.until("ended 0")
    finally:
        shell.close()


def test_without_a_shell_ctrl_z_says_so(run: Run) -> None:
    program = run()
    program.until("run_second")
    program.until(" ms")
    program.type("\x1a")
    program.until("no shell waits")
    program.type("q")
    assert program.end() == 0


def test_a_crash_at_startup_leaves_the_terminal_as_it_was(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "textual"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken package')")
    program = run(PYTHONPATH=f"{tmp_path / 'broken'}:{REPO}")
    assert program.end() == 1
    assert b"broken package" in program.written
    assert ENTER not in program.written
    assert termios.tcgetattr(program.terminal) == program.modes


def test_an_error_of_the_user_is_readable(run: Run, tmp_path: Path) -> None:
    program = run("--config-dir", str(tmp_path / "configs"))
    assert program.end() == 2
    assert b"grpo-tui: " in program.written
    assert termios.tcgetattr(program.terminal) == program.modes


def test_the_terminal_is_as_it_was_after_the_app(run: Run) -> None:
    program = run()
    program.until("run_second")
    program.until(" ms")
    program.type("q")
    assert program.end() == 0
    assert (program.written.count(ENTER), program.written.count(LEAVE)) == (1, 1)
    assert termios.tcgetattr(program.terminal) == program.modes
