"""Guards without an enemy: ``python scripts/guards.py [DATABASE]``, of coverage; by default that of scripts/mutants.py.

Prints every ``except`` handler and every ``suppress`` of ``grpo_train``, outside the sandbox, that no test entered and
that does not name its report; then how many there are, and ``try`` per 1,000 lines. A test entered a handler if it
executed a line of its body, and a ``suppress`` if it swallowed an exception there, which scripts/mutants.py records
beside the database: without that record it cannot be told. A guard names its report by a comment that says what was
seen to raise the error ("another account's", "removed in the meantime"), on its line, on the line above or on the first
line of its body. Reads the sources that the database is of, and needs coverage.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DATABASE = REPOSITORY / ".mutants" / "tree" / ".mutants-coverage"
SWALLOWED = ".mutants-swallowed"
RECORDER = """\
import contextlib, os, sys
seen, leave = set(), contextlib.suppress.__exit__
def __exit__(self, kind, *others):
    swallows, caller = leave(self, kind, *others), sys._getframe(1)
    place = f"{{caller.f_code.co_filename}}:{{caller.f_lineno}}"
    if swallows and place not in seen and f"{{os.sep}}grpo_train{{os.sep}}" in place:
        seen.add(place)
        with open({file!r}, "a") as record:
            record.write(place + "\\n")
    return swallows
contextlib.suppress.__exit__ = __exit__
def coverage_init(plugins, options):
    pass
"""
"""A plugin of coverage, so that it is imported in every process that coverage measures."""
Guard = tuple[int, str, range]
"""Its line; what it is, ``except`` or ``suppress``; the lines of its body."""


def guards_in(tree: ast.AST) -> Iterator[Guard]:
    """All guards of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            yield node.lineno, "except", range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("suppress", "contextlib.suppress"):
            yield node.lineno, "suppress", range(node.lineno + 1, node.lineno + 2)


def comments_in(text: str) -> set[int]:
    """The lines that have a comment for readers, and those below a whole line of it."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# fmt:", "# noqa", "# type:")):
            found |= {token.start[0], token.start[0] + token.line.lstrip().startswith("#")}
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("database", type=Path, nargs="?", default=DATABASE)
    database: Path = options.parse_args().database.resolve()
    from coverage import CoverageData

    data = CoverageData(str(database))
    data.read()
    tree, record = database.parent, database.with_name(SWALLOWED)
    swallowed = set(record.read_text().splitlines()) if record.exists() else None
    tries = lines = count = 0
    found: list[str] = []
    for file in sorted((tree / "grpo_train").rglob("*.py")):
        if "sandbox" in file.relative_to(tree).parts:
            continue
        text = file.read_text(encoding="utf-8")
        module, comments, executed = ast.parse(text), comments_in(text), set(data.lines(str(file)) or [])
        lines += text.count("\n")
        tries += sum(isinstance(node, ast.Try) for node in ast.walk(module))
        for line, kind, body in guards_in(module):
            count += 1
            entered = executed & {*body} if kind == "except" else swallowed and f"{file}:{line}" in swallowed
            if not entered and not comments & {line, body[0]}:
                unknown = kind == "suppress" and swallowed is None
                source = text.splitlines()[line - 1].strip()
                found.append(f"{file.relative_to(tree)}:{line}: {'cannot tell: ' if unknown else ''}{source}")
    print(*found, sep="\n")
    print(f"{len(found)} of {count} guards without a test or a report; {tries} try in {lines:,} lines, ", end="")
    print(f"{1000 * tries / lines:.1f} per 1,000")


if __name__ == "__main__":
    main()
