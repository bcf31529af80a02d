"""One row of docs/ssh.md: a real server and the configuration of a laptop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.ssh_lab import Lab, Row

Build = Callable[[Lab], Row]


@dataclass(frozen=True)
class Case:
    """One row."""

    group: str
    name: str
    build: Build
    needs: str = ""
    """A program it needs, or ``root``."""
    option: str = ""
    """The line of the configuration that is its only peculiarity."""

    def missing(self) -> str:
        """Why it cannot run here, or ""."""
        if self.needs == "root":
            return "" if os.geteuid() == 0 else "needs the superuser (a mount namespace)"
        return "" if not self.needs or shutil.which(self.needs) else f"{self.needs} is not installed"


def add(cases: list[Case], group: str, name: str, needs: str = "", option: str = "") -> Callable[[Build], Build]:
    """Decorator of a function that builds a row."""

    def added(build: Build) -> Build:
        cases.append(Case(group, name, build, needs, option))
        return build

    return added
