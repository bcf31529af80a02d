"""One share of the long tests, for ``make soak``."""

from __future__ import annotations

import os
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a share of the tests in a row: ``SOAK_SHARE=2/5`` keeps the second fifth."""
    number, of = map(int, os.environ.get("SOAK_SHARE", "1/1").split("/"))
    items[:] = items[len(items) * (number - 1) // of : len(items) * number // of]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A part whose tests were all skipped has not passed."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter.stats.get("skipped") and not reporter.stats.get("passed") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
