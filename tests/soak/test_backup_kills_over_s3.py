"""SIGKILL before every block of bytes that a backup, a cleanup or a prune sends to a bucket. Part of ``make soak``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backup.test_kills_over_s3 import KILLS, Bucket, bucket
from tests.support.killing import Points

__all__ = ["bucket"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kill", KILLS)
def test_every_killed_request_leaves_what_was_complete(
    bucket: Bucket, tmp_path: Path, kill: Callable[[Bucket, Path, Points], None]
) -> None:
    kill(bucket, tmp_path, range)
