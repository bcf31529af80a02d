"""``docs/threats.md``: every line names a test, and every test that it names exists."""

from __future__ import annotations

import ast
import re

from tests.support.engine import REPOSITORY

PAGE = (REPOSITORY / "docs" / "threats.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _tests_of(file: str) -> set[str]:
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_every_named_test_exists() -> None:
    missing = [f"{file}::{name}" for file, name in NAMED.findall(PAGE) if name not in _tests_of(file)]
    assert not missing


def test_every_line_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.endswith("| shown by |")]
    assert len(rows) > 20
    assert not [row for row in rows if not NAMED.search(row)]
