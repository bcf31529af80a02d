"""The last screen: on the terminal before the app, on real terminals and in parts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import pytest

from grpo_tui import last_screen
from grpo_tui.keep_screen import keep
from remote.boxes import Box
from tests.support.pty_program import PtyProgram
from tests.tui.conftest import BOX, Session, Start

REPO = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "grpo_tui.start"]
APP = b"\x1b[?1004h"
"""Written by Textual when it starts."""
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


def left(run: Run, *words: str) -> PtyProgram:
    """The app was started and left on Home once the box had listed its runs."""
    program = run(*words)
    program.until("run_second")
    program.until(" ms")
    program.type("q")
    assert program.end() == 0
    return program


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


def test_the_last_screen_is_shown_first_and_replaced_in_place(run: Run, world: dict[str, str]) -> None:
    first = left(run)
    assert b"starting" not in first.written
    (file,) = Path(world["XDG_CACHE_HOME"], "grpo-tui").glob("screen-*")
    assert file.stat().st_mode & 0o777 == 0o600

    second = run()
    second.until(" ms")  # in the header, which is read before the rest of the frame
    second.type("q")
    assert second.end() == 0
    shown, app = second.written.split(APP, 1)
    assert b"run_second" in shown
    assert f"as of {time.strftime('%H:')}".encode() in shown
    assert "· starting".encode() in shown
    assert second.written.count(ENTER) == 1
    assert b"\x1b[2J" not in app
    frame = app[app.index(b"\xe2\x94\x82") :][:30_000]  # from the line in its header
    assert b"run_second" in frame, "the first frame has the list"
    assert b"connecting to" not in app
    assert second.written.count(LEAVE) == 1
    assert termios.tcgetattr(second.terminal) == second.modes


def test_keys_typed_during_startup_belong_to_the_app(run: Run) -> None:
    left(run)
    program = run()
    program.type("/")
    program.until("starting")
    program.type("qz")
    program.until(APP)
    program.type("jx")
    program.until("qzjx")
    shown = program.written.partition("· starting".encode())[2].partition(APP)[0]
    assert b"qz" not in shown, "echoed by the terminal"


def test_a_crash_at_startup_leaves_the_terminal_as_it_was(run: Run, tmp_path: Path) -> None:
    left(run)
    broken = tmp_path / "broken" / "textual"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken package')")
    program = run(PYTHONPATH=f"{tmp_path / 'broken'}:{REPO}")
    assert program.end() == 1
    assert b"starting" in program.written
    assert b"broken package" in program.written.split(LEAVE)[1]
    assert termios.tcgetattr(program.terminal) == program.modes


def test_an_error_of_the_user_is_readable(run: Run, tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    left(run, "--config-dir", str(configs))
    configs.rmdir()
    program = run("--config-dir", str(configs))
    assert program.end() == 2
    assert b"starting" in program.written
    assert b"grpo-tui: " in program.written.split(LEAVE)[1]
    assert termios.tcgetattr(program.terminal) == program.modes


OTHERS: list[tuple[tuple[str, ...], tuple[int, int], dict[str, str]]] = [
    (("--no-cache",), (100, 30), {}), (("--fresh",), (100, 30), {}), ((), (100, 30), {"NO_COLOR": "1"}),
    ((), (100, 30), {"TERM": "dumb"}), ((), (90, 30), {}),
]  # fmt: skip
"""Words, size and environment of a start that does not show the last screen."""


def test_no_last_screen(run: Run) -> None:
    left(run)
    for words, size, environment in OTHERS:
        program = run(*words, size=size, **environment)
        program.until("run_second")
        assert b"starting" not in program.written, (words, size, environment)
    run().until("starting")


# in parts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    if sys.platform == "darwin":
        monkeypatch.setenv("HOME", str(tmp_path))
    return Path(last_screen.cache_folder())


def read(words: tuple[str, ...] = (), size: tuple[int, int] = (120, 40)) -> list[str] | None:
    key = last_screen.key_of(list(words))
    try:
        return last_screen._read(last_screen.file_of(last_screen.cache_folder(), key), key, size)
    except OSError:
        return None


async def listed(session: Session) -> None:
    await session.until(lambda: session.app.store.runs and "87/200" in session.text())
    session.app.memory.end()


def test_it_is_in_the_cache_folder(folder: Path) -> None:
    assert str(folder) == platformdirs.user_cache_dir("grpo-tui")


def test_hardly_anything_is_imported_before_it() -> None:
    code = f"import sys; sys.path.insert(0, {str(REPO)!r}); import grpo_tui.start; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"textual", "rich", "typing", "json", "re", "pathlib", "dataclasses", "argparse", "grpo_train", "remote"}
    assert not heavy & set(done.stdout.split())


async def test_home_is_kept_dimmed_and_dated(start: Start, folder: Path) -> None:
    async with start(wait="87/200") as session:
        await listed(session)
        keep(session.app, ())
        lines = read()
        assert lines is not None
        assert len(lines) == 40
        assert "h200-a" in lines[0]
        assert "as of" in lines[0]
        assert "12 ms" not in lines[0], "the link of then"
        assert any("run_gsm8k_demo" in line for line in lines)
        assert all(map(last_screen._is_plain, lines))
        assert read(size=(120, 41)) is None
        assert read(("--box", "h200-a")) is None


async def test_another_view_is_not_kept(start: Start, folder: Path) -> None:
    async with start(wait="87/200") as session:
        await listed(session)
        keep(session.app, ())
        await session.press("question_mark")
        await session.until_text("esc closes")
        keep(session.app, ())
        assert read() is None


async def test_a_box_that_was_not_asked_for_is_not_kept(start: Start, folder: Path) -> None:
    async with start(wait="87/200") as session:
        await listed(session)
        await session.app.use_box(Box("h200-b", host="192.0.2.11"))
        await listed(session)
        keep(session.app, ("--box", BOX.name))
        assert not list(folder.glob("screen-*"))


async def test_it_belongs_to_its_files_and_to_the_last_box(start: Start, folder: Path) -> None:
    async with start(wait="87/200") as session:
        await listed(session)
        keep(session.app, ())
        assert read() is not None
        session.app.preferences.box = "another"
        session.app.preferences.save()
        assert read() is None
        session.app.memory.end()
        assert read() is not None
        boxes = Path(os.environ["XDG_CONFIG_HOME"]) / "grpo-tui" / "boxes.yaml"
        boxes.parent.mkdir(parents=True)
        boxes.write_text("boxes: []")
        assert read() is None


async def test_a_damaged_or_foreign_file_is_not_shown(start: Start, folder: Path) -> None:
    async with start(wait="87/200") as session:
        await listed(session)
        keep(session.app, ())
        (file,) = folder.glob("screen-*")
        content = file.read_bytes()
        for damaged in (b"", content[:500], content[:-200], content.replace(b"run_gsm8k", b"\x1b]52;c;\x07", 1)):
            file.write_bytes(damaged)
            assert read() is None, damaged[-20:]
        file.write_bytes(content)
        assert read() is not None
        file.chmod(0o644)
        assert read() is None


async def test_few_are_kept(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.keep_screen.MOST_KEPT", 3)
    async with start(wait="87/200") as session:
        await listed(session)
        for number in range(5):
            keep(session.app, ("--root", str(number)))
        assert len(list(folder.glob("screen-*"))) == 3
