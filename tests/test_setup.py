"""scripts/setup.sh, with a uv that records what it is asked to install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.engine import REPOSITORY

UV = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
    venv*) mkdir -p .venv/bin && touch .venv/bin/python && chmod +x .venv/bin/python ;;
    *--torch-backend*) exit {torch_status} ;;
esac
"""


def set_up_box(folder: Path, torch_status: int) -> tuple[list[str], str]:
    """The commands that ``setup.sh --box`` gives to uv, and its output."""
    (folder / "scripts").mkdir()
    (folder / "bin").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "setup.sh", folder / "scripts")
    log = folder / "uv.log"
    uv = folder / "bin" / "uv"
    uv.write_text(UV.format(log=log, torch_status=torch_status))
    uv.chmod(0o755)
    environment = {**os.environ, "PATH": f"{uv.parent}:{os.environ['PATH']}"}
    command = ["bash", str(folder / "scripts" / "setup.sh"), "--box"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return log.read_text().splitlines(), done.stdout


def test_box_setup_picks_torch_for_the_driver_first(tmp_path: Path) -> None:
    commands, _ = set_up_box(tmp_path, torch_status=0)
    assert commands[-2:] == [
        "pip install -q --python .venv/bin/python --no-config --torch-backend=auto torch",
        "pip install -q --python .venv/bin/python -e .[train]",
    ]


def test_box_setup_without_pytorchs_index_uses_the_default_build(tmp_path: Path) -> None:
    commands, output = set_up_box(tmp_path, torch_status=1)
    assert commands[-1] == "pip install -q --python .venv/bin/python -e .[train]"
    assert "using the default build" in output


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("setup-box", "bash scripts/setup.sh --box"),
        ("setup", "bash scripts/setup.sh"),
        ("demo", ".venv/bin/grpo-tui --demo"),
        ("test", ".venv/bin/python -m pytest"),
        ("words", ".venv/bin/python scripts/words.py"),
    ],
)
def test_make_targets_run_their_commands(target: str, command: str) -> None:
    """A target that is only ``.PHONY`` succeeds without a command."""
    make = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout
