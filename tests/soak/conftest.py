"""One share of the long tests, for ``make soak``."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a share of the tests in a row: ``SOAK_SHARE=2/5`` keeps the second fifth."""
    number, of = map(int, os.environ.get("SOAK_SHARE", "1/1").split("/"))
    items[:] = items[len(items) * (number - 1) // of : len(items) * number // of]
