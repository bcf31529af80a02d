"""The root: finding it; creating, listing and opening runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grpo_train.run_dir import (
    RunDir,
    RunDirError,
    StatusWriter,
    create_run,
    list_evaluations,
    list_older_runs,
    list_runs,
    open_run,
    prepare_root,
    resolve_root,
)
from grpo_train.run_dir.evaluations import read_evaluation
from tests.run_dir.helpers import make_checkpoint


def test_root_from_option_variable_or_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFS_ROOT", "/other")
    assert resolve_root(tmp_path) == tmp_path
    assert resolve_root("~/x") == Path.home() / "x"
    assert resolve_root() == Path("/other")
    monkeypatch.setenv("LOCALFS_ROOT", "")
    assert resolve_root() == Path("/lambda/nfs/localfs")


def test_unwritable_root_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match=r"cannot write to the root .*LOCALFS_ROOT"):
        prepare_root(tmp_path / "file" / "root")


def test_a_lock_that_is_not_a_file_is_named(tmp_path: Path) -> None:
    prepare_root(tmp_path)
    lock = tmp_path / "training_runs" / ".lock"
    lock.mkdir()
    with pytest.raises(RunDirError, match=f"cannot write {lock}: Is a directory") as caught:
        create_run(tmp_path, {})
    assert caught.value.code == "bad_root"


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "-x", "a b", "x" * 129, "a\n", "ä"])
def test_malformed_names_create_nothing(tmp_path: Path, name: str) -> None:
    if name:
        with pytest.raises(RunDirError, match="invalid run name"):
            create_run(tmp_path, {}, name)
        assert os.listdir(tmp_path) == []


def test_taken_name_creates_nothing(tmp_path: Path) -> None:
    create_run(tmp_path, {}, "one")
    with pytest.raises(RunDirError, match="already exists"):
        create_run(tmp_path, {}, "one")
    (tmp_path / "training_runs" / "two").mkdir()  # empty: a rename would succeed
    with pytest.raises(RunDirError, match="already exists"):
        create_run(tmp_path, {}, "two")
    assert sorted(os.listdir(tmp_path / "training_runs")) == [".lock", "one", "two"]


def test_default_names_are_unique_within_a_second(tmp_path: Path) -> None:
    names = [create_run(tmp_path, {}).name for _ in range(4)]
    assert len(set(names)) == 4
    assert [run.name for run in list_runs(tmp_path)][-1] == names[0]


def test_idempotency_key_makes_one_run_in_a_race(tmp_path: Path) -> None:
    made: list[str] = []
    ask = lambda: made.append(create_run(tmp_path, {"idempotency_key": "k"}).name)  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    program = (
        "import sys; from pathlib import Path; from grpo_train.run_dir import *; "
        "print(create_run(Path(sys.argv[1]), {'idempotency_key': 'k'}).name)"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.join()
    made += [other.communicate(timeout=30)[0].strip() for other in others]
    assert len(made) == 11
    assert len(set(made)) == 1
    assert len(list_runs(tmp_path)) == 1


def test_name_is_used_once_in_a_race(tmp_path: Path) -> None:
    outcomes: list[str] = []

    def ask() -> None:
        try:
            outcomes.append(create_run(tmp_path, {}, "same").name)
        except RunDirError:
            outcomes.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["same"]


def test_incomplete_runs_are_not_listed(tmp_path: Path) -> None:
    run = create_run(tmp_path, {}, "one")
    shutil.copytree(run.path, run.path.with_name(".new-two-1234"))
    assert [run.name for run in list_runs(tmp_path)] == ["one"]


def test_open_run_by_name_or_path(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_run(run.root, "one") == open_run(Path("/nowhere"), str(run.path)) == run
    monkeypatch.chdir(run.logs)
    assert open_run(Path("/nowhere"), "..").path == run.path
    with pytest.raises(RunDirError, match=r"no run named 'onne' under .*did you mean one"):
        open_run(run.root, "onne")
    with pytest.raises(RunDirError, match="no runs yet"):
        open_run(Path("/nowhere"), "one")


def test_older_runs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "rl_runs" / "old" / "step_3").mkdir(parents=True)
    (row,) = list_older_runs(tmp_path)
    assert (row["run"], row["layout"], row["step"]) == ("old", "rl_runs", 3)
    assert list_older_runs(tmp_path / "none") == []


def test_moved_root_works(run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> None:
    make_checkpoint(run, 2)
    new = tmp_path_factory.mktemp("moved") / "root"
    shutil.move(run.root, new)
    moved = open_run(new, "one")
    assert moved.checkpoint("latest", deep=True).path == new / "training_runs" / "one" / "training_state" / "step_2"


def test_evaluations_belong_to_one_run(run: RunDir) -> None:
    for owner in ("one", "one_more"):
        folder = run.root / "eval_runs" / f"{owner}_addition"
        folder.mkdir()
        writer = StatusWriter(folder, training_run=owner, state="finished")
        writer.update()
        writer.close()
    assert [e["name"] for e in list_evaluations(run.root, "one")] == ["one_addition"]


@pytest.mark.parametrize("config", [b"\xff", None], ids=["not UTF-8", "a directory"])
def test_an_evaluation_without_a_status_has_no_names(run: RunDir, config: bytes | None) -> None:
    folder = run.root / "eval_runs" / "one_addition"
    folder.mkdir()
    if config is None:
        (folder / "eval_config.yaml").mkdir()
    else:
        (folder / "eval_config.yaml").write_bytes(config)
    status, observed, problem = read_evaluation(folder)
    assert (status, observed.state, problem) == ({}, "unreadable", "status.json is missing")
    assert list_evaluations(run.root, "one") == []
