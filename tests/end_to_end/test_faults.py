"""Failures on a box: real supervisors, torchrun workers and signals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from tests.support import micro
from tests.support.engine import (
    GRPO_TRAIN,
    assert_same_run,
    at_start,
    command_here,
    events,
    grpo_train,
    rows,
    run_module,
    run_of,
    running,
    steps_logged,
    train_here,
    wait_for,
    write_config,
)
from tests.support.modes import modes_below
from tests.support.patience import PATIENCE

make_root, tiny_model = micro.make_root, micro.tiny_model
SHORT: dict[str, Any] = {"rollout__buffer_size": 2, "rollout__num_generations": 2, "train__microbatch_size": 1}


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
    """Wait until ``count`` more steps are saved."""
    before = len(run.checkpoints())
    wait_for(lambda: len(run.checkpoints()) >= before + count, f"{count} more checkpoints of {run.name}")


def error_of(run: RunDir) -> dict[str, Any]:
    return (run.read_status() or {})["error"]


# ----------------------------------------------------------------------------------------------- two processes


KINDS: dict[str, dict[str, Any]] = {
    "full weights": {},
    "LoRA, each buffer twice": {"model__adapter": "lora", "algorithm__num_iterations": 2},
}
"""Step 3 ends a buffer, or is in the middle of one, which is saved."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def two(make_root: Callable[[], Path], kind: dict[str, Any]) -> RunDir:
    """Six uninterrupted steps of two processes."""
    root = make_root()
    cfg = write_config(root, "two.yaml", **kind)
    done = grpo_train("train", "--cfg", cfg, "--run-name", "two", "--nproc", "2", root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_of(root, "two")


def test_resume_of_two_processes_is_bit_exact(two: RunDir, kind: dict[str, Any]) -> None:
    """Also: --additional-steps, and a resume with another number of processes, which reports the difference."""
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


def test_training_without_a_supervisor(two: RunDir, kind: dict[str, Any]) -> None:
    """Full weights by torchrun, from a step of another run; an adapter by plain Python from a model."""
    cfg = write_config(two.root, "plain.yaml", run__total_steps=1, **kind)
    step = two.training_state / "step_6"
    launcher = [] if kind else ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    ckpt = step if launcher else step / "model"
    command = [*launcher, "grpo_train.train", "--cfg", cfg, "--ckpt", ckpt, "--run-name", "alone"]
    done = run_module(*command, root=two.root)
    assert done.returncode == 0, done.stdout + done.stderr
    run = run_of(two.root, "alone")
    assert state(run) == "finished"
    assert [c.step for c in run.checkpoints()] == [1]
    assert (run.read_status() or {})["nproc"] == (2 if launcher else 1)
    assert len(rows(run, "rollouts.jsonl")) == 16
    launch = run.read_launch()
    assert (launch["config_name"], launch["ckpt"]) == (str(cfg), str(ckpt.relative_to(two.root)))


def test_sigkill_of_a_worker_and_a_supervisor(root: Path) -> None:
    """The killed worker is named; without its supervisor the run is lost; no process is left, and the run resumes."""
    cfg = write_config(root, "long.yaml", run__total_steps=5000, **SHORT)
    run = run_of(root, "kills")
    with running(train_command(cfg, run.name, "--nproc", "2"), root, run_id_of(run.path), real=True) as supervisor:
        wait_for(lambda: state(run) == "running", "the run to start")
        wait_for_steps(run, 2)
        workers = {rank_of(pid): pid for pid in find_by_run_id(run_id_of(run.path)) if rank_of(pid) is not None}
        assert sorted(workers) == [0, 1]
        os.kill(workers[1], signal.SIGKILL)
        output, _ = supervisor.communicate(timeout=60 * PATIENCE)
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
        wait_for(lambda: not find_by_run_id(run_id_of(run.path)), "the trainer to end", timeout=45)

    last = run.checkpoint("latest", deep=True).step
    done = grpo_train("resume", "--training-run", run.name, "--additional-steps", "1", root=root)
    assert done.returncode == 0, done.stdout
    assert steps_logged(run) == list(range(1, last + 2))
    assert state(run) == "finished"


def rank_of(pid: int) -> int | None:
    """Rank of a torchrun worker; None for other processes."""
    try:
        variables = dict(v.split("=", 1) for v in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in v)
    except OSError:
        return None
    return int(variables["RANK"]) if "RANK" in variables else None


def test_the_run_is_the_same_after_every_stop(root: Path) -> None:
    cfg = write_config(root, "stops.yaml", run__total_steps=100_000, run__save_every=4, **SHORT)
    run = run_of(root, "stops")

    with running(train_command(cfg, run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 1)
        refused = command_here("resume", "--training-run", run.name, root=root)
        assert (refused.returncode, "stop it first" in refused.stderr) == (2, True)
        assert "stop requested" in command_here("stop", "--training-run", run.name, root=root).stdout
        supervisor.communicate(timeout=60 * PATIENCE)
    assert (supervisor.returncode, state(run)) == (0, "stopped")
    assert run.checkpoint("latest").step == steps_logged(run)[-1]

    for number in (signal.SIGINT, signal.SIGHUP):  # a closing terminal
        with running(resume_command(run.name), root, run_id_of(run.path)) as supervisor:
            wait_for_steps(run, 1)
            supervisor.send_signal(number)
            output, _ = supervisor.communicate(timeout=60 * PATIENCE)
        assert "stop requested; saving after this step (Ctrl-C again: end now, without saving)" in output
        assert (supervisor.returncode, state(run)) == (0, "stopped")
        assert run.checkpoint("latest").step == steps_logged(run)[-1]

    with running(resume_command(run.name), root, run_id_of(run.path)) as supervisor:
        wait_for_steps(run, 1)
        now = command_here("stop", "--training-run", run.name, "--now", root=root)
        assert "no processes left" in now.stdout
        assert find_by_run_id(run_id_of(run.path)) == []
        output, _ = supervisor.communicate(timeout=60 * PATIENCE)
    assert "ending now, without saving; the latest checkpoint is intact" in output
    assert (supervisor.returncode, state(run)) == (130, "killed")
    assert not run.stop_requested()

    total = run.checkpoint("latest").step + 6
    done = grpo_train("resume", "--training-run", run.name, "--additional-steps", 6, root=root)
    assert done.returncode == 0, done.stdout
    assert state(run) == "finished"
    assert steps_logged(run) == list(range(1, total + 1))
    cfg = write_config(root, "never.yaml", run__total_steps=total, run__save_every=4, **SHORT)
    assert_same_run(run, train_here(root, cfg, "never_stopped"), total)


# -------------------------------------------------------------------------------------------- errors and restarts

BUG = """
import sys
from pathlib import Path
if any("grpo_train.train" in argument for argument in sys.orig_argv):
    from grpo_train.tasks.addition import AdditionTask
    left, judge = {steps} * 4, AdditionTask.judge
    def broken(*arguments, **options):
        global left
        left -= 1
        if left < 0 and Path({fuse!r}).exists():
            if {once}:
                Path({fuse!r}).unlink()
            raise ValueError("a bug in the grader")
        return judge(*arguments, **options)
    AdditionTask.judge = broken
"""


def with_bug(folder: Path, *, steps: int, once: bool) -> dict[str, str]:
    """Environment in which the grader raises after ``steps`` steps, always or only once."""
    fuse = folder / "fuse"
    variables = at_start(folder, BUG.format(steps=steps, fuse=str(fuse), once=once))
    fuse.touch()
    return variables


def test_a_crash_restarts_from_the_latest_step(root: Path, tmp_path: Path) -> None:
    cfg = write_config(root, "restart.yaml", run__save_every=2, run__max_restarts=2, run__restart_wait=[0], **SHORT)
    run = run_of(root, "restarted")
    with running(
        train_command(cfg, run.name), root, run_id_of(run.path), **with_bug(tmp_path / "bug", steps=3, once=True)
    ) as supervisor:
        output, _ = supervisor.communicate(timeout=120 * PATIENCE)
    assert supervisor.returncode == 0, output
    assert "restart 1 of 2 from the latest checkpoint\n" in output
    status = run.read_status() or {}
    assert (status["state"], status["restarts"], status["error"]) == ("finished", 1, None)
    assert [e for e in events(run) if e in ("crashed", "restarted", "resumed", "finished")] == [
        "crashed", "restarted", "resumed", "finished",
    ]  # fmt: skip
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    assert len((run.logs / "train_log.jsonl").read_text().splitlines()) == 7  # step 3 twice, the first one superseded
    assert_same_run(run, train_here(root, cfg, "restarted_never"), 6)


def test_an_exception_reports_its_traceback(root: Path, tmp_path: Path) -> None:
    cfg = write_config(root, "broken.yaml", **SHORT)
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


def test_scheduled_evaluation_keeps_the_run_exact(root: Path) -> None:
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
    (results,) = (root / "eval_runs").glob("scheduled_*")
    assert set(modes_below(run.path).values()) == set(modes_below(results).values()) == {"drwx------", "-rw-------"}


def test_a_failed_evaluation_is_named(root: Path) -> None:
    """The task has no test split: training finishes."""
    data = root / "sums"
    data.mkdir()
    lines = "".join(json.dumps({"question": f"{n} + 1", "answer": f"#### {n + 1}"}) + "\n" for n in range(8))
    (data / "train.jsonl").write_text(lines)
    cfg = write_config(
        root, "no_test.yaml", run__total_steps=1, run__eval_every=1, task__name="gsm8k", task__path=str(data),
        rollout__max_prompt_length=512, rollout__max_completion_length=8,
    )  # fmt: skip
    done = grpo_train("train", "--cfg", cfg, "--run-name", "no_test", root=root)
    assert done.returncode == 3, done.stdout
    assert "evaluation of step 1 failed: " in done.stdout
    assert "has no test split" in done.stdout
    assert state(run_of(root, "no_test")) == "finished"
