"""docs/ssh.md is true: where ``ssh NAME`` runs a command, the link connects, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.boxes import Box
from remote.transports.choice import choose
from tests.support.ssh_case import Case
from tests.support.ssh_cases import CASES
from tests.support.ssh_lab import Row
from tests.support.ssh_table import cell, line, page, run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ssh.md").read_text(encoding="utf-8")
COMMAND = "run: python -m tests.support.ssh_table > docs/ssh.md"


def _documented(case: Case) -> str:
    (found,) = [text for text in PAGE.splitlines() if text.startswith(f"| {case.name} | ")]
    return found


OPTIONS = [case for case in CASES if case.option]


@pytest.mark.parametrize("case", [case for case in CASES if case not in OPTIONS], ids=lambda case: case.name)
def test_a_configuration(case: Case) -> None:
    assert_documented(case)


def test_plain_options_together() -> None:
    """``tests/soak/test_ssh_configurations.py`` has each alone."""
    assert {_documented(case).replace(case.name, "", 1)[:14] for case in OPTIONS} == {"|  | yes | yes"}
    lines = [case.option for case in OPTIONS]
    together = Case("", "", lambda lab: Row(lab.config(lab.server(), *lines)))
    assert all(outcome.connected for outcome in run(together, "openssh"))


def assert_documented(case: Case) -> None:
    if reason := case.missing():
        pytest.skip(reason)
    documented = _documented(case)
    _, _, ssh_cell, _, paramiko_cell, _ = (part.strip() for part in documented.split("|", 5))
    differs = paramiko_cell.split()[0].rstrip(":") != ssh_cell.split()[0]  # else test_ssh.py covers it
    ssh, openssh, *paramiko = run(case, "openssh", *(["paramiko"] if differs else []))
    assert openssh.connected == ssh.connected, openssh.message or ssh.message
    if paramiko:
        assert line(case, ssh, openssh, paramiko[0]) == documented, COMMAND
    assert documented.startswith(f"| {case.name} | {cell(ssh)} | {cell(openssh)} | "), COMMAND


def test_the_page_has_every_row_once() -> None:
    assert page({(case.group, case.name): _documented(case) for case in CASES}) == PAGE, COMMAND


def test_auto_is_openssh_here() -> None:
    assert choose(Box("a", host="h"))[0] == "openssh"
