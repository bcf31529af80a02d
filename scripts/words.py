"""Print every string a user sees: help, messages, labels, screens. One a line, with its place, for a reader to review.

    make words | less

Strings come from the syntax trees: messages, labels of actions and widgets, docstrings of commands and actions,
and those of config/sections/, which the documentation of the configuration is generated from. Markup and format
fields stay.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("grpo_train", "remote", "grpo_tui")
HIDDEN = ("encode", "sha256", "getattr", "startswith", "endswith", "split", "join", "get", "compile", "replace", "open")
"""Calls whose string arguments no user sees."""
LABELLED = ("Action", "Button", "Checkbox", "Field", "Label", "Static")
"""Calls whose one-word arguments are labels."""


def main() -> int:
    repository = Path(__file__).resolve().parent.parent
    for room in ROOMS:
        for file in sorted((repository / room).rglob("*.py")):
            documented = file.parent.name == "sections"
            for line, text in strings_of(ast.parse(file.read_text(encoding="utf-8")), documented):
                print(f"{file.relative_to(repository)}:{line}: {text}")
    return 0


def strings_of(tree: ast.AST, documented: bool = False) -> Iterator[tuple[int, str]]:
    """Line and text of each string that a user sees; ``documented``: docstrings of classes and fields, too."""
    skipped = {id(unseen) for node in ast.walk(tree) for unseen in _unseen(node, documented)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_command(node):
            yield node.lineno, " ".join((ast.get_docstring(node) or "").split())
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_action(node):
            yield node.lineno, (ast.get_docstring(node) or "").partition("\n")[0]
        if isinstance(node, ast.Call) and _name(node) in LABELLED:
            words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, word) for word in words if isinstance(word, str) and " " not in word)
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values]
            text = "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if _reads_as_words(text):
            yield node.lineno, " ".join(text.split())


def _unseen(node: ast.AST, documented: bool) -> Iterator[ast.AST]:
    """Constants that no user sees: docstrings, parts of f-strings, arguments of technical calls, annotations."""
    docstrings = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, *(() if documented else (ast.ClassDef,)))
    if isinstance(node, docstrings):
        for statement in node.body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value
    if isinstance(node, ast.JoinedStr):
        yield from node.values
    if isinstance(node, ast.Call) and _name(node) in HIDDEN:
        yield from node.args
    if isinstance(node, ast.AnnAssign):
        yield from ast.walk(node.annotation)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    annotations = [argument.annotation for argument in node.args.args]
    return any(annotation is not None and "typer" in ast.unparse(annotation) for annotation in annotations) or any(
        "command" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def _is_action(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the first line of its docstring is the help of an action."""
    first = node.args.args[0].annotation if len(node.args.args) == 1 else None
    is_command = first is not None and ast.unparse(first) == "Desk" and not node.name.startswith("_")
    return is_command or node.name.startswith("action_")


def _reads_as_words(text: str) -> bool:
    return " " in text.strip() and any(character.isalpha() for character in text)


if __name__ == "__main__":
    sys.exit(main())
