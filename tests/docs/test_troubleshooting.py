"""docs/troubleshooting.md: every code has an entry, and every message that it quotes is one of the program's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from scripts.words import ROOMS, strings_of
from tests.support.engine import REPOSITORY

PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]


@lru_cache(maxsize=1)
def trees() -> list[ast.Module]:
    files = (file for room in ROOMS for file in sorted((REPOSITORY / room).rglob("*.py")))
    return [ast.parse(file.read_text(encoding="utf-8")) for file in files]


@lru_cache(maxsize=1)
def program_texts() -> str:
    """All strings that a user sees, one a line; fields of f-strings are {…}."""
    return "\n".join(" ".join(text.split()) for tree in trees() for _, text in strings_of(tree))


def error_codes() -> Iterator[str]:
    """``code="…"`` of a call, ``code = "…"`` of a class, and the first argument of RemoteError."""
    for node in (node for tree in trees() for node in ast.walk(tree)):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            found = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if isinstance(node.func, ast.Name) and node.func.id == "RemoteError":
                found += node.args[:1]
        elif isinstance(node, ast.ClassDef):
            assigned = [line for line in node.body if isinstance(line, ast.Assign)]
            found = [line.value for line in assigned if ast.unparse(line.targets[0]) == "code"]
        for value in found:
            leaves = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            yield from (leaf.value for leaf in leaves if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str))


def health_codes() -> set[str]:
    tree = ast.parse((REPOSITORY / "grpo_train" / "train" / "health.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "_record"]
    return {ast.literal_eval(call.args[1]) for call in calls}


def test_every_code_has_an_entry() -> None:
    codes = {code for code in error_codes() if code} | health_codes()
    assert len(codes) > 70, "the codes are found in the sources"
    cells = {word for row in ROWS for cell in (row[0], row[-1]) for word in re.findall(r"`([a-z_]+)`", cell)}
    assert sorted(codes - cells) == []


def test_no_entry_has_a_code_that_is_gone() -> None:
    nodes = (node for tree in trees() for node in ast.walk(tree))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    entries = {code for row in ROWS if len(row) == 3 for code in re.findall(r"^`([a-z_]+)`$", row[-1])}
    assert sorted(entries - texts) == []


def quoted_messages() -> list[str]:
    """The messages in the first column, of the health warnings in the second."""
    health = health_codes()
    found = []
    for row in ROWS:
        cell = row[1] if row[0].strip("`") in health else row[0]
        message = re.match(r"`([^`]+ [^`]+)`", cell)
        if message:
            found.append(message[1])
    return found


def test_quoted_messages_are_the_programs() -> None:
    """Words in CAPITALS stand for a field, or for themselves."""
    messages = quoted_messages()
    assert len(messages) > 180
    vague, gone = [], []
    for message in messages:
        fixed = re.split(r"\$?(?<![A-Za-z])[A-Z][A-Z.]*\b(?: %)?", message)
        if sum(len(part) for part in fixed) < 8:
            vague.append(message)  # nothing to find it by
        if not re.search("[^\n]*?".join(re.escape(part) for part in fixed), program_texts()):
            gone.append(message)
    assert (vague, gone) == ([], [])
