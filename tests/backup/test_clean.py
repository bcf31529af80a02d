"""``grpo-train clean``: leftovers of dead writers go; what is live, unknown or of use stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup import leftovers
from grpo_train.backup.destinations import open_destination
from grpo_train.backup.job import working_on
from grpo_train.backup.leftovers import ROOT, find_leftovers, note_destination
from grpo_train.backup.runs import back_up_run
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import start_ticks, variable_in
from grpo_train.run_dir.sessions import OUR_OPTION, ROOT_OPTION, root_mark
from tests.support.backups import contents, make_evaluation, make_run
from tests.support.engine import command_here, wait_for
from tests.support.s3_servers import running_rclone
from tests.support.stores import describe_bucket, write_destinations


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = make_run(tmp_path / "root", "one", 10)
    make_evaluation(run.root, "one", "addition", 10)
    return run


@pytest.fixture
def dead() -> int:
    """The pid of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk's clock, a day from now: when something changed cannot be set back."""
    monkeypatch.setattr(leftovers, "_now", lambda root: time.time() + 90_000)


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "part").write_bytes(b"x" * 100)
    return path


def paths(run: RunDir) -> set[str]:
    return {each.path for each in find_leftovers(run.root)}


def made_by(run: RunDir, pid: int, ticks: int) -> set[str]:
    """Leftovers whose names say who made them."""
    places = [
        folder(run.training_state / f".step_20.{pid}-{ticks}-0123abcd.tmp"),
        folder(run.root / f".selftest-{pid}-{ticks}-abc"),
        run.path / f".status.json.{pid}.0123abcd.tmp",
        run.logs / f".x.{pid}.0123abcd.tmp",
    ]
    for file in places[2:]:
        file.write_text("half")
    return {str(place.relative_to(run.root)) for place in places}


def unfinished(run: RunDir) -> set[str]:
    """What a killed restore and a killed fetch leave."""
    places = [
        run.root / "training_runs" / f".restore-two-{'0' * 16}-3", run.training_state / f".step_20.restore-{'0' * 16}",
        run.root / "models" / ".base.restore", run.root / "checkpoints" / ".fetch-base",
        run.root / "eval_runs" / "one_addition" / ".step_20_addition.restore",
    ]  # fmt: skip
    return {str(folder(place).relative_to(run.root)) for place in places}


def test_leftovers_of_the_dead_are_found(run: RunDir, dead: int) -> None:
    assert paths(run) == set()
    expected = made_by(run, dead, 1) | unfinished(run)
    assert paths(run) == expected
    assert sum(each.bytes for each in find_leftovers(run.root)) == 7 * 100 + 2 * 4


def test_work_of_the_living_stays(run: RunDir, day_later: None) -> None:
    pid = os.getpid()
    ticks = start_ticks(pid)
    assert ticks is not None
    made_by(run, pid, ticks)
    unfinished(run)
    with working_on(run.root, "training_runs", "one", "restore"):
        assert paths(run) == set()


def test_processes_of_a_dead_writer_protect_its_work(run: RunDir, dead: int) -> None:
    """A killed self-test whose trainer lives on."""
    place = folder(run.root / f".selftest-{dead}-1-abc")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=place) as child:
        wait_for(lambda: os.readlink(f"/proc/{child.pid}/cwd") == str(place), "the process")
        assert paths(run) == set()
        child.kill()
    assert paths(run) == {place.name}


def test_work_without_a_name_counts_after_a_day(
    run: RunDir, dead: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    made = {
        folder(run.root / "training_runs" / ".new-two"), folder(run.root / "eval_runs/one_addition/.x.0123abcd.tmp"),
        folder(run.root / "transfers" / "training_runs.gone"), folder(run.root / "transfers" / "fetch.base"),
    }  # fmt: skip
    folder(run.root / "transfers" / "training_runs.one")
    assert paths(run) == set()
    request.getfixturevalue("day_later")
    assert paths(run) == {str(path.relative_to(run.root)) for path in made}
    monkeypatch.undo()
    made_by(run, dead, 1)
    monkeypatch.setattr(leftovers, "NETWORK_FILE_SYSTEMS", {leftovers.mount_of(run.root).kind})  # type: ignore[union-attr]
    assert paths(run) == set(), "on a shared disk a process of another machine may have that pid"


def test_what_is_of_use_stays(run: RunDir, dead: int, day_later: None) -> None:
    """Samples and results that an evaluation continues with, notes, locks, and names of others."""
    tree = run.root / "eval_runs" / "one_addition"
    for place in (
        tree / ".step_20_addition.partial", tree / ".step_10_addition.0123abcd.old", run.root / ".cache",
        run.root / "mine" / ".new-idea", run.training_state / "superseded" / "0123abcd" / "step_5",
    ):  # fmt: skip
        folder(place)
    for file in (".vimrc.tmp", ".nfs000000001", ".backup.json", f".x.{dead}.tmp", ".restore-notes.txt", ".fetch-list"):
        (run.path / file).write_text("mine")
    assert paths(run) == set()


def run_json(*arguments: str, root: Path, code: int = 0) -> Any:
    done = command_here(*arguments, "--json", root=root)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_clean_asks_and_removes(run: RunDir, dead: int) -> None:
    before = contents(run.root)
    expected = made_by(run, dead, 1)
    planned = command_here("clean", "--dry-run", root=run.root)
    assert all(path in planned.stdout for path in expected)
    asked = command_here("clean", root=run.root)
    assert (asked.returncode, "add --yes" in asked.stderr) == (2, True)
    assert paths(run) == expected
    done = run_json("clean", "--yes", root=run.root)
    assert {each["path"] for each in done["leftovers"]} == expected
    assert not any((run.root / path).exists() for path in expected)
    assert contents(run.root) == before
    assert run_json("clean", root=run.root)["leftovers"] == [], "nothing to confirm"


@pytest.mark.parametrize("kind", ["folder", "rclone"])
def test_the_backup_of_a_killed_selftest_is_removed(
    run: RunDir, dead: int, kind: str, home: Path, tmp_path: Path
) -> None:
    """Killed in its backup; the run of a user, of the same name, stays."""
    (tmp_path / "disk").mkdir()
    with running_rclone(tmp_path) if kind == "rclone" else nullcontext() as server:
        if server is None:
            write_destinations({"name": "s3", "folder": str(tmp_path / "disk")})
        else:
            describe_bucket("disk", server)
        to = open_destination("s3", run.root)
        back_up_run(make_run(tmp_path / "user", "selftest", 1).root, "training_runs", "selftest", to)
        before = {entry.key for entry in to.store.entries("")}
        place = run.root / f".selftest-{dead}-1-abc"
        mine = make_run(place / ROOT, "selftest", 1)
        (mine.path / "launch.json").write_text(json.dumps({"argv": ["grpo-train", "selftest"]}))
        make_evaluation(mine.root, "selftest", "addition", 1)
        back_up_run(mine.root, "training_runs", "selftest", to)
        complete = next(
            entry.key for entry in to.store.entries("") if entry.key not in before and "COMPLETE" in entry.key
        )
        to.store.delete([complete])
        note_destination(place, "s4")
        refused = command_here("clean", "--yes", root=run.root)
        assert (refused.returncode, "did you mean s3?" in refused.stderr) == (3, True), refused.stderr
        note_destination(place, "s3")
        of_the_selftest = {**os.environ, "LOCALFS_ROOT": str(mine.root)}
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=of_the_selftest) as uploading:
            wait_for(lambda: variable_in(uploading.pid, "LOCALFS_ROOT") == str(mine.root), "the process")
            assert paths(run) == set(), "a child of the self-test may still send"
            uploading.kill()
        assert "its backup in s3" in command_here("clean", "--dry-run", root=run.root).stdout
        assert {each["destination"] for each in run_json("clean", "--yes", root=run.root)["leftovers"]} == {"s3"}
        assert {entry.key for entry in to.store.entries("")} == before
    assert not place.exists()


@pytest.fixture
def tmux(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tmux server of its own, which ends with the test."""
    folder = tempfile.mkdtemp(prefix="clean-", dir="/tmp")  # a socket's path must be short
    monkeypatch.setenv("TMUX_TMPDIR", folder)
    monkeypatch.delenv("TMUX", raising=False)
    yield
    subprocess.run(["tmux", "kill-server"], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def start_session(name: str, root: Path | None, program: str) -> None:
    marks = [";", "set-option", "-t", name, OUR_OPTION, "1", ";", "set-option", "-t", name, ROOT_OPTION]
    marks = [*marks, root_mark(root)] if root else []
    keep = ["start-server", ";", "set-option", "-wg", "remain-on-exit", "on", ";"]
    subprocess.run(["tmux", *keep, "new-session", "-d", "-s", name, program, *marks], check=True)


def sessions() -> dict[str, str]:
    shown = subprocess.run(
        ["tmux", "list-panes", "-a", "-F", "#{session_name} #{pane_dead}"], capture_output=True, text=True, check=True
    )
    return dict(line.rsplit(" ", 1) for line in shown.stdout.splitlines())  # type: ignore[misc]


def test_our_dead_sessions_are_closed(run: RunDir, tmux: None, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    start_session("one", run.root, "true")
    start_session("live", run.root, "cat")
    start_session("theirs", None, "true")
    start_session("elsewhere", tmp_path / "other", "true")
    wait_for(lambda: sessions() == {"one": "1", "live": "0", "theirs": "1", "elsewhere": "1"}, "their ends")
    assert run_json("clean", "--dry-run", root=run.root)["sessions"] == ["one"]
    assert run_json("clean", "--yes", root=run.root)["sessions"] == ["one"]
    assert set(sessions()) == {"live", "theirs", "elsewhere"}
