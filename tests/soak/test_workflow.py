"""A workflow under kills of everything that runs it, and reboots, ends like an undisturbed run. Part of ``make soak``.

The seed is printed; CHAOS_SEED repeats it and CHAOS_KILLS sets the number of kills.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_train.config import load_config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import (
    PARENT_VARIABLE,
    find_by_run_id,
    is_alive,
    kill_all,
    run_id_of,
    variable_in,
)
from grpo_train.run_dir.status import writer_of
from grpo_train.supervisor.stages import all_stages
from grpo_train.supervisor.watchdog import signs_file
from grpo_train.supervisor.workflow import read_workflow
from tests.support.engine import (
    GRPO_TRAIN,
    assert_same_run,
    environment,
    rows,
    run_of,
    steps_logged,
    train_here,
    wait_for,
    write_config,
)
from tests.support.stores import other_disk

STEPS = 60
KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
STAGES: list[Any] = [
    {"repeat": {"every": 20, "stages": ["train", "eval", "backup"]}},
    {"eval": {"steps": "all"}},
    "backup",
    "cleanup",
]


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = Path(f"/tmp/workflow-{os.getpid()}")
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TMUX_TMPDIR", str(folder))
    monkeypatch.delenv("TMUX", raising=False)
    yield
    subprocess.run(["tmux", "kill-server"], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The default destination, on another disk than the root: a copy on the same one licenses no cleanup."""
    folder = tmp_path / "config" / "grpo-tui"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with other_disk(tmp_path) as place:
        (folder / "backup.yaml").write_text(yaml.safe_dump({"destinations": [{"name": "disk", "folder": str(place)}]}))
        yield place


def state(run: RunDir) -> str:
    return run.observed_state().state


def supervisor_of(run: RunDir) -> tuple[int, int]:
    return writer_of(run.read_status() or {})


def stages_of(run: RunDir) -> list[int]:
    """What the supervisor has started: the trainer, an evaluation, a backup, a cleanup."""
    supervisor = str(supervisor_of(run)[0])
    return [pid for pid in find_by_run_id(run_id_of(run.path)) if variable_in(pid, PARENT_VARIABLE) == supervisor]


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reboot(run: RunDir) -> None:
    """End every process of the run and its tmux server at once, and make the run one of an earlier boot."""
    supervisor = supervisor_of(run)
    if is_alive(*supervisor):
        kill(supervisor[0])
    subprocess.run(["tmux", "kill-server"], capture_output=True)
    kill_all(run_id_of(run.path))
    wait_for(lambda: not is_alive(*supervisor), "the supervisor to end")
    for file in (run.status_file, run.launch_file):
        if file.exists():
            file.write_text(json.dumps({**json.loads(file.read_text()), "boot_id": "an earlier boot"}))


def wait_for_progress(run: RunDir) -> None:
    """Wait for a step, an evaluation chunk or the end of a stage, or for the end of the run."""
    signs, log = signs_file(run), run.logs / "train_log.jsonl"

    def seen() -> tuple[object, ...]:
        sizes = log.stat().st_size if log.exists() else 0, len(read_workflow(run).get("done") or [])
        return signs.read_bytes() if signs.exists() else b"", sizes

    before = seen()
    wait_for(lambda: seen() != before or state(run) == "finished", "progress", timeout=600)


def keeper(run: RunDir, chance: random.Random, *, killed: bool = False) -> None:
    """``grpo-train keeper --once``, as its timer starts it; killed at a random moment if asked to.

    A run that it has given up is resumed by hand.
    """
    command = [*GRPO_TRAIN, "keeper", "--once", "--root", str(run.root)]
    child = subprocess.Popen(command, env=environment(run.root), stdout=subprocess.PIPE, text=True)
    if killed:
        time.sleep(chance.uniform(0, 3))  # any moment will do
        child.kill()
    said, _ = child.communicate(timeout=600)
    if "given up" in said:
        words = ["resume", "--training-run", run.name, "--root", str(run.root)]
        subprocess.run(["tmux", "new-session", "-d", *GRPO_TRAIN, *words], env=environment(run.root), check=True)
        wait_for(lambda: state(run) != "lost", "the resumed run", timeout=300)


@pytest.mark.timeout(3600)
def test_a_killed_workflow_equals_an_undisturbed_one(make_root: Any, tmux: None, backups: Path) -> None:
    seed = os.environ.get("CHAOS_SEED") or secrets.token_hex(4)
    print(f"CHAOS_SEED={seed}")
    chance = random.Random(seed)
    root = make_root()
    changes = {"run__total_steps": STEPS, "run__save_every": 3, "run__max_restarts": 50, "run__restart_wait": [0.1]}
    straight = train_here(root, write_config(root, "plain.yaml", **changes), "straight")

    cfg = write_config(root, **changes, run__auto_resume=True, workflow__stages=STAGES)
    run = run_of(root, "chaos")
    first = subprocess.Popen(
        [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", "chaos"],
        env=environment(root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: run.status_file.exists(), "the run to start", timeout=300)
    last_done: list[str] = []
    for number in range(KILLS):
        if number % 4:  # every fourth kill hits the startup
            wait_for_progress(run)
        time.sleep(chance.uniform(0, 6))  # any moment will do
        if state(run) == "finished":
            break
        what = chance.choice(["trainer", "trainer", "supervisor", "keeper", "reboot"])
        if what == "trainer":
            if victims := stages_of(run):
                kill(chance.choice(victims))
        elif what == "reboot":
            reboot(run)
        else:
            kill(supervisor_of(run)[0])
            keeper(run, chance, killed=what == "keeper")
        first.poll()
        wait_for(lambda: _is_kept(run, chance), "the keeper to resume the run", timeout=600)
        done = read_workflow(run).get("done") or []
        lost = [name for name in last_done if name not in done]
        assert not lost, "every checkpoint that a stage reached is still there"
        last_done = done
        print(f"kill {number}: {what}, at step {run.newest_step()}, stages done: {len(done)}", flush=True)
    wait_for(lambda: _is_kept(run, chance) and state(run) == "finished", "the end", timeout=1200)
    assert steps_logged(run) == list(range(1, STEPS + 1))
    assert_same_run(run, straight, STEPS)
    expected = [stage.name for stage in all_stages(load_config(run.config_file.read_text()))]
    assert read_workflow(run)["done"] == expected
    assert read_workflow(run)["failed"] == {}
    seen = {row["stage"] for row in rows(run, "events.jsonl") if row["event"] == "stage_done"}
    assert seen <= set(expected), "a supervisor that is killed after a stage may have no time to log it"
    assert find_by_run_id(run_id_of(run.path)) == []
    left = [checkpoint.step for checkpoint in run.checkpoints()]
    assert left[-1] == STEPS
    assert len(left) < STEPS / 6, "tidied: the last one, and the best evaluated ones"


def _is_kept(run: RunDir, chance: random.Random) -> bool:
    """Whether the run is live or has finished; a lost one is given to the keeper."""
    now = state(run)
    if now == "lost":
        keeper(run, chance)
        return False
    assert now not in ("crashed", "killed", "stopped"), (run.read_status() or {}).get("error")
    return True
