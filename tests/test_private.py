"""The app and the link use no private names of libraries and of Python, except those in ``KNOWN``.

Found are private attributes that no file of ours sets, private names that are imported, and private names of a class of
a library that a class of ours extends.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.support.engine import REPOSITORY

OWN = ("grpo_train", "grpo_tui", "remote")
FILES = sorted(path for package in ("grpo_tui", "remote") for path in (REPOSITORY / package).rglob("*.py"))
PUBLIC = ("_", "_exit", "_replace", "_asdict")
"""Documented in spite of their form: ``os._exit`` and the methods of named tuples."""
KNOWN = {
    "app.py": {"_fatal_error"},
    "terminal.py": {"_driver"},
    "paramiko_wire.py": {
        "_channel_handler_table", "_feed", "_feed_extended", "_kex_info", "_parse_disconnect", "_parse_kex_init",
        "_read_timeout", "_really_parse_kex_init",
    },
}  # fmt: skip
"""By name of a file. Docstrings there say why."""


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def is_of_object(node: ast.Attribute) -> bool:
    """Whether it is an attribute of ``self``, ``cls`` or ``super()``."""
    of = node.value.func if isinstance(node.value, ast.Call) else node.value
    return isinstance(of, ast.Name) and of.id in ("self", "cls", "super")


def attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr))


@cache
def classes(file: Path) -> dict[str, ast.ClassDef]:
    """The classes of a file by name, nested ones too."""
    return {node.name: node for node in ast.walk(parsed(file)) if isinstance(node, ast.ClassDef)}


@cache
def members(node: ast.ClassDef) -> set[str]:
    """Private names that a class defines, and private attributes that its methods set."""
    found = {each.attr for each in attributes(node) if isinstance(each.ctx, ast.Store) and is_of_object(each)}
    for each in node.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(each.name)
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return set(filter(is_private, found))


@cache
def ours() -> frozenset[str]:
    """Private names that any file of ours defines."""
    found = {name for file in FILES for node in classes(file).values() for name in members(node)}
    for file in FILES:
        for each in parsed(file).body:
            found |= {each.name} if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else set()
            found |= {node.id for node in ast.walk(each) if isinstance(node, ast.Name) and isinstance(each, ast.Assign)}
    return frozenset(found)


@cache
def of_library(kind: type) -> frozenset[str]:
    """Private names of a class of a library."""
    found = set(filter(is_private, vars(kind)))
    file = Path(getattr(sys.modules[kind.__module__], "__file__", "") or "")
    if file.suffix == ".py" and kind.__name__ in classes(file):
        found |= members(classes(file)[kind.__name__])
    return frozenset(found)


def extended(file: Path) -> set[str]:
    """Private names of classes of libraries that the classes of a file use or define anew."""
    module = import_module(".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"))
    found: set[str] = set()
    for name, node in classes(file).items():
        kind = getattr(module, name, None)
        if not isinstance(kind, type):
            continue
        theirs = {
            each for base in kind.__mro__ if base.__module__.partition(".")[0] not in OWN for each in of_library(base)
        }
        found |= theirs & (members(node) | {each.attr for each in attributes(node) if is_of_object(each)})
    return found


def test_no_private_name_of_others_is_used() -> None:
    found = {}
    for file in FILES:
        names = {node.attr for node in attributes(parsed(file)) if not is_of_object(node) and node.attr not in ours()}
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in OWN:
                names |= {each.name for each in node.names if is_private(each.name)}
        names = (names | extended(file)) - KNOWN.get(file.name, set())
        if names:
            found[str(file.relative_to(REPOSITORY))] = sorted(names)
    assert found == {}
