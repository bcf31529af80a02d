"""``tests/backup/test_repeats.py`` over connections that break, fall silent and lie. Part of ``make soak``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from grpo_train.backup.s3_requests import S3Timing
from tests.backup.conftest import home
from tests.backup.test_repeats import *  # noqa: F403
from tests.support.s3_front import Front
from tests.support.s3_servers import server

__all__ = ["home"]

QUICK = S3Timing(silence=60.0, patience=120.0, first_wait=0.01, longest_wait=0.05)


@pytest.fixture
def front() -> Iterator[Front]:
    with Front(server("rclone")) as opened:
        yield opened


@pytest.fixture
def part() -> int:
    return 5 << 20


@pytest.fixture
def waiting(request: pytest.FixtureRequest) -> dict[str, Any]:
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return {"timing": replace(QUICK, silence=2.0) if params.get("name") == "silent" else QUICK}


@pytest.fixture
def impatient(request: pytest.FixtureRequest) -> dict[str, Any]:
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    is_silent = "fault" in params and params["fault"].kind == "silence"
    return {"timing": replace(QUICK, patience=1.0, silence=0.5 if is_silent else 60.0)}
