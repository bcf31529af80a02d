"""The start and the end of a process without garbage collection."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

from grpo_train.run_dir.garbage import pause_collection, resume_collection
from tests.support.patience import PATIENCE


def ended(code: str) -> subprocess.CompletedProcess[str]:
    lines = "import atexit, ctypes, sys, threading, time\nfrom grpo_train.run_dir.garbage import end_at_once\n" + code
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", lines]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30 * PATIENCE)


def test_a_process_ends_with_all_that_it_printed() -> None:
    done = ended(
        "atexit.register(print, 'handler')\n"
        "ctypes.CDLL(None).printf(b'from C\\n')\n"
        "print('no newline', end='', file=sys.stderr)\n"
        "end_at_once(3)"
    )
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines()) == ["from C", "handler"]
    assert done.stderr == "no newline"


def test_threads_end_first() -> None:
    thread = "threading.Thread(target=lambda: ({}, print('saved'))).start()\n"
    assert ended(thread.format("time.sleep(0.2)") + "end_at_once(0)").stdout == "saved\n"


def test_a_reader_that_has_gone_changes_no_exit_code() -> None:
    done = ended("import os\nread, write = os.pipe()\nos.dup2(write, 1)\nos.close(read)\nprint('x')\nend_at_once(0)")
    assert (done.returncode, done.stderr) == (0, "")


def test_collection_is_resumed_without_what_exists() -> None:
    frozen = gc.get_freeze_count()
    resume_collection()
    assert gc.get_freeze_count() == frozen, "it was not paused"
    pause_collection()
    try:
        assert not gc.isenabled()
        resume_collection()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.enable()
        gc.unfreeze()
