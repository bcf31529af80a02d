"""Known host keys for ssh: ours under the box's name, rewritten to the name under which ssh looks the box up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """A line of a known_hosts file, under another name."""

    file: Path
    number: int
    text: str
    marked: bool
    """``@revoked`` or ``@cert-authority``."""


def renamed(file: Path, name: str, lookup: str) -> list[Line]:
    """The lines for ``name``, with ``lookup`` instead."""
    found = []
    for number, text in enumerate(_lines(file), start=1):
        fields = text.split()
        marker = [fields.pop(0)] if fields and fields[0].startswith("@") else []
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        names = fields[0].split(",")
        if name in names or (marker and "*" in names):
            found.append(Line(file, number, " ".join([*marker, lookup, *fields[1:3]]), bool(marker)))
    return found


def marked(files: Iterable[Path]) -> list[Line]:
    """Every ``@revoked`` and ``@cert-authority`` line."""
    return [
        Line(file, number, text.strip(), True)
        for file in files
        for number, text in enumerate(_lines(file), start=1)
        if text.lstrip().startswith("@")
    ]


def lookup_name(host: str, port: int, alias: str = "") -> str:
    """The name under which ssh looks up a host."""
    return alias or (host.lower() if port == 22 else f"[{host.lower()}]:{port}")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
