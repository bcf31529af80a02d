"""Every import of this project's own modules, in product, tests, soak, bench and scripts, finds what it names."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support.engine import REPOSITORY

OWN = ("grpo_train", "remote", "grpo_tui", "tests")


def file_of(module: str) -> Path | None:
    """The file of a module or package; a folder without ``__init__.py``; None where there is neither."""
    place = REPOSITORY.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py", place) if file.exists()), None)


@cache
def names_in(file: Path) -> frozenset[str]:
    """The names that a module has at its top, in conditions and ``try``, too."""
    if file.is_dir():
        return frozenset()
    found: set[str] = set()
    stack: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while stack:
        for node in ast.iter_child_nodes(stack.pop()):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= {(each.asname or each.name).partition(".")[0] for each in node.names}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            else:
                stack.append(node)
    return frozenset(found)


def test_imports_find_what_they_name() -> None:
    wrong = []
    for file in sorted(path for folder in (*OWN, "scripts") for path in (REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in OWN:
                continue
            module = str(node.module)
            place = file_of(module)
            names = names_in(place) if place else frozenset()
            for each in node.names:
                if each.name != "*" and not {each.name, "__getattr__"} & names and not file_of(f"{module}.{each.name}"):
                    wrong.append(f"{file.relative_to(REPOSITORY)}:{node.lineno}: {module} has no {each.name}")
    assert wrong == []
