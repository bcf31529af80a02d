"""Copies between this machine and the box, in the app: a real agent gives and takes the files."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets import Button, Input, Select

from grpo_train.run_dir import list_runs, write_manifest
from grpo_tui.box.copies import CopyProgress
from grpo_tui.dialogs import copies
from grpo_tui.dialogs.copies import BoxCopy, CopyScreen, GetForm, PathSuggester, PutForm, UncommittedScreen
from remote.boxes import Box
from tests.remote.test_sync import Clone
from tests.support.patience import PATIENCE
from tests.tui.conftest import Session, Start, fill, opened, problem
from tests.tui.fake_rows import RUN

STEP = 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the run that the scripted box lists."""
    step = tmp_path / "root" / "training_runs" / RUN / "training_state" / f"step_{STEP}"
    (step / "model").mkdir(parents=True)
    (step / "model" / "model.safetensors").write_bytes(b"w" * 300_000)
    (step / "optimizer.pt").write_bytes(b"o")
    write_manifest(step, step=STEP)
    (step.parents[1] / "launch.json").write_text("{}")
    return tmp_path / "root"


@pytest.fixture
def box(root: Path) -> Box:
    return Box("here", kind="local", root=str(root))


def copy_of(session: Session) -> BoxCopy:
    copy = session.app.last_copy
    assert copy is not None
    return copy


async def test_weights_come_home(start: Start, box: Box, root: Path, tmp_path: Path) -> None:
    async with start(box=box, wait="87/200") as session:
        await opened(session, "D", GetForm)
        assert session.app.screen.query_one("#what", Select).value == (f"{RUN}:{STEP}", "none")
        fill(session, "folder", str(tmp_path / "home"))
        await session.press("enter")
        place = tmp_path / "home" / f"{RUN}_step_{STEP}"
        await session.until_text("1 file, ", "hashed on both machines")
        assert (place / "model.safetensors").read_bytes() == b"w" * 300_000
        await session.press("enter")
        await session.until(lambda: len(session.app.screen_stack) == 1)
        assert not session.messages(), "the dialog said it"


async def test_a_run_comes_home_behind_another_view(
    start: Start, box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden before it ends, a copy says its end in the line at the bottom."""
    hidden, run_copy = Event(), BoxCopy.run

    def held(copy: BoxCopy, *given: Any) -> None:
        hidden.wait(60 * PATIENCE)
        run_copy(copy, *given)

    monkeypatch.setattr(BoxCopy, "run", held)
    async with start(box=box, wait="87/200") as session:
        for said in ("✔ copied: ", "✖ not copied: "):
            hidden.clear()
            await opened(session, "D", GetForm)
            session.app.screen.query_one("#what", Select).value = (RUN, "latest")
            fill(session, "folder", str(tmp_path / "home"))
            await session.press("enter")
            await session.until(lambda: isinstance(session.app.screen, CopyScreen))
            await session.press("escape")
            await session.until(lambda: len(session.app.screen_stack) == 1)
            hidden.set()
            await session.until(lambda said=said: said in session.messages(), said)
            (run,) = list_runs(tmp_path / "home")
            assert [checkpoint.step for checkpoint in run.checkpoints()] == [STEP]
            (run.training_state / f"step_{STEP}" / "optimizer.pt").write_bytes(b"another")


async def test_put_and_what_is_refused(start: Start, box: Box, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "my weights"
    source.mkdir()
    (source / "model.bin").write_bytes(b"w")
    async with start(box=box, wait="87/200") as session:
        await opened(session, "U", PutForm)
        await session.press("enter")
        await session.until(lambda: "enter a path" in problem(session))
        fill(session, "source", str(tmp_path / "nothing"))
        await session.press("enter")
        await session.until(lambda: "nothing does not exist" in problem(session))
        for content in (b"w", b"other"):
            (source / "model.bin").write_bytes(content)
            if not isinstance(session.app.screen, PutForm):
                await opened(session, "U", PutForm)
            fill(session, "source", str(source))
            await session.press("enter")
            await session.until(lambda: isinstance(session.app.screen, CopyScreen) and copy_of(session).over)
            if content == b"w":
                await session.until_text("1 file, ")
                await session.press("escape")
        await session.until(lambda: "exists on here with other content" in problem(session))
        (source / "model.bin").write_bytes(b"w")
        await session.until(lambda: session.app.screen.query_one("#again", Button).has_focus)
        await session.press("enter")
        await session.until_text("1 file, ", "of them were there")
    assert (root / "checkpoints" / "my weights" / "model.bin").read_bytes() == b"w"


async def test_a_copy_is_hidden_shown_and_stopped(start: Start, root: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        box = Box("silent", host="127.0.0.1", port=silent.getsockname()[1], root=str(root))
        async with start(box=box, wait="87/200") as session:
            await opened(session, "D", GetForm)
            fill(session, "folder", str(tmp_path / "home"))
            await session.press("enter")
            await session.until_text("connecting")
            await session.press("escape")
            await session.until(lambda: len(session.app.screen_stack) == 1)
            await session.until_text("↓ …")
            for key in ("U", "D"):  # one copy at a time: each key shows it
                await opened(session, key, CopyScreen)
                await session.press("escape")
                await session.until(lambda: len(session.app.screen_stack) == 1)
            await opened(session, "D", CopyScreen)
            await session.focus("#stop")
            await session.press("enter")
            await session.until_text("stopped; what has arrived is kept")
            await session.press("escape")
            assert session.app.copy_at_work is None


async def test_the_app_exits_while_it_copies(start: Start, root: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        box = Box("silent", host="127.0.0.1", port=silent.getsockname()[1], root=str(root))
        async with start(box=box, wait="87/200") as session:
            await opened(session, "D", GetForm)
            fill(session, "folder", str(tmp_path / "home"))
            await session.press("enter")
            await session.until_text("connecting")
            copy = copy_of(session)
            await session.press("escape", "q")
    assert copy.was_stopped


async def choose_sync(session: Session) -> None:
    """``sync`` in the palette."""
    await session.press("colon")
    await session.until_text("Search for commands")
    await session.press(*"sync: Bring")
    await session.until_text("running jobs keep theirs")
    await session.press("enter")


async def test_code_goes_to_the_box(start: Start, box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = Clone(tmp_path / "clone")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(clone.folder)
    box = replace(box, code="sync")
    async with start(box=box, wait="87/200") as session:
        await choose_sync(session)
        await session.until_text(
            f"{clone.git('rev-parse', 'HEAD')[:10]} Say one", "its engine is not set up", "grpo/code"
        )
        await session.press("enter")
        clone.says("edited")
        await choose_sync(session)
        await session.until(lambda: isinstance(session.app.screen, UncommittedScreen))
        await session.until_text("M grpo_train/__init__.py")
        await session.press("enter")  # Cancel has the focus
        await session.until(lambda: len(session.app.screen_stack) == 1)
        await choose_sync(session)
        await session.until(lambda: isinstance(session.app.screen, UncommittedScreen))
        await session.press("right", "enter")
        await session.until_text("with changes ", "the next launch trains with it")
    assert "edited" in (tmp_path / ".grpo" / "code" / "grpo_train" / "__init__.py").read_text()


async def test_readonly_takes_nothing(start: Start, box: Box) -> None:
    async with start(box=box, wait="87/200", readonly=True) as session:
        await session.press("U")
        await session.until(lambda: "--readonly" in session.messages())
        await opened(session, "D", GetForm)


async def test_paths_are_completed(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "start.bin").touch()
    suggest = PathSuggester().get_suggestion
    assert await suggest(f"{tmp_path}/mo") == f"{tmp_path}/models/"
    assert await suggest(f"{tmp_path}/models/s") == f"{tmp_path}/models/start.bin"
    assert await suggest(f"{tmp_path}/models/") is None
    assert await suggest("/nowhere/x") is None


def test_rate_and_time_left() -> None:
    now = 0.0
    progress = CopyProgress(is_get=True, clock=lambda: now)
    assert progress.label() == "↓ …"
    assert progress.line() == "connecting …"
    for second in range(11):
        now = float(second)
        progress.take(second * 10_000_000, 200_000_000)
    assert progress.label() == "↓ 50% 10 MB/s 10s"
    assert progress.line() == "100 MB of 200 MB · 10 MB/s · 10s left"
    progress.take(0, 200_000_000)  # a new connection counts again
    assert progress.rate == 0


async def test_fields_take_a_path(start: Start, box: Box) -> None:
    async with start(box=box, wait="87/200") as session:
        await opened(session, "U", PutForm)
        assert session.app.screen.query_one("#source", Input).has_focus


def test_an_answer_may_take_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a question is on the screen, the copy looks now and then whether it was stopped."""
    looks = []

    class Late(Future[object]):
        def result(self, timeout: float | None = None) -> object:
            looks.append(timeout)
            if len(looks) < 3:
                raise NotYet
            return super().result(timeout)

    monkeypatch.setattr(copies, "Future", Late)
    app = SimpleNamespace(call_from_thread=lambda call, *given: call(*given), push_screen=lambda _, take: take("yes"))
    copy = SimpleNamespace(stopped=Event())
    assert copies._wait_for(app, copy, None) == "yes"  # type: ignore[arg-type]
    assert looks == [copies.LOOK_S] * 3
    copy.stopped.set()
    assert copies._wait_for(app, copy, None) is None  # type: ignore[arg-type]
