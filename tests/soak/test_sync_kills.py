"""The box's end of a sync is killed before and during every git command: the next sync and launch work."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_train.run_dir.code import Code
from remote.code import find_checkout, write_bundle, write_patch
from tests.remote.test_sync import Clone
from tests.support.engine import REPOSITORY

GIT = """#!/bin/sh
n=$(($(cat {count} 2>/dev/null || echo 0) + 1)); echo $n > {count}
if [ $n = {at} ] && [ {when} = before ]; then kill -9 $PPID; exit 1; fi
if [ $n = {at} ]; then {git} "$@" & sleep {when}; kill -9 $! $PPID; exit 1; fi
exec {git} "$@"
"""
ACCEPT = """
import os, sys
from pathlib import Path
from grpo_train.run_dir.code import Code
from remote.agent import code as codes
commit, patch, bundle, changes = sys.argv[1:]
made = Code(commit, patch)
place = Path("~/.grpo/code").expanduser()
codes.accept(place, made, Path(bundle), Path(changes) if patch else None)
print(codes.worktree(made))
"""


def accept(home: Path, code: Code, bundle: Path, changes: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "PATH": path, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", ACCEPT, code.commit, code.patch, str(bundle), str(changes)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("when", ["before", "0.001", "0.004"])
def test_a_killed_sync_is_done_again(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clone, git = Clone(tmp_path / "clone"), shutil.which("git")
    first = find_checkout(clone.folder)
    assert write_bundle(first, [], tmp_path / "first")
    clone.commit("two")
    clone.says("changed")
    second = find_checkout(clone.folder)
    assert write_bundle(second, [first.commit], tmp_path / "second")
    code, _ = write_patch(second, tmp_path / "patch")
    usual, wrapped = os.environ["PATH"], f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    (tmp_path / "bin").mkdir()
    kills = 0
    for at in range(1, 60):
        home = tmp_path / f"home{at}"
        home.mkdir()
        done = accept(home, Code(first.commit), tmp_path / "first", Path(), usual)
        assert done.returncode == 0, done.stderr
        (tmp_path / "count").write_text("0")
        script = tmp_path / "bin" / "git"
        script.write_text(GIT.format(count=tmp_path / "count", at=at, when=when, git=git))
        script.chmod(0o755)
        done = accept(home, code, tmp_path / "second", tmp_path / "patch", wrapped)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
        for lock in (home / ".grpo" / "code.git").rglob("*.lock"):
            os.utime(lock, (0, 0))  # time passes
        done = accept(home, code, tmp_path / "second", tmp_path / "patch", usual)
        assert done.returncode == 0, (at, done.stderr)
        for tree in (Path(done.stdout.strip()), home / ".grpo" / "code"):
            assert (tree / "grpo_train" / "__init__.py").read_text() == "WHAT = 'changed'\n", at
    print(f"killed {kills} times ({when})")
    assert kills > 8
