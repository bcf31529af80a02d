"""The rows of docs/ssh.md, in its order."""

from __future__ import annotations

from tests.support import ssh_box_cases, ssh_laptop_cases

CASES = [*ssh_laptop_cases.CASES, *ssh_box_cases.CASES]
