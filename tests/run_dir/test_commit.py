from __future__ import annotations

import subprocess
from pathlib import Path

from grpo_train.run_dir.code import commit_of


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    folder, tree = tmp_path / "checkout", tmp_path / "worktree"
    folder.mkdir()
    assert commit_of(folder) == ""
    git(folder, "init", "-q")
    assert commit_of(folder) == ""
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    first = git(folder, "rev-parse", "HEAD")
    assert commit_of(folder) == first
    git(folder, "worktree", "add", "-q", "-b", "other", str(tree))
    git(tree, "commit", "-q", "--allow-empty", "-m", "two")
    assert commit_of(tree) == git(tree, "rev-parse", "HEAD") != first
    git(folder, "pack-refs", "--all")
    assert commit_of(folder) == first
    git(folder, "checkout", "-q", "--detach")
    assert commit_of(folder) == first
    (folder / ".git" / "HEAD").write_bytes(b"\xff\x00")
    assert commit_of(folder) == ""
