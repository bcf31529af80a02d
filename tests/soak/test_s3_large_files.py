"""``tests/backup/test_large_files.py`` with processes that are killed while they send. Part of ``make soak``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from grpo_train.backup.store import FilePiece
from tests.backup.conftest import home
from tests.backup.test_large_files import *  # noqa: F403
from tests.backup.test_large_files import PART, Kill, Open
from tests.conftest import REPOSITORY
from tests.support.s3_front import Fault, Front

__all__ = ["home"]


@pytest.fixture
def opened() -> Open:
    return Front


@pytest.fixture
def killed_after() -> Kill:
    return kill


def kill(parts: int, front: Front, bucket: str, piece: FilePiece) -> None:
    """A process that uploads a piece and is killed when the server has some of its parts."""
    front.add(Fault("silence", "PUT", rf"partNumber={parts + 1}\b", times=9, seconds=600))
    running = front.server
    program = f"""
from pathlib import Path
from grpo_train.backup.store import FilePiece
from tests.support.s3_servers import Server
from tests.support.stores import bucket_store
running = Server({running.kind!r}, {running.endpoint!r}, {running.ca_file!r}, Path())
store = bucket_store(running, {bucket!r}, port={front.port}, part={PART}, transfers=1)
store.write("weights", FilePiece(Path({str(piece.path)!r}), 0, {piece.size}, {piece.sha256!r}))
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    deadline = time.monotonic() + 120
    last = re.compile(rf"partNumber={parts + 1}\b")
    while not any(last.search(path) for _, path in list(front.seen)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    front.clear()
