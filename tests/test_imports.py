"""Modules loaded by an import, measured in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.engine import REPOSITORY
from tests.support.patience import PATIENCE

HEAVY = ("torch", "transformers", "peft", "datasets", "tensorboard")


def loaded(module: str) -> set[str]:
    """Top-level names in ``sys.modules`` after importing a module in a fresh interpreter."""
    program = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60 * PATIENCE, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "run_dir",
        "config",
        "train.preflight",
        "supervisor.supervisor",
        "cli",
        "evaluation.runner",
        "report.page",
        "policy.device",
        "policy.locate",
        "tasks",
        "tracking.gpu",
    ],
)
def test_module_does_not_load_torch(module: str) -> None:
    assert not loaded(f"grpo_train.{module}") & set(HEAVY)


def test_run_dir_loads_only_the_standard_library() -> None:
    names = loaded("grpo_train.run_dir, grpo_train.run_dir.files, grpo_train.run_dir.processes")
    plain = loaded("sys")  # loaded by the hooks of an editable install
    assert {n for n in names - plain if not n.startswith("_")} <= set(sys.stdlib_module_names) | {"grpo_train"}


def test_package_init_is_empty() -> None:
    assert (REPOSITORY / "grpo_train" / "__init__.py").read_text() == ""


def test_training_loads_neither_link_nor_app() -> None:
    assert not loaded("grpo_train.train.loop, grpo_train.train.worker") & {
        "remote",
        "grpo_tui",
        "textual",
        "paramiko",
        "typer",
    }
