"""Compiled modules that an agent leaves beside its bundle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote.transports.bootstrap import build
from tests.support.agent import RawAgent, eventually

COUNTING = """
import runpy, sys
compiled = []
def hook(event, arguments):
    if event == "compile" and str(arguments[1]).startswith(sys.argv[0]):
        compiled.append(arguments[1])
bundle = sys.argv[1]
sys.argv = [bundle, "usage"]
sys.addaudithook(hook)
try:
    runpy.run_path(bundle, run_name="__main__")
except SystemExit:
    print(*compiled, sep="\\n")
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the compiled modules, not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = build().path()
    return bundle.with_name(f"{bundle.name}.{sys.implementation.cache_tag}")


def connect(root: Path, beside: Path) -> None:
    """An agent until it has stored its modules."""
    agent = RawAgent(root, process=True)
    eventually(beside.exists)
    agent.close()


def compiled(beside: Path) -> set[str]:
    """Modules of the bundle that a start compiles."""
    bundle = str(build().path())
    argv = [sys.executable, "-I", "-S", "-c", COUNTING, bundle]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return {line.removeprefix(f"{bundle}/") for line in done.stdout.split()}


def test_a_second_start_compiles_no_module(root: Path, beside: Path) -> None:
    assert "remote/agent/serve.py" in compiled(beside)
    connect(root, beside)
    first = {"__main__.py", "remote/__init__.py", "remote/agent/__init__.py", "remote/agent/compiled.py"}
    assert compiled(beside) <= first
    assert beside.stat().st_mode & 0o077 == 0
    connect(root, beside)  # and it works


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "of another Python"])
def test_a_damaged_file_is_not_used(root: Path, beside: Path, damage: str) -> None:
    connect(root, beside)
    good = beside.read_bytes()
    bad = {
        "empty": b"",
        "cut": good[:-1_000],
        "flipped": good[:-1_000] + bytes([good[-1_000] ^ 1]) + good[-999:],
        "of another Python": b"\0\0\r\n" + good[4:],
    }
    beside.write_bytes(bad[damage])
    before = beside.stat().st_ino
    agent = RawAgent(root, process=True)
    eventually(lambda: beside.stat().st_ino != before)
    agent.close()
    assert "remote/agent/serve.py" not in compiled(beside)


def test_a_directory_that_cannot_be_written(root: Path, beside: Path) -> None:
    beside.mkdir(parents=True)  # whatever is in the way
    agent = RawAgent(root, process=True)
    assert agent.hello["agent"] == build().sha256
    agent.close()
    assert beside.is_dir()
    eventually(lambda: not [name for name in os.listdir(beside.parent) if name.endswith(".tmp")])
