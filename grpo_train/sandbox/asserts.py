"""Split dataset tests in two: the program's part, and the check of its values outside.

``assert f(2) == 4`` becomes "evaluate ``f(2)``" for the program's process and "is it 4?" for the parent: the 4 never
enters that process. In general, every use of a name that the solution must define (a call, an attribute, the name
itself) is lifted out and replaced by a placeholder in the check. A check that compares one placeholder with a literal
is judged in the parent; any other (``math.isclose(f(2), 1.4, rel_tol=0.01)``) in a separate interpreter.

A check may use the built-in names and modules listed below and the dataset's own imports of those modules. Anything
else belongs to the program: ``eval(f(2)) == 3`` lifts the whole call, since it runs the program's text.

Only the dataset's text is parsed here, never text that a model wrote.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from grpo_train.sandbox.results import UnsupportedTest
from grpo_train.sandbox.syntax import parse_program

PLACEHOLDER = "value_{}_of_the_program"
SINGLETONS = (None, True, False)
BUILTINS = {
    "abs", "all", "any", "bool", "bytearray", "bytes", "chr", "complex", "dict", "divmod", "enumerate",
    "filter", "float", "frozenset", "hash", "int", "isinstance", "len", "list", "map", "max", "min", "ord",
    "pow", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip",
}  # fmt: skip
MODULES = {
    "ast", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "json", "math", "numbers", "operator", "re", "statistics", "string", "sys",
}  # fmt: skip
MODULES_WHEN_IMPORTED = MODULES | {
    "base64", "binascii", "calendar", "difflib", "hashlib", "html", "struct", "textwrap", "unicodedata", "unittest",
    "zlib",
}  # fmt: skip
"""Trusted only if the dataset imports them."""
DATA_METHODS = {
    "__contains__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "endswith", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "isdisjoint", "isidentifier", "islower", "isnumeric", "isprintable", "isspace",
    "issubset", "issuperset", "istitle", "isupper", "startswith",
}  # fmt: skip
"""Predicates of plain data. On a value that the solution returned, they belong to the check."""
USUAL_IMPORTS = {
    name: f"from {module} import {name}"
    for module, names in {
        "collections": "Counter OrderedDict defaultdict deque namedtuple",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "math": "ceil comb factorial floor gcd inf isclose isnan nan pi sqrt",
    }.items()
    for name in names.split()
}
"""Names that tests use without importing them; the solution is expected to import them, too."""


@dataclass(frozen=True)
class AssertCheck:
    """The parent's part of one assert."""

    wanted: tuple[int, ...]
    """Indices of the lifted expressions."""
    code: str
    """Source of the condition, with placeholders."""
    imports: tuple[str, ...]
    """Import statements (standard library) that ``code`` needs."""
    relation: str
    """How the parent judges it: ``true``, ``false``, ``equal``, ``unequal``, ``is`` or ``is_not``; ``judge``: in a
    separate interpreter."""
    expected: Any = None
    """Expected value of a comparison."""


@dataclass(frozen=True)
class TestPlan:
    """Split tests."""

    __test__ = False  # for pytest

    steps: tuple[tuple[tuple[int | None, str], ...], ...]
    """Per test, what the program's process runs: (None, statement) or (index, expression)."""
    checks: tuple[tuple[AssertCheck, ...], ...]
    """Per test, the checks of the expressions' values."""
    problems: tuple[str, ...]
    """Per test, why it cannot be split (it then has no steps and no checks), or ""."""


def split_tests(tests: tuple[str, ...], setup: str = "") -> TestPlan:
    """Split ``tests``, which run after ``setup``. Raises :class:`UnsupportedTest` with the test's text."""
    _parsed(setup)
    plan = plan_tests(tests, setup)
    if problem := next(filter(None, plan.problems), ""):
        raise UnsupportedTest(problem)
    return plan


@lru_cache(maxsize=4096)
def plan_tests(tests: tuple[str, ...], setup: str = "") -> TestPlan:
    """The same, but problems of a test are part of the plan. An invalid setup fails when it runs."""
    trees, problems = [], []
    for text in (setup, *tests):  # parse duplicates separately: splitting changes the tree
        try:
            tree, problem = _parsed(text), ""
        except UnsupportedTest as error:
            tree, problem = ast.Module([], []), str(error)
        trees.append(tree)
        problems.append(problem)
    names = _Names(trees)
    steps, checks, index = [], [], 0
    for number, test in enumerate(tests, 1):
        split = _SplitTest()
        try:
            split = _SplitTest() if problems[number] else _split(test, trees[number], names, index)
        except UnsupportedTest as error:
            problems[number] = str(error)
        steps.append(tuple(split.steps))
        checks.append(tuple(split.checks))
        index += sum(len(check.wanted) for check in split.checks)
    return TestPlan(tuple(steps), tuple(checks), tuple(problems[1:]))


@dataclass
class _SplitTest:
    """Steps and checks of one test."""

    steps: list[tuple[int | None, str]] = field(default_factory=list)
    checks: list[AssertCheck] = field(default_factory=list)


def _split(test: str, tree: ast.Module, names: _Names, index: int) -> _SplitTest:
    """Split one test, numbering its expressions from ``index``. Raises :class:`UnsupportedTest`."""
    split = _SplitTest()
    for statement in tree.body:
        if not isinstance(statement, ast.Assert):
            if any(isinstance(inner, ast.Assert) for inner in ast.walk(statement)):
                raise UnsupportedTest(f"an assert inside another statement: {test[:200]!r}")
            split.steps.append((None, ast.unparse(statement)))
            continue
        lifter = _Lifter(statement.test, names, index, test)
        split.steps += list(enumerate(lifter.lifted, index))
        split.checks.append(_check(lifter.condition, names, tuple(range(index, index + len(lifter.lifted)))))
        index += len(lifter.lifted)
    if not split.checks:
        raise UnsupportedTest(f"a test without an assert: {test[:200]!r}")
    return split


def _parsed(text: str) -> ast.Module:
    try:
        return parse_program(text)
    except SyntaxError as error:
        raise UnsupportedTest(f"invalid Python ({error}): {text[:200]!r}") from None


class _Names:
    """Meaning of the names in the dataset's text."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.imports = dict(USUAL_IMPORTS)
        self.helpers: set[str] = set()
        """Functions that the dataset defines. They run in the program's process, so they must not decide a verdict."""
        for statement in (statement for tree in trees for statement in tree.body):
            if isinstance(statement, ast.FunctionDef):
                self.helpers.add(statement.name)
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Lambda):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                self.helpers |= {target.id for target in targets if isinstance(target, ast.Name)}
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                self._imported(statement)

    def _imported(self, statement: ast.Import | ast.ImportFrom) -> None:
        for alias in statement.names:
            module = statement.module if isinstance(statement, ast.ImportFrom) else alias.name
            if module is not None and module.partition(".")[0] in MODULES_WHEN_IMPORTED and alias.name != "*":
                single: ast.stmt = ast.Import([alias])
                if isinstance(statement, ast.ImportFrom):
                    single = ast.ImportFrom(module, [alias], 0)
                self.imports[alias.asname or alias.name.partition(".")[0]] = ast.unparse(single)

    def of_solution(self, name: str, called: bool) -> bool:
        """Whether the solution must define this name; ``called``: the test calls the name itself."""
        if name in BUILTINS or name in self.imports:
            return False
        return called or name not in MODULES

    def import_of(self, name: str) -> str | None:
        """Import statement that a check with this name needs; None if it needs none."""
        return self.imports.get(name, f"import {name}" if name in MODULES else None)


class _Lifter(ast.NodeTransformer):
    """Lifts the parts that need the solution out of one asserted expression."""

    def __init__(self, asserted: ast.expr, names: _Names, first: int, test: str) -> None:
        self.names = names
        self.first = first
        self.test = test
        self.lifted: list[str] = []
        self.bound = {inner.id for inner in ast.walk(asserted)
                      if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)}  # fmt: skip
        self.bound |= {inner.arg for inner in ast.walk(asserted) if isinstance(inner, ast.arg)}
        # ``assert sum(10, 15) == 6``: if no other name is called, the solution redefines a built-in.
        self.redefined = not any(self._of_solution(inner) for inner in ast.walk(asserted))
        self.condition: ast.expr = self.visit(asserted)
        if not self.lifted:
            raise UnsupportedTest(f"an assert that does not use the solution: {test[:200]!r}")

    def _root(self, node: ast.AST) -> tuple[str | None, bool]:
        """First name in a chain of calls, attributes and items, and whether that name itself is called."""
        called = False
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            called = isinstance(node, ast.Call)
            node = node.func if isinstance(node, ast.Call) else node.value
        return (node.id if isinstance(node, ast.Name) and node.id not in self.bound else None), called

    def _of_solution(self, node: ast.AST) -> bool:
        name, called = self._root(node)
        return name is not None and self.names.of_solution(name, called)

    def _judges_data(self, node: ast.Call) -> bool:
        """Whether this is like ``f(2).startswith("a")``. A capitalized name may be a class with such a method."""
        if not isinstance(node.func, ast.Attribute):
            return False
        name, called = self._root(node.func.value)
        return node.func.attr in DATA_METHODS and called and name is not None and not name[:1].isupper()

    def visit(self, node: ast.AST) -> Any:
        redefined = self.redefined and isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if not (redefined or self._of_solution(node)):
            return self.generic_visit(node)
        if isinstance(node, ast.Call) and self._judges_data(node):
            self.generic_visit(node.func)  # not ``visit``, which would lift the method itself
            node.args = [self.visit(argument) for argument in node.args]
            node.keywords = [self.visit(keyword) for keyword in node.keywords]
            return node
        inner = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)}
        own = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)}
        own |= {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)}
        if inner & self.bound - own:
            raise UnsupportedTest(f"a call that depends on a loop variable: {self.test[:200]!r}")
        if self._root(node)[0] in self.names.helpers:
            raise UnsupportedTest(f"a verdict by a helper that runs in the program's process: {self.test[:200]!r}")
        self.lifted.append(ast.unparse(node))
        return ast.Name(PLACEHOLDER.format(self.first + len(self.lifted) - 1), ast.Load())


def _check(condition: ast.expr, names: _Names, wanted: tuple[int, ...]) -> AssertCheck:
    named = sorted({inner.id for inner in ast.walk(condition) if isinstance(inner, ast.Name)})
    imports = tuple(found for name in named if (found := names.import_of(name)) is not None)
    relation, expected = "judge", None
    if isinstance(condition, ast.Name):
        relation = "true"
    elif (
        isinstance(condition, ast.UnaryOp)
        and isinstance(condition.op, ast.Not)
        and isinstance(condition.operand, ast.Name)
    ):
        relation = "false"
    elif isinstance(condition, ast.Compare) and len(condition.ops) == 1:
        left, right = condition.left, condition.comparators[0]
        if isinstance(right, ast.Name) and not isinstance(left, ast.Name):
            left, right = right, left
        names_of = {ast.Eq: "equal", ast.NotEq: "unequal", ast.Is: "is", ast.IsNot: "is_not"}
        relation = names_of.get(type(condition.ops[0]), "judge") if isinstance(left, ast.Name) else "judge"
        if relation != "judge":
            try:
                expected = ast.literal_eval(right)
            except (ValueError, TypeError, RecursionError, MemoryError):
                relation = "judge"
        if relation in ("is", "is_not") and not any(expected is one for one in SINGLETONS):
            relation = "judge"
    return AssertCheck(wanted, ast.unparse(condition), imports, relation, expected)


def holds(check: AssertCheck, value: Any) -> bool:
    """Whether the check is true of ``value``, for every relation but ``judge``. Both sides have built-in types."""
    if check.relation == "true":
        return bool(value)
    if check.relation == "false":
        return not value
    if check.relation == "is":
        return value is check.expected
    if check.relation == "is_not":
        return value is not check.expected
    return bool(value == check.expected) is (check.relation == "equal")
