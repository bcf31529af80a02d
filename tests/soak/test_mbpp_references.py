"""Every reference solution of MBPP passes its tests in the sandbox, and fails an altered one. Part of ``make soak``."""

from __future__ import annotations

from tests.sandbox.test_run_tests import MBPP, wrong_verdicts


def test_mbpp_reference_solutions() -> None:
    assert wrong_verdicts(MBPP) == []
