"""Figures of the source tree, by package: ``python scripts/house.py``. Standard library only.

Files and lines; statements, and the share of lines that are comments or docstrings; modules at the top; circles of
imports; class names that are defined twice; files under 40 lines, without ``__init__`` and ``__main__``.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("grpo_tui", "remote", "grpo_train")
SHORT = 40


def files_of(package: str) -> dict[str, Path]:
    """Module name to file."""
    found = {}
    for file in sorted((REPOSITORY / package).rglob("*.py")):
        name = ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file
    return found


def imports_of(package: str) -> dict[str, set[str]]:
    """What each module of a package imports of it, wherever the statement is."""
    files, found = files_of(package), {}
    for name, file in files.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                if node.level:
                    raise ValueError(f"{name}: a relative import; write 'from {package}.… import …'")
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


def loose_in(package: str) -> list[str]:
    """Modules at the top of a package, without ``__init__`` and ``__main__``."""
    return sorted(file.stem for file in (REPOSITORY / package).glob("[!_]*.py"))


def doubled_classes(package: str) -> list[str]:
    """Names of classes that several modules define."""
    return sorted(name for name, times in _defined(package, ast.ClassDef).items() if times > 1)


def doubled_functions(package: str, tables: Collection[str] = ()) -> list[str]:
    """Names of public functions that several modules define, in other folders than ``tables``."""
    count = _defined(package, ast.FunctionDef, ast.AsyncFunctionDef, tables=tables)
    return sorted(name for name, times in count.items() if times > 1 and not name.startswith("_"))


def shared_classes() -> list[str]:
    """Names of public classes that several packages define."""
    count = Counter(name for package in PACKAGES for name in _defined(package, ast.ClassDef))
    return sorted(name for name, times in count.items() if times > 1 and not name.startswith("_"))


def _defined(package: str, *kinds: type[ast.stmt], tables: Collection[str] = ()) -> Counter[str]:
    """How many modules define a name."""
    return Counter(
        str(node.name)  # type: ignore[attr-defined]
        for file in files_of(package).values()
        if str(file.parent.relative_to(REPOSITORY)) not in tables
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, kinds)
    )


def words_in(text: str) -> int:
    """Lines of a file that are comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            lines.add(token.start[0])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def figures(package: str) -> str:
    """One paragraph."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in files_of(package).items()}
    lines = sum(text.count("\n") for text in texts.values())
    statements = sum(isinstance(node, ast.stmt) for text in texts.values() for node in ast.walk(ast.parse(text)))
    short = [
        name
        for name, file in files_of(package).items()
        if not file.stem.startswith("__") and texts[name].count("\n") < SHORT
    ]
    circle, doubled, loose = circle_in(package), doubled_classes(package), loose_in(package)
    return "\n".join(
        [
            f"{package}: {len(texts)} files, {lines:,} lines, {statements:,} statements, "
            f"{sum(map(words_in, texts.values())) / lines:.0%} comments and docstrings",
            f"  at the top: {len(loose)} ({' '.join(loose)})",
            f"  circles: {' → '.join(circle) or 'none'}",
            f"  class names defined twice: {' '.join(doubled) or 'none'}",
            f"  under {SHORT} lines: {len(short)} ({' '.join(short)})",
        ]
    )


if __name__ == "__main__":
    for each in PACKAGES:
        print(figures(each))
