"""A trial of the corpus in another process, as another user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.conftest import REPOSITORY

NOBODY = 65534
AS_ROOT = [sys.executable, "-m", "tests.sandbox.hostile.identity", "0"]
AS_NOBODY = [*AS_ROOT[:-1], str(NOBODY)]


def trial(user: list[str], *options: str) -> dict[str, Any]:
    """Result of a trial; ``user`` is the command that becomes the user, or nothing."""
    command = [*user, sys.executable, "-m", "tests.sandbox.hostile.trial", *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=500,
                          env={**os.environ, "TMPDIR": "/tmp"})  # fmt: skip
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
