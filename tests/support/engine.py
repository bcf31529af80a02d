"""Helpers of the engine's tests: small configs, runs in this process, the command line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import find_by_run_id
from tests.support.forked import Fork, run_forked
from tests.support.patience import PATIENCE, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
GRPO_TRAIN = [sys.executable, "-m", "grpo_train.cli"]

SMALL: dict[str, dict[str, Any]] = {
    "run": {"total_steps": 6, "save_every": 1, "seed": 3},
    "model": {"backbone": "tiny", "adapter": "none", "lora_rank": 4, "lora_alpha": 8},
    "rollout": {"buffer_size": 4, "num_generations": 4, "max_prompt_length": 64, "max_completion_length": 40},
    "optimizer": {"learning_rate": 3e-4, "warmup_steps": 2},
    "train": {"microbatch_size": 2},
    "task": {"name": "addition"},
    "eval": {"batch_size": 64, "subset_frac": 0.02},
    "tracking": {"tensorboard": False},
}
"""A step takes about 0.25 s."""

MICRO: dict[str, dict[str, Any]] = {**SMALL, "rollout": {**SMALL["rollout"], "max_completion_length": 8}}
"""For a root with the micro model, whose answers fit: :mod:`tests.support.micro`. A step takes about 0.03 s."""


def config_text(base: Mapping[str, Mapping[str, Any]] = SMALL, /, **changes: Any) -> str:
    """:data:`SMALL`, or another base, with ``section__key=value`` changes, as YAML."""
    document = {section: dict(keys) for section, keys in base.items()}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        document.setdefault(section, {})[key] = value
    return yaml.safe_dump(document, sort_keys=False)


def write_config(folder: Path, name: str = "small.yaml", **changes: Any) -> Path:
    """A config file in ``folder``, see :func:`config_text`."""
    path = folder / name
    path.write_text(config_text(**changes))
    return path


def write_micro(folder: Path, name: str = "micro.yaml", **changes: Any) -> Path:
    """A config file of the micro model in ``folder``: :data:`MICRO` with changes."""
    path = folder / name
    path.write_text(config_text(MICRO, **changes))
    return path


def run_of(root: Path, name: str) -> RunDir:
    return RunDir(root / "training_runs" / name)


# ------------------------------------------------------------------------------------------------- in this process


def train_here(root: Path, cfg: Path, name: str, *options: str) -> RunDir:
    """Train a new run in this process; fails the test if training fails."""
    from grpo_train.train.worker import main

    arguments = ["--cfg", str(cfg), "--root", str(root), "--run-name", name, *options]
    assert main(arguments) == 0
    return run_of(root, name)


def resume_here(run: RunDir, which: str = "latest", total: int = 6) -> None:
    """Resume a run in this process."""
    from grpo_train.supervisor.resume import prepare_resume
    from grpo_train.train.worker import main

    prepare_resume(run, which, total)
    assert main(["--run-dir", str(run.path)]) == 0


# ------------------------------------------------------------------------------------------------ the command line


def environment(root: Path | None = None, **extra: str) -> dict[str, str]:
    """A user's environment, with one thread and, if given, the root."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("LOCALFS_ROOT", "GRPO_RUN_ID", "GRPO_PARENT_PID")}
    return {**inherited, "OMP_NUM_THREADS": "1", **({"LOCALFS_ROOT": str(root)} if root else {}), **extra}


def grpo_train(
    *arguments: object, root: Path | None, timeout: float = 120, real: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``grpo-train …`` to its end, as a fork (:mod:`tests.support.forked`) or as a ``real`` process."""
    return run_module("grpo_train.cli", *arguments, root=root, timeout=timeout, real=real)


def command_here(*arguments: object, root: Path | None, given: bytes | str = "") -> subprocess.CompletedProcess[str]:
    """Run ``grpo-train …`` in this process, with ``given`` as its standard input: a command that starts no process and
    leaves this one as it was."""
    from typer.testing import CliRunner

    from grpo_train.cli import app

    words = [str(argument) for argument in arguments]
    variables = {"LOCALFS_ROOT": str(root) if root else None, "GRPO_RUN_ID": None, "GRPO_PARENT_PID": None}
    done = CliRunner().invoke(app, words, given, env=variables, catch_exceptions=False)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def run_module(
    *arguments: object, root: Path | None, timeout: float = 120, real: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m ARGUMENTS`` to its end, as a fork or as a ``real`` process."""
    words = [str(argument) for argument in arguments]
    if not real:
        return run_forked(words, environment(root), REPOSITORY, PATIENCE * timeout)
    return subprocess.run(
        [sys.executable, "-m", *words],
        env=environment(root), capture_output=True, text=True, timeout=PATIENCE * timeout, cwd=REPOSITORY,
    )  # fmt: skip


def time_grpo_train(*arguments: object, timeout: float = 1800) -> float:
    """Run ``grpo-train …`` in the repository, output shown, and return the seconds it took; raises if it fails."""
    began = time.monotonic()
    subprocess.run([*GRPO_TRAIN, *map(str, arguments)], check=True, timeout=timeout, cwd=REPOSITORY)
    return time.monotonic() - began


Running = Fork | subprocess.Popen[str]


@contextmanager
def running(command: list[str], root: Path, run_id: str, *, real: bool = False, **extra: str) -> Iterator[Running]:
    """Run a command in the background, a module of this project as a fork unless it must be a ``real`` process.

    Kills what is left of it and of the run at the end.
    """
    process: Running
    if command[:2] == GRPO_TRAIN[:2] and not real:
        process = Fork(command[2:], environment(root, **extra), REPOSITORY)
    else:
        process = subprocess.Popen(
            command,
            env=environment(root, **extra),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        for pid in find_by_run_id(run_id):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)


def at_start(folder: Path, code: str) -> dict[str, str]:
    """Environment in which every Python process runs ``code`` first; makes ``folder``."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 90) -> Any:
    """Wait for a condition and return its first true value; on timeout the test fails with ``what``."""
    return eventually(condition, timeout, what)


def rows(run: RunDir, file: str = "train_log.jsonl") -> list[dict[str, Any]]:
    return list(run.read_log(file))


def steps_logged(run: RunDir) -> list[int]:
    return [row["step"] for row in rows(run)]


def events(run: RunDir) -> list[str]:
    return [row["event"] for row in rows(run, "events.jsonl")]


# ---------------------------------------------------------------------------------------------------- equality


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights_hash(run: RunDir, step: int) -> str:
    """SHA-256 of the one safetensors file of a step's model."""
    (file,) = (run.training_state / f"step_{step}" / "model").glob("*.safetensors")
    return file_hash(file)


def without_time(row: dict[str, Any]) -> str:
    """A log row without times and memory: what a second run of the same step must repeat."""
    return json.dumps({k: v for k, v in row.items() if not k.startswith(("time", "memory/", "perf/"))}, sort_keys=True)


def assert_same_run(one: RunDir, other: RunDir, step: int) -> None:
    """Assert bit-exact equality: the full state at ``step`` (weights, optimizer, scheduler, generators, probes, pending
    buffer) and all log rows up to it."""
    assert weights_hash(one, step) == weights_hash(other, step)
    a, b = (run.training_state / f"step_{step}" for run in (one, other))
    names = sorted(path.name for path in a.glob("*.pt"))
    assert {"optimizer.pt", "scheduler.pt", "rng.pt"} <= set(names)
    assert names == sorted(path.name for path in b.glob("*.pt"))
    for name in names:
        assert file_hash(a / name) == file_hash(b / name), name
    for file in ("train_log.jsonl", "rollouts.jsonl", "ratios.jsonl", "tokens.jsonl"):
        left, right = ([without_time(row) for row in rows(run, file) if row["step"] <= step] for run in (one, other))
        assert left or file == "tokens.jsonl", file  # written with the last update of a buffer
        assert left == right, file


# -------------------------------------------------------------------------------------------------------- damage


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": ("optimizer.pt", lambda f: f.unlink(), "optimizer.pt is missing"),
    "truncated": ("rng.pt", lambda f: os.truncate(f, 100), "rng.pt has 100 bytes instead of"),
    "bit flip": ("scheduler.pt", _flip, "scheduler.pt has the wrong checksum"),
    "manifest gone": ("MANIFEST.json", lambda f: f.unlink(), "MANIFEST.json is missing"),
    "manifest cut": ("MANIFEST.json", lambda f: os.truncate(f, 50), "MANIFEST.json is damaged"),
}
"""Damages of a checkpoint: the file, the damage, and the expected message."""


def damage(checkpoint: Path, how: str) -> str:
    """Damage a ``step_N`` in a way of :data:`DAMAGES`; returns the expected message."""
    name, break_file, message = DAMAGES[how]
    break_file(checkpoint / name)
    return message
