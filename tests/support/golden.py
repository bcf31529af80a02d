"""Golden runs: trained once, kept in pytest's cache, and handed out as copies to append to and to damage.

    def test_a_report(golden):
        run = golden("first")  # in a root of its own, with its model

For tests that need *a finished run*; tests of training train. All are of micro models (:mod:`tests.support.micro`).
What is kept belongs to the sources of ``grpo_train`` and to the versions of its libraries: any change makes it anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from tests.support import micro
from tests.support.engine import REPOSITORY, run_of, train_here, write_micro
from tests.support.evaluating import evaluate_here

LIBRARIES = ("torch", "transformers", "peft", "numpy")
SUPPORT = [f"tests/support/{name}.py" for name in ("golden", "micro", "engine", "evaluating")]
KEPT_S = 24 * 3600.0
"""Age at which what other sources have made is removed: another session of tests may be using it."""
MODELS: dict[str, str] = {"addition": "micro", "tictactoe": "player"}
"""Task that a micro model was warm-started on: its name in the cache."""


def plain(root: Path) -> None:
    """Six steps of full weights, with TensorBoard's files."""
    train_here(root, write_micro(root, tracking__tensorboard=True), "plain")


def lora(root: Path) -> None:
    """Six steps of an adapter."""
    train_here(root, write_micro(root, model__adapter="lora"), "lora")


def first(root: Path) -> None:
    """Two steps of full weights, evaluated before and after; beside it ``second``, which differs in its learning rate
    and warmup."""
    for name, changes in (("first", {}), ("second", {"learning_rate": 1e-3, "warmup_steps": 0})):
        options = {f"optimizer__{key}": value for key, value in changes.items()}
        train_here(root, write_micro(root, run__total_steps=2, **options), name)
        assert evaluate_here(root, name, steps="0,2", num_problems=12) == 0


def mixture(root: Path) -> None:
    """Four steps on two tasks, two steps of each buffer."""
    parts: list[dict[str, Any]] = [{"name": "addition", "weight": 2}, {"name": "addition", "label": "one", "digits": 1}]
    changes = {"task__parts": parts, "run__total_steps": 4, "algorithm__num_iterations": 2}
    train_here(root, write_micro(root, **changes), "mixture")


def filtered(root: Path) -> None:
    """Three steps whose groups without spread were replaced."""
    changes = {"rollout__filter_groups": True, "rollout__max_rounds": 20, "run__total_steps": 3}
    train_here(root, write_micro(root, **changes), "filtered")


def self_play(root: Path) -> None:
    """Four steps of tic-tac-toe."""
    changes = {"task__name": "tictactoe", "task__template": "compact", "rollout__num_generations": 9}
    train_here(root, write_micro(root, **changes, run__total_steps=4), "self_play")


def documented(root: Path) -> None:
    """The runs of docs/, with the names that stand there: RUN, 40 steps of an adapter, and OTHER; both evaluated."""
    for name, steps, evaluated in (("RUN", 40, "0,10,20,final"), ("OTHER", 20, "0,10,final")):
        changes = {"model__adapter": "lora", "run__total_steps": steps, "run__save_every": 10}
        train_here(root, write_micro(root, **changes), name)
        assert evaluate_here(root, name, steps=evaluated) == 0


RUNS: dict[str, Callable[[Path], None]] = {
    made.__name__: made for made in (plain, lora, first, mixture, filtered, self_play, documented)
}
"""By the name of the run; each is in a root of its own."""


@cache
def key(*places: str) -> str:
    """Digest of the Python sources at ``places``, files or folders, and of the libraries' versions."""
    paths = [REPOSITORY / place for place in places]
    digest = hashlib.sha256(" ".join(version(name) for name in LIBRARIES).encode())
    for file in (file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))):
        digest.update(f"\0{file.relative_to(REPOSITORY)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def kept(cache: pytest.Cache, name: str, made_by: str, make: Callable[[Path], object]) -> Path:
    """The folder ``name`` in pytest's cache, made by ``make`` unless the sources ``made_by`` have made it before.

    The suite's workers start at the same time: one of them makes it, and the others wait.
    """
    folder = cache.mkdir("golden")
    made = folder / f"{name}-{made_by}"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            beside = folder / f".{name}"
            shutil.rmtree(beside, ignore_errors=True)
            for old in folder.glob(f"{name}-*"):
                if time.time() - old.stat().st_mtime > KEPT_S:
                    shutil.rmtree(old)
            make(beside)
            beside.rename(made)
    return made


def kept_model(cache: pytest.Cache, task: str = "addition") -> Path:
    """The micro model that was warm-started on a task."""
    sources = key("grpo_train/tiny", "grpo_train/tasks", "grpo_train/games", "tests/support/micro.py")
    return kept(cache, MODELS[task], sources, lambda out: micro.make_micro_model(out, task))


def copy_of(cache: pytest.Cache, name: str, root: Path) -> RunDir:
    """The run ``name`` of :data:`RUNS`, copied to a new ``root``."""

    def make(root: Path) -> None:
        import torch

        model = kept_model(cache, "tictactoe" if name == "self_play" else "addition")
        shutil.copytree(model, root / "models" / "tiny")
        torch.set_num_threads(1)
        RUNS[name](root)

    shutil.copytree(kept(cache, name, key("grpo_train", *SUPPORT), make), root, symlinks=True)
    return run_of(root, name)
