"""The link's modules import each other in one direction, types and imports in functions included."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.support.engine import REPOSITORY


def test_the_link_has_no_circle() -> None:
    arrows = imports_of("remote")
    assert len(arrows) > 100
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(reversed(error.args[1]))) from None


def test_nine_modules_stand_outside_the_links_folders() -> None:
    assert len([file for file in (REPOSITORY / "remote").glob("*.py") if file.name != "__init__.py"]) <= 9


def imports_of(package: str) -> dict[str, set[str]]:
    """Each module of a package, and those of the package that it imports anywhere in its text."""
    files = {_module(file): file for file in (REPOSITORY / package).rglob("*.py")}
    return {name: _imported(name, file, set(files)) for name, file in files.items()}


def _module(file: Path) -> str:
    parts = file.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, file: Path, modules: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: a relative import"
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= below
            if below - modules:  # names of the module itself
                found.add(node.module or "")
    return (found & modules) - {name}
