"""scripts/setup.sh, with a uv that records what it is asked to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_train.policy.device import MINIMUM_DRIVERS
from grpo_train.run_dir.version import VERSION
from tests.support.engine import REPOSITORY
from tests.support.patience import PATIENCE

UV = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
    venv*) mkdir -p .venv/bin && touch .venv/bin/python && chmod +x .venv/bin/python ;;
    *--torch-backend*) exit {torch_status} ;;
    *--dry-run*) echo " + nvidia-cuda-runtime==13.0.96" ;;
    *.\\[train\\]) touch .venv/bin/grpo-train && chmod +x .venv/bin/grpo-train ;;
esac
"""


def set_up_box(folder: Path, torch_status: int, driver: str = "", code: int = 0) -> tuple[list[str], str]:
    """The commands that ``setup.sh --box`` gives to uv, and its output."""
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    shutil.copy(REPOSITORY / "scripts" / "setup.sh", folder / "scripts")
    log = folder / "uv.log"
    log.write_text("")
    program(folder, "uv", UV.format(log=log, torch_status=torch_status))
    program(folder, "nvidia-smi", f"#!/bin/sh\necho '{driver}'\n" if driver else "#!/bin/sh\nexit 9\n")
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    command = ["bash", str(folder / "scripts" / "setup.sh"), "--box"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60 * PATIENCE)
    assert done.returncode == code, done.stdout + done.stderr
    return log.read_text().splitlines(), done.stdout + done.stderr


def program(folder: Path, name: str, text: str) -> None:
    file = folder / "bin" / name
    file.write_text(text)
    file.chmod(0o755)


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


def test_a_box_that_is_set_up_is_left_alone(tmp_path: Path) -> None:
    assert set_up_box(tmp_path, 0, "570.86.15")[0]
    commands, output = set_up_box(tmp_path, 0, "570.86.15")
    assert (commands, "nothing has changed" in output) == ([], True)
    assert set_up_box(tmp_path, 0, "580.95.05")[0], "another driver may need another build"
    (tmp_path / ".venv" / "bin" / "grpo-train").unlink()
    assert set_up_box(tmp_path, 0, "580.95.05")[0]


def test_a_driver_that_is_too_old_is_named_first(tmp_path: Path) -> None:
    commands, output = set_up_box(tmp_path, 0, "470.82.01", code=1)
    assert (commands, "driver 470.82.01 is too old" in output) == ([], True)
    assert MINIMUM_DRIVERS[12] in output
    assert not (tmp_path / ".venv").exists()


def test_a_driver_that_is_too_old_for_the_default_build(tmp_path: Path) -> None:
    """Without PyTorch's index, the build that would be installed is asked for its CUDA version."""
    commands, output = set_up_box(tmp_path, 1, "570.86.15", code=1)
    assert "pip install -q --python .venv/bin/python -e .[train]" not in commands
    assert f"(CUDA 13), which needs {MINIMUM_DRIVERS[13]} or newer" in output
    assert set_up_box(tmp_path, 1, MINIMUM_DRIVERS[13])[0][-1].endswith("-e .[train]")


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("setup-box", "bash scripts/setup.sh --box"),
        ("setup", "bash scripts/setup.sh"),
        ("demo", ".venv/bin/grpo-tui --demo"),
        ("test", ".venv/bin/python -m pytest"),
        ("words", ".venv/bin/python scripts/words.py"),
        ("docs", ".venv/bin/python scripts/docs.py build"),
        ("docs", "bash scripts/setup.sh --docs"),
        ("pictures", ".venv/bin/python scripts/pictures.py"),
        ("schema", ".venv/bin/python scripts/docs.py tables"),
        ("test-image", ".venv/bin/python scripts/soak.py image"),
    ],
)
def test_make_targets_run_their_commands(target: str, command: str) -> None:
    """A target that is only ``.PHONY`` succeeds without a command."""
    make = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, timeout=60 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("v{version}", "## [{version}]"),
        ("v99.0.0", "tag v99.0.0, but the version is {version}"),
    ],
)
def test_a_release_is_published_for_the_tag_of_its_version(tag: str, said: str) -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    jobs = workflow["jobs"]
    assert (jobs["publish"]["needs"], jobs["install"]["needs"]) == ("install", "build")
    assert "ref_type == 'tag'" in jobs["publish"]["if"]
    (check,) = (step["run"] for step in jobs["build"]["steps"] if "GITHUB_REF_NAME" in step.get("run", ""))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GITHUB_REF_NAME": tag.format(version=VERSION)}
    done = subprocess.run(["bash", "-ec", check], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert said.format(version=VERSION) in done.stdout
    assert done.returncode == ("but" in said)
