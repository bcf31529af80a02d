"""Contract 1: runs come into being once, are read rightly whoever wrote them, and are never believed too much."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.run_dir import (
    LIVE_STATES,
    RunDir,
    RunDirError,
    StatusWriter,
    create_run,
    list_evaluations,
    list_older_runs,
    list_runs,
    observe,
    open_run,
    prepare_root,
    problem_of,
    resolve_root,
    write_manifest,
)
from grpo_train.run_dir.files import atomic_symlink, read_jsonl, to_json, utc_now
from grpo_train.run_dir.processes import boot_id, identity, start_ticks

LONG_AGO = "2020-01-01T00:00:00.000Z"


def make_checkpoint(run: RunDir, step: int, *, latest: bool = True) -> Path:
    """A complete checkpoint with two small files."""
    folder = run.training_state / f"step_{step}"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_bytes(bytes([step]) * 100)
    (folder / "optimizer.pt").write_bytes(b"o" * 50)
    write_manifest(folder, format=1, step=step)
    if latest:
        atomic_symlink(run.training_state / "step_latest", folder.name)
    return folder


def log(run: RunDir, *steps: int) -> None:
    for file in ("train_log.jsonl", "rollouts.jsonl", "ratios.jsonl"):
        with (run.logs / file).open("a") as stream:
            stream.writelines(to_json({"step": step, "time": utc_now(), "life": file}) + "\n" for step in steps)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, {"by": "test"}, "one")


# --------------------------------------------------------------------------------------------------- roots and names


def test_the_root_is_the_option_then_the_variable_then_the_default(tmp_path: Path) -> None:
    assert resolve_root(tmp_path, {"LOCALFS_ROOT": "/other"}) == tmp_path
    assert resolve_root(None, {"LOCALFS_ROOT": str(tmp_path)}) == tmp_path
    assert resolve_root(None, {"LOCALFS_ROOT": ""}) == Path("/lambda/nfs/localfs")
    assert resolve_root("~/x", {}) == Path.home() / "x"


def test_a_root_below_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match=r"cannot write to the root .*LOCALFS_ROOT"):
        prepare_root(tmp_path / "file" / "root")


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "-x", "a b", "x" * 129, "a\n", "ä"])
def test_malformed_names_make_nothing(tmp_path: Path, name: str) -> None:
    if name:
        with pytest.raises(RunDirError, match="cannot name a run"):
            create_run(tmp_path, {}, name)
        assert os.listdir(tmp_path) == []


def test_a_taken_name_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    create_run(tmp_path, {}, "one")
    with pytest.raises(RunDirError, match="already exists"):
        create_run(tmp_path, {}, "one")
    (tmp_path / "training_runs" / "two").mkdir()  # empty: a rename would go through
    with pytest.raises(RunDirError, match="already exists"):
        create_run(tmp_path, {}, "two")
    assert sorted(os.listdir(tmp_path / "training_runs")) == [".lock", "one", "two"]


def test_runs_without_a_name_in_one_second_get_names_of_their_own(tmp_path: Path) -> None:
    names = [create_run(tmp_path, {}).name for _ in range(4)]
    assert len(set(names)) == 4
    assert [run.name for run in list_runs(tmp_path)][-1] == names[0]


def test_a_key_makes_one_run_however_many_ask_at_once(tmp_path: Path) -> None:
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


def test_one_name_is_given_once_in_a_race(tmp_path: Path) -> None:
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


def test_half_made_runs_are_not_listed(tmp_path: Path) -> None:
    run = create_run(tmp_path, {}, "one")
    shutil.copytree(run.path, run.path.with_name(".new-two-1234"))
    assert [run.name for run in list_runs(tmp_path)] == ["one"]


def test_open_run_takes_names_and_paths_and_suggests(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_run(run.root, "one") == open_run(Path("/nowhere"), str(run.path)) == run
    monkeypatch.chdir(run.logs)
    assert open_run(Path("/nowhere"), "..").path == run.path
    with pytest.raises(RunDirError, match=r"no run named 'onne' under .*did you mean one"):
        open_run(run.root, "onne")
    with pytest.raises(RunDirError, match="no runs yet"):
        open_run(Path("/nowhere"), "one")


# ---------------------------------------------------------------------------------------------------------- states


def status(**changes: object) -> dict[str, object]:
    me = identity()
    return {
        "state": "running",
        "pid": me.pid,
        "pid_start": me.start,
        "host": me.host,
        "boot_id": me.boot_id,
        "updated_at": utc_now(),
        **changes,
    }


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_a_live_state_is_believed_while_its_process_lives(state: str) -> None:
    assert observe(status(state=state)).state == state
    assert observe(status(state=state, pid_start=1)).state == "lost"
    assert observe(status(state=state, pid=2**22 + 1)).state == "lost"


def test_a_reboot_loses_every_process_whatever_its_pid() -> None:
    assert observe(status(boot_id="of another boot")).state == "lost"


def test_another_host_is_believed_while_it_is_fresh() -> None:
    fresh = observe(status(host="far", boot_id="x", pid=1, pid_start=1))
    assert (fresh.state, fresh.host, fresh.is_live) == ("running", "far", True)
    assert observe(status(host="far", boot_id="x", updated_at=LONG_AGO)).state == "lost"


def test_an_end_state_needs_no_process() -> None:
    assert observe(status(state="finished", pid=1, pid_start=1, boot_id="", host="far")).state == "finished"


def test_a_zombie_is_no_live_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(child.pid) is None
    child.wait()


def test_a_run_without_status_is_starting_and_then_lost(run: RunDir) -> None:
    assert run.observed_state().state == "starting"
    run.launch_file.write_text(json.dumps({"time": LONG_AGO}))
    assert run.observed_state().state == "lost"


def test_a_damaged_launch_or_status_costs_nobody_the_list(run: RunDir) -> None:
    run.launch_file.write_text("{")
    run.status_file.write_text("\x00")
    (row,) = (listed.summary() for listed in list_runs(run.root))
    assert (row["run"], row["state"]) == ("one", "lost")


def test_the_status_has_one_writer(run: RunDir) -> None:
    writer = StatusWriter(run.path, nproc=2)
    writer.update(state="running")
    with pytest.raises(RunDirError, match="another process is writing"):
        StatusWriter(run.path)
    writer.close()
    second = StatusWriter(run.path)
    assert second.fields["nproc"] == 2
    assert second.fields["host"] == socket.gethostname()
    assert second.fields["boot_id"] == boot_id()
    second.close()


def test_stop_is_asked_once_and_cleared(run: RunDir) -> None:
    run.request_stop(by="a")
    run.request_stop(by="b")
    assert run.stop_requested()
    assert [row["by"] for row in run.read_log("events.jsonl") if row["event"] == "stop_asked"] == ["a"]
    run.clear_stop()
    run.clear_stop()
    assert not run.stop_requested()


# ------------------------------------------------------------------------------------------------------ checkpoints


def test_aliases_and_numbers_name_checkpoints(run: RunDir) -> None:
    for step in (10, 9):
        make_checkpoint(run, step, latest=step == 10)
    assert [c.step for c in run.checkpoints()] == [9, 10]
    assert run.checkpoint("latest").step == run.checkpoint(10).step == 10
    with pytest.raises(RunDirError, match=r"no checkpoint step_final \(complete steps: 9, 10\)"):
        run.checkpoint("final")
    with pytest.raises(RunDirError, match=r"no checkpoint step_11 \(complete steps: 9, 10\)"):
        run.checkpoint(11)
    with pytest.raises(RunDirError, match="use latest, final or a step number"):
        run.checkpoint("lastest")
    atomic_symlink(run.training_state / "step_final", "step_10")
    assert run.checkpoint("final").step == 10


def test_a_run_without_checkpoints_says_so(run: RunDir) -> None:
    with pytest.raises(RunDirError, match=r"has no checkpoint step_latest .no complete steps"):
        run.checkpoint("latest")


def test_a_link_that_lags_behind_is_seen_through(run: RunDir) -> None:
    make_checkpoint(run, 1)
    make_checkpoint(run, 2, latest=False)  # killed between the rename and the link
    assert run.checkpoint("latest").step == 2
    (run.training_state / "step_2" / "optimizer.pt").unlink()
    assert run.checkpoint("latest").step == 1


def test_real_directories_stand_in_for_links(run: RunDir) -> None:
    folder = make_checkpoint(run, 4, latest=False)
    (folder / "training_info.json").write_text('{"step": 4}')
    write_manifest(folder)
    for alias in ("step_latest", "step_final"):
        shutil.copytree(folder, run.training_state / alias)
        assert (run.checkpoint(alias[5:]).step, run.checkpoint(alias[5:]).path.name) == (4, alias)
    assert [c.step for c in run.checkpoints()] == [4]


def test_a_real_directory_becomes_its_step_or_is_set_aside(run: RunDir) -> None:
    folder = make_checkpoint(run, 4, latest=False)
    for alias in ("step_latest", "step_final"):
        shutil.copytree(folder, run.training_state / alias)
    shutil.rmtree(folder)
    run.point("step_latest", 4)
    assert (run.checkpoint("latest").step, run.checkpoint("latest").path.name) == (4, "step_4")
    run.rewind(4)
    assert os.listdir(run.training_state / "superseded" / os.listdir(run.training_state / "superseded")[0]) == [
        "step_final"
    ]
    assert sorted(os.listdir(run.training_state)) == ["step_4", "step_latest", "superseded"]


DAMAGES = {
    "missing": (lambda f: f.unlink(), "model/weights is missing", False),
    "truncated": (
        lambda f: f.write_bytes(f.read_bytes()[:-1]),
        "model/weights has 99 bytes, the manifest says 100",
        False,
    ),
    "bit flip": (
        lambda f: f.write_bytes(b"\x01" + f.read_bytes()[1:]),
        "model/weights does not have the checksum",
        True,
    ),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_named_with_the_steps_that_are_whole(run: RunDir, how: str) -> None:
    damage, message, only_deep = DAMAGES[how]
    make_checkpoint(run, 2)
    damage(make_checkpoint(run, 4) / "model" / "weights")
    for which in ("latest", 4):
        with pytest.raises(RunDirError, match=f"step_4 cannot be used: {message}.*other complete steps: 2"):
            run.checkpoint(which, deep=True)
    assert bool(run.checkpoints()[1].problem) != only_deep


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"files": {"optimizer.pt": {"size": 50}}}'])
def test_a_manifest_that_is_gone_or_damaged_is_a_problem(run: RunDir, content: bytes | None) -> None:
    manifest = make_checkpoint(run, 1) / "MANIFEST.json"
    manifest.unlink() if content is None else manifest.write_bytes(content)
    assert "MANIFEST.json" in problem_of(manifest.parent)
    with pytest.raises(RunDirError, match=r"MANIFEST.json is .* \(no other complete steps\)"):
        run.checkpoint("latest")


# ------------------------------------------------------------------------------------------- resuming from earlier


def resume(run: RunDir, step: int) -> None:
    moved = run.rewind(step)
    run.log_event("resumed", step=step, from_step=step, superseded=run.supersede_after(step), moved=moved)


def test_rewind_keeps_later_checkpoints_aside(run: RunDir) -> None:
    for step in (1, 2, 3):
        make_checkpoint(run, step)
    atomic_symlink(run.training_state / "step_final", "step_3")
    assert run.rewind(1) == ["step_2", "step_3"]
    assert run.checkpoint("latest").step == 1
    assert [c.step for c in run.checkpoints()] == [1]
    assert not (run.training_state / "step_final").is_symlink()
    (attic,) = (run.training_state / "superseded").iterdir()
    assert sorted(os.listdir(attic)) == ["step_2", "step_3"]
    assert run.rewind(1) == []


def test_resumes_from_earlier_steps_leave_each_step_once(run: RunDir) -> None:
    make_checkpoint(run, 3)
    log(run, 1, 2, 3, 4, 5)
    resume(run, 3)
    log(run, 4, 5, 6)
    resume(run, 3)
    assert run.summary()["step"] == 3
    log(run, 4)
    assert [row["step"] for row in run.read_log("train_log.jsonl")] == [1, 2, 3, 4]
    assert [row["step"] for row in run.read_log("rollouts.jsonl")] == [1, 2, 3, 4]
    assert run.summary()["step"] == 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.booleans()), min_size=1, max_size=5))
def test_any_chain_of_resumes_reads_as_one_run(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int, bool]]
) -> None:
    run = create_run(tmp_path_factory.mktemp("chain"), {}, "one")
    at, written = 0, {0: -1}
    for life, (back_to, count, torn) in enumerate(lives):
        start = min(back_to, at)
        make_checkpoint(run, start) if not (run.training_state / f"step_{start}").exists() else None
        resume(run, start)
        written = {step: by for step, by in written.items() if step <= start}
        with (run.logs / "train_log.jsonl").open("a") as stream:
            for step in range(start + 1, start + count + 1):
                stream.write(to_json({"step": step, "life": life}) + "\n")
                written[step] = life
            if torn:
                stream.write('{"step": 99, "li')
        at = start + count
    read = {row["step"]: row["life"] for row in run.read_log("train_log.jsonl")}
    assert read == {step: by for step, by in written.items() if step}
    assert len(list(run.read_log("train_log.jsonl"))) == len(read)
    assert run.last_step_row()["step"] == at


def test_a_torn_last_line_is_closed_before_ranges_are_taken(run: RunDir) -> None:
    make_checkpoint(run, 1)
    log(run, 1, 2)
    path = run.logs / "train_log.jsonl"
    with path.open("a") as stream:
        stream.write('{"step": 3, "ti')
    resume(run, 1)
    log(run, 2)
    assert [row["step"] for row in run.read_log("train_log.jsonl")] == [1, 2]
    assert len(list(read_jsonl(path))) == 3


# ------------------------------------------------------------------------------------------- other layouts, moving


def test_runs_of_the_older_layout_are_listed(tmp_path: Path) -> None:
    (tmp_path / "rl_runs" / "old" / "step_3").mkdir(parents=True)
    (row,) = list_older_runs(tmp_path)
    assert (row["run"], row["layout"], row["step"]) == ("old", "rl_runs", 3)
    assert list_older_runs(tmp_path / "none") == []


def test_a_moved_root_still_works(run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> None:
    make_checkpoint(run, 2)
    new = tmp_path_factory.mktemp("moved") / "root"
    shutil.move(run.root, new)
    moved = open_run(new, "one")
    assert moved.checkpoint("latest", deep=True).path == new / "training_runs" / "one" / "training_state" / "step_2"


def test_evaluations_belong_to_their_run_only(run: RunDir) -> None:
    for owner in ("one", "one_more"):
        folder = run.root / "eval_runs" / f"{owner}_addition"
        folder.mkdir()
        StatusWriter(folder, training_run=owner, state="finished").update()
    assert [e["name"] for e in list_evaluations(run.root, "one")] == ["one_addition"]
