"""Every row of docs/ssh.md on its own. Part of ``make soak``."""

from __future__ import annotations

import pytest

from tests.link.test_ssh_configurations import assert_documented
from tests.remote.conftest import _own_directories
from tests.support.ssh_case import Case
from tests.support.ssh_cases import CASES

__all__ = ["_own_directories"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_configuration(case: Case) -> None:
    assert_documented(case)
