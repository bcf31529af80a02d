"""The mounted file systems of this machine (proc(5), ``/proc/self/mountinfo``). Standard library only."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount."""

    device: str
    """``MAJOR:MINOR``."""
    point: str
    kind: str
    """Type of the file system, e.g. ``ext4`` or ``nfs4``."""
    source: str
    """What is mounted, e.g. ``/dev/sda1`` or ``server:/export``."""


def read_mounts() -> list[Mount]:
    """Every mount, a later one over an earlier one at the same point; [] on a machine without ``/proc``."""
    try:
        lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        fields, _, rest = line.partition(" - ")
        _, _, device, _, point, *_ = fields.split(" ")
        kind, source, *_ = [*rest.split(" "), "", ""]
        found.append(Mount(device, _unescaped(point), kind, _unescaped(source)))
    return found


def mount_of(path: Path) -> Mount | None:
    """The mount that a path is on, or will be; None where unknown."""
    mounts = {mount.point: mount for mount in read_mounts()}
    real = Path(os.path.realpath(path))
    return next((mounts[str(place)] for place in (real, *real.parents) if str(place) in mounts), None)


def _unescaped(text: str) -> str:
    """Spaces, tabs, newlines and backslashes are octal there."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
