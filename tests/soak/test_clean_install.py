"""Wheel and sdist on clean machines: bubblewrap with an empty home, without this repository, with Python 3.10 and 3.13.

Needs bubblewrap, the network, and the package index; the last test downloads the engine (3.2 GB on Linux).
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.end_to_end.test_wheel import copy_source, uv
from tests.support.engine import REPOSITORY
from tests.support.stores import on_a_disk
from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap: apt-get install bubblewrap")
VERSIONS = ("3.10", "3.13")
NETWORK = ("_PROXY", "_CERT_FILE", "_CA_BUNDLE", "_INDEX", "_INDEX_URL")
"""How variables end that say how this machine reaches the index."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist of this tree, and their source."""
    folder = tmp_path_factory.mktemp("dist")
    copy_source(folder / "source")
    run([uv(), "build", "-q", "--sdist", "--wheel", "--out-dir", str(folder), str(folder / "source")])
    return folder


def python_of(version: str) -> Path:
    """The interpreter of a version: on PATH, of pyenv, or one of uv's; skips where there is none."""
    pyenv = sorted(glob.glob(f"{os.environ.get('PYENV_ROOT', Path.home() / '.pyenv')}/versions/{version}.*/bin"))
    path = os.pathsep.join([*pyenv, os.environ["PATH"]])
    found = subprocess.run(
        [uv(), "python", "find", "--no-project", "--system", version], env={**os.environ, "PATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    if found.returncode:
        pytest.skip(f"no Python {version}")
    return Path(found.stdout.strip()).resolve()


def clean(python: Path, built: Path, home: Path, network: bool = True) -> list[str]:
    """The words before a command that has the system's programs, one Python, uv, what was built, and an empty home."""
    hidden = [word for folder in ("/tmp", "/root", "/home", str(REPOSITORY)) for word in ("--tmpfs", folder)]
    shown = [word for folder in (python.parent.parent, built) for word in ("--ro-bind", str(folder), str(folder))]
    tool = Path(uv()).resolve()
    path = f"/opt/uv:/home/u/.local/bin:{python.parent}:/usr/bin:/bin"
    variables = {name: value for name, value in os.environ.items() if name.upper().endswith(NETWORK)}
    variables |= {"HOME": "/home/u", "PATH": path, "LANG": "C.UTF-8", "TERM": os.environ.get("TERM", "xterm")}
    return [
        "bwrap", "--die-with-parent", "--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
        *hidden, "--tmpfs", "/opt", *shown, "--bind", str(home), "/home/u", "--chdir", "/home/u", "--clearenv",
        *(word for name in ("uv", "uvx") for word in ("--ro-bind", str(tool.with_name(name)), f"/opt/uv/{name}")),
        *(word for name, value in variables.items() for word in ("--setenv", name, value)),
        *([] if network else ["--unshare-net"]),
    ]  # fmt: skip


TAB = """\
source <("$1" completion bash)
COMP_TYPE=9 COMP_LINE="$1 $2" COMP_WORDS=("$1" "$2") COMP_CWORD=1
COMP_POINT=${#COMP_LINE}
_python_argcomplete "$1" "$2" "$1"
echo "${COMPREPLY[@]}"
"""
"""What bash does when TAB is pressed after the first word: a program, the beginning of a command."""


def run(command: list[str], status: int = 0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_000)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_sdist_builds_the_wheel_of_the_repository(built: Path, tmp_path: Path) -> None:
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert not (unpacked / "tests").exists()
    run([uv(), "build", "-q", "--wheel", "--out-dir", str(tmp_path), str(unpacked)])
    packages = ("grpo_train", "grpo_tui", "remote", "config")
    listed = [path.relative_to(built / "source") for name in packages for path in (built / "source" / name).rglob("*")]
    files = [path.as_posix() for path in listed if (built / "source" / path).is_file() and path.suffix != ".pyc"]
    expected = {f"grpo_train/_{name}" if name.startswith("config/") else name for name in files}
    (again,) = tmp_path.glob("*.whl")
    assert names_in(again) == names_in(wheel) == expected
    run([uv(), "tool", "run", "twine", "check", "--strict", str(wheel), str(sdist)])


def check_programs(bare: list[str], folder: str) -> None:
    """What both programs say without an engine, a box and a network."""
    tui, train = f"{folder}grpo-tui", f"{folder}grpo-train"
    assert "--demo" in run([*bare, tui, "--help"])
    assert "tiny-model" in run([*bare, train, "--help"])
    assert "python" in run([*bare, tui, "doctor"], status=2)
    for program, word, whole in ((tui, "lau", "launch"), (train, "tiny-m", "tiny-model")):
        assert whole in run([*bare, "bash", "-c", TAB, "tab", program, word])
    assert "[train]" in run([*bare, train, "tiny-model", "--out", "model"], status=2)
    run([*bare, train, "init", "mine"])


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
@pytest.mark.parametrize("version", VERSIONS)
def test_pip_in_an_empty_environment(version: str, kind: str, built: Path, tmp_path: Path) -> None:
    python, (package,) = python_of(version), built.glob(kind)
    bare = clean(python, built, tmp_path)
    run([*bare, str(python), "-m", "venv", "env"])
    run([*bare, "env/bin/python", "-m", "pip", "install", "-q", str(package)])
    check_programs(clean(python, built, tmp_path, network=False), "env/bin/")


@pytest.mark.parametrize("version", VERSIONS)
def test_pipx_and_uv_tool(version: str, built: Path, tmp_path: Path) -> None:
    python, (wheel,) = python_of(version), built.glob("*.whl")
    bare, offline = clean(python, built, tmp_path), clean(python, built, tmp_path, network=False)
    run([*bare, "uvx", "--python", str(python), "pipx", "install", "--python", str(python), str(wheel)])
    check_programs(offline, "")
    assert "pipx install --force" in run([*offline, "grpo-tui", "--demo"], status=2)
    run([*bare, "uvx", "pipx", "uninstall", "grpo-tui"])
    run([*bare, "uv", "tool", "install", "--python", str(python), str(wheel)])
    assert "uv tool install --force" in run([*offline, "grpo-tui", "--demo"], status=2)


@pytest.mark.parametrize("version", VERSIONS)
def test_uvx_starts_the_demo(version: str, built: Path, tmp_path: Path) -> None:
    """From the source, with nothing but uv and tmux: the question, the download, then the program with the engine."""
    if not shutil.which("tmux"):
        pytest.skip("needs tmux")
    python = python_of(version)
    with on_a_disk(tmp_path) as disk:
        shutil.copytree(built / "source", disk / "source")  # setuptools writes there
        command = [*clean(python, built, disk), "uvx", "--python", version, "--from", "./source", "grpo-tui", "--demo"]
        with Terminal(command, {}) as terminal:
            terminal.wait_for("Download it and start the demo?", timeout=300)
            terminal.type("y")
            terminal.press("Enter")
            terminal.wait_for("making a tiny model", timeout=900)
        with Terminal(command, {}) as terminal:  # nothing is asked again
            terminal.wait_for("making a tiny model", timeout=120)
