"""Imports of a package run down: no module imports itself through others, also not for a type or in a function.

A class name means one thing within a package.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.engine import REPOSITORY


def imports_of(package: str) -> dict[str, set[str]]:
    """What each module of a package imports of it, wherever the statement is."""
    files = {}
    for file in (REPOSITORY / package).rglob("*.py"):
        name = ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = file
    found = {}
    for name, file in files.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name}: a relative import"
                names = {f"{node.module}.{one.name}" for one in node.names}
                imported |= {one if one in files else str(node.module) for one in names}
        found[name] = imported & files.keys() - {name}
    return found


def circle_in(package: str) -> list[str]:
    """The modules of one circle, each imported by the next; [] without one."""
    try:
        TopologicalSorter(imports_of(package)).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


@pytest.mark.parametrize("package", ["grpo_tui", "remote"])
def test_no_circles(package: str) -> None:
    assert circle_in(package) == []


@pytest.mark.parametrize("package", ["grpo_tui", "remote"])
def test_a_class_name_means_one_thing(package: str) -> None:
    places: dict[str, list[str]] = {}
    for file in sorted((REPOSITORY / package).rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{file.relative_to(REPOSITORY)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_modules_outside_the_links_folders() -> None:
    assert len([file for file in (REPOSITORY / "remote").glob("*.py") if file.name != "__init__.py"]) <= 9
