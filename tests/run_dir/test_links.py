"""Files of a run that another account replaced by a symbolic link, on a root that a group shares."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from grpo_train.evaluation.results.partial import Partial, PartialWriter
from grpo_train.run_dir import RunDir, StatusWriter, create_run
from grpo_train.run_dir.files import JsonlWriter, close_torn_line, open_lock, touch
from grpo_train.supervisor.journal import Journal, ProgressLine

REFUSED = "a symbolic link is not written through: remove it"


@pytest.fixture(params=["existing", "missing"])
def outside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a link leads to: a file of the account that runs the engine."""
    path = tmp_path_factory.mktemp("home") / "notes"
    if request.param == "existing":
        path.write_text("mine")
    return path


@pytest.mark.parametrize(
    ("file", "write"),
    [
        ("logs/events.jsonl", lambda run, path: run.log_event("note")),
        ("logs/train_log.jsonl", lambda run, path: JsonlWriter(path)),
        ("logs/rollouts.jsonl", lambda run, path: close_torn_line(path)),
        (".status.lock", lambda run, path: StatusWriter(run.path)),
        ("control/killed", lambda run, path: touch(path)),
        ("../.lock", lambda run, path: open_lock(path)),
        ("completions.0.jsonl", lambda run, path: PartialWriter(Partial(run.path), 0)),
    ],
)
def test_a_link_is_not_written_through(run: RunDir, outside: Path, file: str, write: object) -> None:
    path = run.path / file
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    before = outside.exists()
    with pytest.raises(OSError, match=REFUSED) as caught:
        write(run, path)  # type: ignore[operator]
    assert caught.value.filename == str(path)
    assert outside.exists() == before
    assert not before or outside.read_text() == "mine"


def test_a_linked_status_is_replaced(run: RunDir, outside: Path) -> None:
    run.status_file.symlink_to(outside)
    with closing(StatusWriter(run.path)) as status:
        status.update(state="running")
    assert not run.status_file.is_symlink()
    assert not outside.exists() or outside.read_text() == "mine"


def test_the_console_of_a_run_names_the_link(run: RunDir, outside: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The run continues; its output appears in the terminal alone."""
    console = run.logs / "console.log"
    console.symlink_to(outside)
    journal = Journal(run, ProgressLine(False))
    command = [sys.executable, "-c", "print('x' * 200_000); print('the end')"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        assert child.stdout is not None
        journal.copy_output(child.stdout)
    journal.close()
    said = capfd.readouterr().out
    assert f"cannot write {console}: {REFUSED}" in said
    assert "the end" in said
    assert child.returncode == 0
    assert not outside.exists() or outside.read_text() == "mine"


def test_a_run_behind_a_link_is_written(tmp_path: Path) -> None:
    """Only the last part of a path must not be a link."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to("disk")
    run = create_run(tmp_path / "root", {}, "one")
    other = tmp_path / "other"
    run.path.rename(other)
    run.path.symlink_to(other)
    run.log_event("note")
    with closing(StatusWriter(run.path)) as status:
        status.update(state="stopped")
    assert (run.summary()["state"], len(list(run.events()))) == ("stopped", 2)
