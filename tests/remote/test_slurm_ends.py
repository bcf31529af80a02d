"""How SLURM's account of a job that left no status becomes the end of its run. Stand-ins print what SLURM prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from grpo_train.run_dir import create_run
from grpo_train.run_dir.slurm_job import JOB_FILE
from grpo_tui.box.rows import RunRow
from grpo_tui.shell.connection import ShellConnection
from grpo_tui.shell.look import _session
from remote.agent.box import BoxContext
from remote.agent.slurm import Jobs, _record_end, final_state
from remote.boxes import Box
from remote.gate import reply
from remote.protocol import RemoteError, Settings
from tests.support.agent import eventually


def say(folder: Path, program: str, output: str, code: int = 0) -> None:
    """A program that prints something."""
    file = folder / program
    file.write_text(f"#!/bin/sh\ncat {'>&2 ' * bool(code)}<<'END'\n{output}\nEND\nexit {code}\n")
    file.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("states", "state", "code", "words"),
    [
        ("FAILED\nOUT_OF_MEMORY\nCOMPLETED", "crashed", "out_of_memory", "out of memory (job 7, OUT_OF_MEMORY)"),
        ("TIMEOUT\nCANCELLED", "crashed", "time_limit", "the time limit ended it before it had saved (job 7, TIMEOUT)"),
        ("NODE_FAIL", "crashed", "node_failed", "its node failed (job 7, NODE_FAIL)"),
        ("PREEMPTED", "crashed", "preempted", "preempted, and not requeued (job 7, PREEMPTED)"),
        ("CANCELLED by 0", "killed", "", ""),
    ],
)
def test_the_account_of_a_job(root: Path, programs: Path, states: str, state: str, code: str, words: str) -> None:
    say(programs, "sacct", states)
    run = create_run(root, {}, "one")
    assert _record_end(run, "7")
    row = run.summary()
    assert (row["state"], (row["error"] or {}).get("code", ""), (row["error"] or {}).get("summary", "")) == (
        state,
        code,
        words,
    )


def test_without_accounting_the_controller_is_asked(programs: Path) -> None:
    say(programs, "sacct", "Slurm accounting storage is disabled", code=1)
    say(programs, "scontrol", "JobId=7 JobName=one JobState=OUT_OF_MEMORY Reason=OutOfMemory")
    assert final_state("7") == ("OUT_OF_MEMORY", "")
    say(programs, "scontrol", FORGOTTEN, code=1)
    assert final_state("7") == ("", "")


AWAY = "sacct: error: Problem talking to the database: Connection refused"
FORGOTTEN = "slurm_load_jobs error: Invalid job id specified"


@pytest.mark.parametrize(
    ("accounting", "controller", "state"),
    [
        ("RUNNING\nRUNNING", "JobId=7 JobState=OUT_OF_MEMORY Reason=OutOfMemory", "OUT_OF_MEMORY"),
        ("RUNNING\nOUT_OF_MEMORY", "JobId=7 JobState=COMPLETING Reason=None", None),
        ("PENDING", FORGOTTEN, None),
        ("", FORGOTTEN, ""),
        (AWAY, FORGOTTEN, None),
        (AWAY, "JobId=7 JobState=FAILED Reason=NonZeroExitCode", "FAILED"),
        ("", "JobId=7 JobState=TIMEOUT Reason=TimeLimit", "TIMEOUT"),
        ("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", None),
        ("FAILED", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "FAILED"),
    ],
)
def test_an_end_that_is_not_known_yet_is_waited_for(
    root: Path, programs: Path, accounting: str, controller: str, state: str | None
) -> None:
    say(programs, "sacct", accounting, code=int("error" in accounting))
    say(programs, "scontrol", controller, code=int("error" in controller))
    assert final_state("7")[0] == state
    run = create_run(root, {}, "one")
    assert _record_end(run, "7") == (state is not None)
    assert _record_end(run, "7", is_late=True) == (state is None), "not for good"
    row = run.summary()
    assert row["state"] == "crashed"
    unasked = "slurm_load_jobs error: Unable" in controller or (accounting == AWAY and controller == FORGOTTEN)
    assert ("SLURM could not be asked how: s" in str(row["error"])) == (unasked and state is None)


class Answers:
    """A connection to a box with SLURM."""

    box = Box("b", scheduler="slurm")

    def __init__(self, answers: dict[str, Any]) -> None:
        self.request = answers.__getitem__


def test_a_queue_that_cannot_be_read_is_not_empty(root: Path, programs: Path) -> None:
    box, (waits, trains) = BoxContext(Settings(), root, None), (create_run(root, {}, name) for name in ("one", "two"))
    for run in (waits, trains):
        (run.path / JOB_FILE).write_text('{"job": "7"}')
    say(programs, "squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    jobs = Jobs(box)
    jobs.refresh()
    eventually(lambda: "Unable" in jobs.apply(waits, {"run": "one", "state": "starting"}).get("unasked", ""))
    for state in ("lost", "starting", "requeued"):
        row = {"run": "one", "state": state}
        seen = jobs.apply(waits, row)
        assert (seen["state"], "Unable to contact" in seen["unasked"]) == ("starting", True)
    assert "starting? (SLURM: slurm_load_jobs error: Unable to contact" in RunRow.from_summary(seen).label[1]
    with pytest.raises(RemoteError, match="could not be asked for the job of one: slurm_load_jobs"):
        _session(
            cast("ShellConnection", Answers({"list_sessions": {"sessions": []}, "list_runs": {"runs": [seen]}})), "one"
        )
    assert "unasked" not in jobs.apply(trains, {"run": "two", "state": "running"})
    assert reply("list_runs", {"ok": True, "result": {"runs": [seen]}})["runs"] == [seen]
