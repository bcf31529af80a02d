"""Slots and their directories: emptied, limited, reused and recreated."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_train.sandbox import (
    isolation,
    layers,
    probe,
    run_program,
    workspace,
)


def test_slots_can_be_entered_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        slot = workspace.Slot(str(tmp_path / "slot"), 0, None, tmpfs=False)
    finally:
        os.umask(before)
    assert os.stat(slot.path).st_mode & 0o777 == 0o711


def test_deep_trees_are_removed(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)
    (tmp_path / "closed").mkdir(0o300)
    (tmp_path / "closed" / "file").write_text("x")
    outside = tmp_path.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("x")
    (tmp_path / "link").symlink_to(outside)
    assert workspace.empty(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert (outside / "kept").exists()


def test_emptying_stops_at_the_deadline(tmp_path: Path) -> None:
    for index in range(50):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "file").write_text("x")
    assert not workspace.empty(str(tmp_path), time.monotonic() - 1)
    assert workspace.empty(str(tmp_path))


def test_tmpfs_is_limited_and_leaves_the_disk_empty() -> None:
    if not isolation().tmpfs:
        pytest.skip("no mount namespaces on this machine")
    source = "import errno\ndef fill(write):\n    for i in range(10_000):\n        try: write(i)\n"
    source += "        except OSError as error: return i, errno.errorcode[error.errno]\n"
    many = run_program(source + "print(*fill(lambda i: open(f'{i}', 'w').close()))").stdout.split()
    assert many[1] == "ENOSPC"
    assert 4000 < int(many[0]) < layers.MAX_TMPFS_FILES
    big = run_program(source + "print(*fill(lambda i: open(f'{i}', 'wb').write(b'x' * (1 << 20))))").stdout.split()
    assert big == [str(layers.MAX_TMPFS_BYTES >> 20), "ENOSPC"]
    written = sum(len(files) for _, _, files in os.walk(workspace.workspace().root))
    assert written == 1  # the secret


def test_only_untouched_directories_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_found", replace(isolation(), tmpfs=False))
    source = "import os; print(os.stat('.').st_ino)"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run_program, source).result().stdout
        assert pool.submit(run_program, source).result().stdout == first
        for touch in (
            "open('x', 'w').close(); os.unlink('x')",
            "os.mkdir('d'); os.rmdir('d')",
            "open('../x', 'w').close()",
            "here = os.getcwd(); os.chdir('..'); os.rmdir(here); os.mkdir(here)",
        ):
            pool.submit(run_program, source + "; " + touch).result()
            after = pool.submit(run_program, "import os; print(os.listdir('.'), len(os.listdir('..')))").result()
            assert after.stdout == "[] 1\n"


def test_a_deleted_workspace_is_recreated() -> None:
    run_program("1")
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        shutil.rmtree(workspace.workspace().root)
        assert run_program("print(1)").stdout == "1\n"
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    slot = workspace.workspace().take(isolation().landlock_abi, isolation().uid, isolation().tmpfs)
    workspace.workspace().give_back(slot)
    shutil.rmtree(slot.path)
    assert run_program("print(1)").stdout == "1\n"
