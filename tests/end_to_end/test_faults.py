"""What goes wrong on a box, with real supervisors, torchrun workers and signals; and what stays right."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from tests.support.engine import (
    GRPO_TRAIN,
    assert_same_run,
    environment,
    events,
    grpo_train,
    rows,
    run_of,
    running,
    steps_logged,
    train_here,
    wait_for,
    write_config,
)

QUICK: dict[str, Any] = {
    "rollout__buffer_size": 2,
    "rollout__num_generations": 2,
    "rollout__max_completion_length": 24,
    "train__microbatch_size": 1,
}
"""A step takes a tenth of a second."""


@pytest.fixture(scope="module")
def root(make_root: Callable[[], Path]) -> Path:
    return make_root()


def train_command(cfg: Path, name: str, *options: str) -> list[str]:
    return [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", name, *options]


def resume_command(name: str) -> list[str]:
    return [*GRPO_TRAIN, "resume", "--training-run", name]


def state(run: RunDir) -> str:
    return run.observed_state().state


def wait_for_steps(run: RunDir, count: int) -> None:
    """Until so many steps more are saved."""
    have = len(run.checkpoints())
    wait_for(lambda: len(run.checkpoints()) >= have + count, f"{count} more checkpoints of {run.name}")


def error_of(run: RunDir) -> dict[str, Any]:
    return (run.read_status() or {})["error"]


# ----------------------------------------------------------------------------------------------- two processes


KINDS: dict[str, dict[str, Any]] = {
    "full weights": {},
    "LoRA, each buffer twice": {"model__adapter": "lora", "algorithm__num_iterations": 2},
}
"""Step 3 is then the end of a buffer, or the middle of one, which is saved."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def two(make_root: Callable[[], Path], kind: dict[str, Any]) -> RunDir:
    """Six steps of two processes in one go."""
    root = make_root()
    cfg = write_config(root, "two.yaml", **kind)
    done = grpo_train("train", "--cfg", cfg, "--run-name", "two", "--nproc", "2", root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_of(root, "two")


def test_two_processes_three_and_three_are_six_bit_for_bit(two: RunDir, kind: dict[str, Any]) -> None:
    """Also: --additional-steps, and a resume with another number of processes, which says what it is not."""
    cfg = write_config(two.root, "three.yaml", run__total_steps=3, **kind)
    done = grpo_train("train", "--cfg", cfg, "--run-name", "three", "--nproc", "2", root=two.root)
    assert done.returncode == 0, done.stdout
    run = run_of(two.root, "three")
    assert os.readlink(run.training_state / "step_final") == "step_3"
    done = grpo_train("resume", "--training-run", "three", "--additional-steps", "3", root=two.root)
    assert done.returncode == 0, done.stdout
    assert "resumes from step 3, up to step 6" in done.stdout
    assert "not bit-exact" not in done.stdout
    assert_same_run(run, two, 6)
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    assert os.readlink(run.training_state / "step_final") == "step_6"

    done = grpo_train("resume", "--training-run", "three", "--from-step", "5", "--no-torchrun", root=two.root)
    assert done.returncode == 0, done.stdout
    assert "this resume is not bit-exact: processes: saved with 2, resumed with 1" in done.stdout
    resumed, straight = ([row["completion"] for row in rows(each, "rollouts.jsonl")] for each in (run, two))
    assert resumed == straight, "samples depend on the step, not on the process that draws them"
    (difference,) = [row["differences"] for row in rows(run, "events.jsonl") if row["event"] == "training"][-1]
    assert difference == "processes: saved with 2, resumed with 1"
    assert load_config(run.config_file.read_text()).run.nproc == 2, "--no-torchrun holds for one resume"
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]


def test_torchrun_and_plain_python_start_the_same_module(two: RunDir, kind: dict[str, Any]) -> None:
    """From a step of another run, from its model, and with the contract's files."""
    cfg = write_config(two.root, "plain.yaml", run__total_steps=1, **kind)
    step = two.training_state / "step_6"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    for name, launcher, ckpt in (("by_torchrun", torchrun, step), ("by_python", [sys.executable], step / "model")):
        command = [*launcher, "-m", "grpo_train.train", "--cfg", str(cfg), "--ckpt", str(ckpt), "--run-name", name]
        done = subprocess.run(command, env=environment(two.root), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        run = run_of(two.root, name)
        assert state(run) == "finished"
        assert [c.step for c in run.checkpoints()] == [1]
        assert (run.read_status() or {})["nproc"] == (2 if launcher is torchrun else 1)
        assert len(rows(run, "rollouts.jsonl")) == 16
        launch = run.read_launch()
        assert (launch["config_name"], launch["ckpt"]) == (str(cfg), str(ckpt.relative_to(two.root)))  # may be moved


def test_kill_nine_of_a_worker_and_then_of_the_supervisor(root: Path) -> None:
    """The worker's is named; the supervisor's reads 'lost'; nothing is left behind, and the run goes on after both."""
    cfg = write_config(root, "long.yaml", run__total_steps=5000, **QUICK)
    run = run_of(root, "kills")
    with running(train_command(cfg, run.name, "--nproc", "2"), root, run_id_of(run.path)) as supervisor:
        wait_for(lambda: state(run) == "running", "the run to start")
        wait_for_steps(run, 2)
        workers = {rank_of(pid): pid for pid in find_by_run_id(run_id_of(run.path)) if rank_of(pid) is not None}
        assert sorted(workers) == [0, 1]
        os.kill(workers[1], signal.SIGKILL)
        output, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 1
    assert find_by_run_id(run_id_of(run.path)) == []
    assert state(run) == "crashed"
    error = error_of(run)
    assert (error["rank"], error["signal"], error["pid"]) == (1, "SIGKILL", workers[1])
    assert f"rank 1 (pid {workers[1]}) was killed by SIGKILL" in error["summary"]
    assert any(line.startswith("step ") for line in error["console_tail"]), error["console_tail"]
    assert error["summary"] in output
    assert error["summary"] in grpo_train("show", run.name, root=root).stdout
    assert "crashed" in events(run)

    with running(resume_command(run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 2)
        supervisor.kill()
        supervisor.wait()
        assert state(run) == "lost"
        wait_for(lambda: not find_by_run_id(run_id_of(run.path)), "the trainer's end", timeout=45)

    last = run.checkpoint("latest", deep=True).step
    done = grpo_train("resume", "--training-run", run.name, "--additional-steps", "1", root=root)
    assert done.returncode == 0, done.stdout
    assert steps_logged(run) == list(range(1, last + 2))
    assert state(run) == "finished"


def rank_of(pid: int) -> int | None:
    """The rank of a torchrun worker; None for other processes."""
    try:
        variables = dict(v.split("=", 1) for v in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in v)
    except OSError:
        return None
    return int(variables["RANK"]) if "RANK" in variables else None


def test_runs_of_one_name_in_two_roots_leave_each_other_alone(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """A real root and a demo's: one is ended by force, the other trains on; and a link to a root is that root."""
    real, demo = (run_of(make_root(), "same") for _ in range(2))
    link = tmp_path / "localfs"
    link.symlink_to(real.root)
    cfg = write_config(tmp_path, run__total_steps=5000, **QUICK)
    with (
        running(train_command(cfg, "same"), real.root, run_id_of(real.path)) as kept,
        running(train_command(cfg, "same"), demo.root, run_id_of(demo.path)) as ended,
    ):
        wait_for_steps(real, 1)
        wait_for_steps(demo, 1)
        trainer = find_by_run_id(run_id_of(real.path))
        assert "no processes left" in grpo_train("stop", "--training-run", "same", "--now", root=demo.root).stdout
        ended.communicate(timeout=60)
        assert (state(demo), find_by_run_id(run_id_of(demo.path))) == ("killed", [])
        wait_for_steps(real, 2)
        assert find_by_run_id(run_id_of(real.path)) == trainer
        assert (kept.poll(), "crashed" in events(real)) == (None, False)

        assert "no processes left" in grpo_train("stop", "--training-run", "same", "--now", root=link).stdout
        assert find_by_run_id(run_id_of(real.path)) == []
        kept.communicate(timeout=60)
    assert state(real) == "killed"


# ----------------------------------------------------------------------------------------------- the stop ladder


def test_every_way_to_stop_and_the_run_is_still_the_same_run(root: Path) -> None:
    cfg = write_config(root, "stops.yaml", run__total_steps=120, run__save_every=4, **QUICK)
    run = run_of(root, "stops")

    with running(train_command(cfg, run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 1)
        refused = grpo_train("resume", "--training-run", run.name, root=root)
        assert (refused.returncode, "stop it first" in refused.stderr) == (2, True)
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=60)
    assert "stop requested; saving after this step (Ctrl-C again: end now, without saving)" in output
    assert (supervisor.returncode, state(run)) == (0, "stopped")
    assert run.checkpoint("latest").step == steps_logged(run)[-1]

    with running(resume_command(run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 1)  # a closing terminal hangs up, maybe twice
        supervisor.send_signal(signal.SIGHUP)
        supervisor.send_signal(signal.SIGHUP)
        supervisor.communicate(timeout=60)
    assert (supervisor.returncode, state(run)) == (0, "stopped")
    assert run.checkpoint("latest").step == steps_logged(run)[-1]

    with running(resume_command(run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 1)
        (trainer,) = [pid for pid in find_by_run_id(run_id_of(run.path)) if pid != supervisor.pid]
        os.kill(trainer, signal.SIGSTOP)  # a step that hangs
        supervisor.send_signal(signal.SIGINT)
        wait_for(lambda: state(run) == "stopping", "the state to be 'stopping'")
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=60)
    assert "ending now, without saving; the latest checkpoint is intact" in output
    assert (supervisor.returncode, state(run)) == (130, "killed")
    assert find_by_run_id(run_id_of(run.path)) == []

    with running(resume_command(run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 1)
        asked = grpo_train("stop", "--training-run", run.name, root=root)
        assert "stop requested" in asked.stdout
        supervisor.communicate(timeout=60)
    assert (supervisor.returncode, state(run)) == (0, "stopped")

    with running(resume_command(run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 1)
        now = grpo_train("stop", "--training-run", run.name, "--now", root=root)
        assert "no processes left" in now.stdout
        assert find_by_run_id(run_id_of(run.path)) == []
        supervisor.communicate(timeout=60)
    assert (supervisor.returncode, state(run)) == (130, "killed")
    assert not run.stop_requested()

    done = grpo_train("resume", "--training-run", run.name, root=root)
    assert done.returncode == 0, done.stdout
    assert state(run) == "finished"
    assert steps_logged(run) == list(range(1, 121))
    straight = train_here(root, cfg, "never_stopped")
    assert_same_run(run, straight, 120)


# -------------------------------------------------------------------------------------------- errors and restarts

BUG = """
import sys
from pathlib import Path
if any("grpo_train.train" in argument for argument in sys.orig_argv):
    from grpo_train.tasks.addition import AdditionTask
    left, judge = {steps} * 4, AdditionTask.judge
    def broken(*arguments, **keys):
        global left
        left -= 1
        if left < 0 and Path({fuse!r}).exists():
            if {once}:
                Path({fuse!r}).unlink()
            raise ValueError("a bug in the grader")
        return judge(*arguments, **keys)
    AdditionTask.judge = broken
"""


def with_bug(folder: Path, *, steps: int, once: bool) -> dict[str, str]:
    """An environment in which the grader raises after so many steps: always, or the first time only."""
    folder.mkdir()
    fuse = folder / "fuse"
    fuse.touch()
    (folder / "sitecustomize.py").write_text(BUG.format(steps=steps, fuse=str(fuse), once=once))
    return {"PYTHONPATH": str(folder)}


def test_a_crash_is_restarted_from_the_latest_checkpoint(root: Path, tmp_path: Path) -> None:
    cfg = write_config(root, "restart.yaml", run__save_every=2, run__max_restarts=2, **QUICK)
    run = run_of(root, "restarted")
    with running(
        train_command(cfg, run.name), root, run_id_of(run.path), **with_bug(tmp_path / "bug", steps=3, once=True)
    ) as supervisor:
        output, _ = supervisor.communicate(timeout=120)
    assert supervisor.returncode == 0, output
    assert "restart 1 of 2 from the latest checkpoint" in output
    status = run.read_status() or {}
    assert (status["state"], status["restarts"], status["error"]) == ("finished", 1, None)
    assert [e for e in events(run) if e in ("crashed", "restarted", "resumed", "finished")] == [
        "crashed", "restarted", "resumed", "finished",
    ]  # fmt: skip
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    assert len((run.logs / "train_log.jsonl").read_text().splitlines()) == 7  # step 3 twice, once superseded
    assert_same_run(run, train_here(root, cfg, "restarted_never"), 6)


def test_an_exception_shows_its_traceback(root: Path, tmp_path: Path) -> None:
    cfg = write_config(root, "broken.yaml", **QUICK)
    run = run_of(root, "broken")
    bug = with_bug(tmp_path / "bug", steps=1, once=False)
    with running(train_command(cfg, run.name, "--nproc", "2"), root, run_id_of(run.path), **bug) as supervisor:
        supervisor.communicate(timeout=180)
    assert supervisor.returncode == 1
    status = run.read_status() or {}
    assert (status["state"], status["restarts"], status["exit_code"]) == ("crashed", 0, 1)
    error = status["error"]
    assert error["summary"].endswith("ValueError: a bug in the grader")
    assert error["summary"].startswith(f"rank {error['rank']}: ")
    assert "Traceback (most recent call last)" in error["traceback"]
    assert "in broken" in error["traceback"]
    assert error["console_tail"]
    shown = grpo_train("show", run.name, root=root).stdout
    assert "a bug in the grader" in shown
    assert "Traceback (most recent call last)" in shown
    assert "Traceback" in (run.logs / "console.log").read_text()
    assert find_by_run_id(run_id_of(run.path)) == []


# ----------------------------------------------------------------------------------------- scheduled evaluation


def test_evaluation_between_stages_leaves_the_run_the_same(root: Path) -> None:
    straight = train_here(root, write_config(root, "plain4.yaml", run__total_steps=4), "no_evaluation")
    cfg = write_config(root, "scheduled.yaml", run__total_steps=4, run__eval_every=2, run__save_every=4)
    done = grpo_train("train", "--cfg", cfg, "--run-name", "scheduled", root=root)
    assert done.returncode == 0, done.stdout
    run = run_of(root, "scheduled")
    assert [c.step for c in run.checkpoints()] == [2, 4]
    (evaluation,) = list_evaluations(root, "scheduled")
    assert [(row["name"], row["status"]) for row in evaluation["metrics"]] == [("step_2", "ok"), ("step_4", "ok")]
    assert [e for e in events(run) if e in ("training", "finished")] == ["training", "training", "finished"]
    assert_same_run(run, straight, 4)
    assert_same_run(run, straight, 2)


def test_a_checkpoint_that_cannot_be_evaluated_does_not_stop_training(root: Path) -> None:
    """The task's test split goes while the run trains: training ends well, and the console says what failed."""
    data = root / "sums"
    data.mkdir()
    lines = "".join(json.dumps({"question": f"{n} + 1", "answer": f"#### {n + 1}"}) + "\n" for n in range(8))
    (data / "train.jsonl").write_text(lines)
    cfg = write_config(
        root, "no_test.yaml", run__total_steps=2, run__eval_every=1, task__name="gsm8k", task__path=str(data),
        rollout__max_prompt_length=512, rollout__max_completion_length=8,
    )  # fmt: skip
    done = grpo_train("train", "--cfg", cfg, "--run-name", "no_test", root=root)
    assert done.returncode == 0, done.stdout
    assert "evaluation of step 1 failed; training continues" in done.stdout
    assert "has no test split" in done.stdout
    assert state(run_of(root, "no_test")) == "finished"
    shutil.rmtree(data)
