"""Refusals of a store as in ``tests/backup``, but on the wire. Part of ``make soak``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backup.conftest import home
from tests.backup.test_commands_over_s3 import test_a_wait_is_announced_with_its_cause
from tests.backup.test_refusals import (
    store,
    test_a_missing_right_is_found_at_opening,
    test_a_refusal_is_named_and_not_repeated,
    test_a_wrong_clock_is_measured_by_the_store_s,
    test_ages_are_from_the_store_s_clock,
    test_the_right_region_is_named,
)
from tests.support.s3_front import Front
from tests.support.s3_servers import server

__all__ = [
    "home", "store", "test_a_missing_right_is_found_at_opening", "test_a_refusal_is_named_and_not_repeated",
    "test_a_wait_is_announced_with_its_cause", "test_a_wrong_clock_is_measured_by_the_store_s",
    "test_ages_are_from_the_store_s_clock", "test_the_right_region_is_named",
]  # fmt: skip


@pytest.fixture
def front() -> Iterator[Front]:
    with Front(server("rclone")) as opened:
        yield opened
