"""Checkpoints of a run, and resuming from an earlier one."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.run_dir import (
    RunDir,
    RunDirError,
    create_run,
    problem_of,
    write_manifest,
)
from grpo_train.run_dir.files import atomic_symlink, read_jsonl, to_json
from tests.run_dir.helpers import log, make_checkpoint


def test_checkpoints_by_alias_and_number(run: RunDir) -> None:
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


def test_run_without_checkpoints(run: RunDir) -> None:
    with pytest.raises(RunDirError, match=r"has no checkpoint step_latest .no complete steps"):
        run.checkpoint("latest")


def test_step_latest_that_lags_behind(run: RunDir) -> None:
    make_checkpoint(run, 1)
    make_checkpoint(run, 2, latest=False)  # killed between the rename and the link
    assert run.checkpoint("latest").step == 2
    (run.training_state / "step_2" / "optimizer.pt").unlink()
    assert run.checkpoint("latest").step == 1


def test_alias_that_is_a_real_directory(run: RunDir) -> None:
    folder = make_checkpoint(run, 4, latest=False)
    (folder / "training_info.json").write_text('{"step": 4}')
    write_manifest(folder)
    for alias in ("step_latest", "step_final"):
        shutil.copytree(folder, run.training_state / alias)
        assert (run.checkpoint(alias[5:]).step, run.checkpoint(alias[5:]).path.name) == (4, alias)
    assert [c.step for c in run.checkpoints()] == [4]


def test_real_directory_becomes_its_step(run: RunDir) -> None:
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
        "model/weights has 99 bytes instead of 100",
        False,
    ),
    "bit flip": (
        lambda f: f.write_bytes(b"\x01" + f.read_bytes()[1:]),
        "model/weights has the wrong checksum",
        True,
    ),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_named_with_complete_steps(run: RunDir, how: str) -> None:
    damage, message, only_deep = DAMAGES[how]
    make_checkpoint(run, 2)
    damage(make_checkpoint(run, 4) / "model" / "weights")
    for which in ("latest", 4):
        with pytest.raises(RunDirError, match=f"step_4 cannot be used: {message}.*other complete steps: 2"):
            run.checkpoint(which, deep=True)
    assert bool(run.checkpoints()[1].problem) != only_deep


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"files": {"optimizer.pt": {"size": 50}}}'])
def test_missing_or_damaged_manifest(run: RunDir, content: bytes | None) -> None:
    manifest = make_checkpoint(run, 1) / "MANIFEST.json"
    manifest.unlink() if content is None else manifest.write_bytes(content)
    assert "MANIFEST.json" in problem_of(manifest.parent)
    with pytest.raises(RunDirError, match=r"MANIFEST.json is .* \(no other complete steps\)"):
        run.checkpoint("latest")


def resume(run: RunDir, step: int) -> None:
    moved = run.rewind(step)
    run.log_event("resumed", step=step, from_step=step, superseded=run.supersede_after(step), moved=moved)


def test_rewind_sets_later_checkpoints_aside(run: RunDir) -> None:
    for step in (1, 2, 3):
        make_checkpoint(run, step)
    atomic_symlink(run.training_state / "step_final", "step_3")
    assert run.rewind(1) == ["step_2", "step_3"]
    assert run.checkpoint("latest").step == 1
    assert [c.step for c in run.checkpoints()] == [1]
    assert not (run.training_state / "step_final").is_symlink()
    (folder,) = (run.training_state / "superseded").iterdir()
    assert sorted(os.listdir(folder)) == ["step_2", "step_3"]
    assert run.rewind(1) == []


def test_each_step_is_read_once_after_resumes(run: RunDir) -> None:
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


def test_torn_line_before_a_resume(run: RunDir) -> None:
    make_checkpoint(run, 1)
    log(run, 1, 2)
    path = run.logs / "train_log.jsonl"
    with path.open("a") as stream:
        stream.write('{"step": 3, "ti')
    resume(run, 1)
    log(run, 2)
    assert [row["step"] for row in run.read_log("train_log.jsonl")] == [1, 2]
    assert len(list(read_jsonl(path))) == 3
