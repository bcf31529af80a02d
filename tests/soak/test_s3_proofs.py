"""Damage, lies and lost answers of a store as in ``tests/backup``, but on the wire. Part of ``make soak``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backup.conftest import home
from tests.backup.test_proofs import *  # noqa: F403
from tests.backup.test_snapshots_in_s3 import (
    test_lost_connection_leaves_no_complete_snapshot,
    test_trouble_on_the_way_is_found_and_repeated,
)
from tests.support.s3_front import Front
from tests.support.s3_servers import server

__all__ = [
    "home", "test_lost_connection_leaves_no_complete_snapshot", "test_trouble_on_the_way_is_found_and_repeated",
]  # fmt: skip


@pytest.fixture
def front() -> Iterator[Front]:
    with Front(server("moto")) as opened:
        yield opened
