"""Whether a box can be terminated: the real engine's answer, and when it counts."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.destinations import open_destination
from grpo_train.backup.job import working_on
from grpo_train.backup.runs import back_up_all
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.processes import identity
from remote.agent import backups
from remote.agent.backups import safe_to_terminate
from remote.agent.box import BoxContext
from remote.gate import reply as admitted
from remote.protocol import RemoteError, Settings
from remote.protocol.backups import SafeToTerminateRequest
from tests.remote.test_backups import ENGINE
from tests.remote.test_backups import disk as disk
from tests.support.backups import make_evaluation, make_run, set_state

Ask = Callable[..., dict[str, Any]]


class Box:
    """A box with one run, and an engine that counts how often it is started."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.run: RunDir = make_run(folder / "root", "one", 2)
        make_evaluation(self.run.root, "one", "addition", 2)
        self._engine, self._started = folder / "engine", folder / "started"
        self.engine_does("")
        known = Settings(root=str(self.run.root), engine=[str(self._engine)], **settings)
        self.context = BoxContext.from_settings(vars(known))

    def engine_does(self, after: str, command: str = shlex.join(ENGINE)) -> None:
        """Use this command as the engine, and another one behind it."""
        lines = ["#!/bin/sh", f"echo x >> {self._started}", f'{command} "$@"', "code=$?", after, "exit $code", ""]
        self._engine.write_text("\n".join(lines))
        self._engine.chmod(0o700)

    @property
    def started(self) -> int:
        """How often the engine was started."""
        return self._started.read_text().count("x") if self._started.exists() else 0

    def ask(self, *, now: bool = False) -> dict[str, Any]:
        """The reply as the app gets it."""
        result = json.loads(json.dumps(safe_to_terminate(self.context, SafeToTerminateRequest(now))))
        return admitted("safe_to_terminate", {"ok": True, "result": result})

    def codes(self, **options: bool) -> set[tuple[str, str]]:
        found = self.ask(**options)
        assert not found["safe"]
        return {(row["name"], row["code"]) for row in found["obstacles"]}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    yield Box(tmp_path)
    backups._checkers.clear()


def describe(disk: Path) -> None:
    """Make a folder the only destination."""
    file = Path("~/.config/grpo-tui/backup.yaml").expanduser()
    file.write_text(f"destinations:\n  - name: disk\n    folder: {disk}\n")


def test_green_only_for_the_root_as_it_is(box: Box, disk: Path) -> None:
    describe(disk)
    back_up_all(box.run.root, open_destination(None, box.run.root))
    found = box.ask()
    assert (found["safe"], found["kept"], found["obstacles"]) == (True, "backup", [])
    assert box.ask()["safe"]
    assert box.started == 1  # nothing changed

    append_jsonl(box.run.events_file, {"event": "note"})
    assert box.codes() == {("this box", "changed")}
    assert box.started == 1  # not again so soon
    assert box.codes(now=True) == {("one", "behind")}
    back_up_all(box.run.root, open_destination(None, box.run.root))
    assert box.codes() == {("this box", "changed")}

    box.engine_does(f"touch {box.run.path}/logs/more.jsonl")
    assert box.codes(now=True) == {("this box", "changed")}  # it changed while it was checked


def test_the_engine_is_not_asked_while_something_is_live(box: Box, disk: Path) -> None:
    me = identity()
    before = box.run.status_file.read_text()
    set_state(box.run, "running", pid=me.pid, pid_start=me.pid_start, host=me.host, boot_id=me.boot_id)
    assert box.codes() == {("one", "live")}
    assert not box.ask()["whole"]
    box.run.status_file.write_text(before)
    with working_on(box.run.root, "eval_runs", "one_addition", "backup", "disk"):
        (row,) = box.ask()["obstacles"]
        assert (row["name"], row["reason"]) == ("one_addition", "its backup is at work")
    assert box.started == 0


def test_what_is_not_known_is_refused(box: Box, disk: Path, tmp_path: Path) -> None:
    def code() -> str:
        with pytest.raises(RemoteError) as caught:
            box.ask(now=True)
        return caught.value.code

    assert code() == "no_bucket"  # the first destination of backup.yaml is not mounted
    for output in ("echo no such command; false", "echo '{\"safe\": 1}'", "echo '[]'"):
        box.engine_does("", command=f"{output} #")
        assert code() == "no_answer"
    lie = {"safe": True, "kept": "backup", "obstacles": [{"name": "one"}]}
    box.engine_does("", command=f"echo {shlex.quote(json.dumps(lie))} #")
    assert code() == "no_answer"
    box.context = BoxContext.from_settings({**vars(box.context.settings), "readonly": True})
    assert code() == "read_only"


def test_a_persistent_disk_is_passed_on(tmp_path: Path) -> None:
    box = Box(tmp_path, persistent=True)
    verdict = {"safe": True, "kept": "mount", "obstacles": [{"kind": "training_runs", "name": "one"}]}
    said = tmp_path / "said"
    code = (
        f"import sys; open({str(said)!r}, 'w').write(' '.join(sys.argv[1:])); print({json.dumps(json.dumps(verdict))})"
    )
    box.engine_does("", command=shlex.join([sys.executable, "-c", code]))
    found = box.ask()
    assert (found["safe"], found["kept"], found["count"]) == (True, "mount", 1)
    assert said.read_text() == f"safe-to-terminate --persistent --json --root {box.run.root}"
    backups._checkers.clear()


@pytest.mark.parametrize(
    "changes",
    [{"safe": 1}, {"safe": "yes"}, {"obstacles": "none"}, {"kept": 3}, {"again_s": "soon"}, {"age_s": float("nan")}],
)
def test_the_gate_admits_no_other_types(changes: dict[str, Any]) -> None:
    good = {"safe": True, "kept": "backup", "obstacles": [], "count": 0, "whole": True, "age_s": 1.0, "again_s": 9.0}
    assert admitted("safe_to_terminate", {"ok": True, "result": good}) == good
    with pytest.raises(RemoteError):
        admitted("safe_to_terminate", {"ok": True, "result": {**good, **changes}})
    row = admitted("safe_to_terminate", {"ok": True, "result": {**good, "obstacles": [{"name": 3}]}})["obstacles"]
    assert "unreadable" in row[0]
