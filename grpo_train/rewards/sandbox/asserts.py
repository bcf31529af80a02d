"""Splits a data set's tests in two: what the program computes, and what is made of it outside.

``assert f(2) == 4`` becomes "evaluate ``f(2)``", for the program's process, and "is it 4?", for the parent: the 4 never
enters that process. In general every use of a name that the solution must define (a call, an attribute, the name
itself) is lifted out and stands in the rest as a placeholder. A rest that compares one placeholder with a literal is
judged in the parent; any other one (``math.isclose(f(2), 1.4, rel_tol=0.01)``) in an interpreter of its own.

Only text of the data set is parsed here, never text of a model.
"""

from __future__ import annotations

import ast
import builtins
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo_train.rewards.sandbox.results import UnsupportedTest

PLACEHOLDER = "value_{}_of_the_program"
BUILTINS = frozenset(dir(builtins))
SINGLETONS = (None, True, False)


@dataclass(frozen=True)
class Check:
    """One assert without the program's part."""

    wanted: tuple[int, ...]
    """The lifted expressions that it is about, by index."""
    code: str
    """The rest, with placeholders."""
    modules: tuple[str, ...]
    """What of the standard library the rest names."""
    relation: str
    """How the parent judges it: ``true``, ``false``, ``equal``, ``unequal``, ``is``, ``is_not``; ``judge``: not
    there."""
    expected: Any = None
    """What the one value is compared with."""


@dataclass(frozen=True)
class TestPlan:
    """A data set's tests, split."""

    __test__ = False  # pytest: not a test

    steps: tuple[tuple[tuple[int | None, str], ...], ...]
    """Per test what the program's process runs, in order: a statement (without index), or an expression."""
    checks: tuple[tuple[Check, ...], ...]
    """Per test what is made of the expressions' values."""


@lru_cache(maxsize=4096)
def split_tests(tests: tuple[str, ...]) -> TestPlan:
    """The plan for these tests. Raises :class:`UnsupportedTest`, which names the test."""
    steps, checks, index = [], [], 0
    for test in tests:
        own_steps: list[tuple[int | None, str]] = []
        own_checks = []
        try:
            body = ast.parse(test).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnsupportedTest(f"a test that is not Python ({error}): {test[:200]!r}") from None
        for statement in body:
            if not isinstance(statement, ast.Assert):
                if any(isinstance(inner, ast.Assert) for inner in ast.walk(statement)):
                    raise UnsupportedTest(f"an assert inside another statement: {test[:200]!r}")
                own_steps.append((None, ast.unparse(statement)))
                continue
            lifter = _Lifter(statement.test, index, test)
            rest = lifter.rest
            own_steps += [(index + at, code) for at, code in enumerate(lifter.lifted)]
            own_checks.append(_check(rest, tuple(range(index, index + len(lifter.lifted)))))
            index += len(lifter.lifted)
        if not own_checks:
            raise UnsupportedTest(f"a test without an assert: {test[:200]!r}")
        steps.append(tuple(own_steps))
        checks.append(tuple(own_checks))
    return TestPlan(tuple(steps), tuple(checks))


class _Lifter(ast.NodeTransformer):
    """Takes what needs the solution out of one asserted expression."""

    def __init__(self, asserted: ast.expr, first: int, test: str) -> None:
        self.first = first
        self.test = test
        self.lifted: list[str] = []
        self.bound = {inner.id for inner in ast.walk(asserted)
                      if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)}  # fmt: skip
        self.bound |= {inner.arg for inner in ast.walk(asserted) if isinstance(inner, ast.arg)}
        # ``assert sum(10, 15) == 6``: where no other name is called, the solution redefines a built-in one.
        self.redefined = not any(self._of_solution(inner) for inner in ast.walk(asserted))
        self.rest: ast.expr = self.visit(asserted)
        if not self.lifted:
            raise UnsupportedTest(f"an assert that uses nothing of the solution: {test[:200]!r}")

    def _of_solution(self, node: ast.AST, called: bool = False) -> bool:
        """Is this an expression that starts from a name that the solution defines?"""
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            called = isinstance(node, ast.Call)
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name) or node.id in self.bound:
            return False
        if node.id in BUILTINS:
            return False
        return called or node.id not in sys.stdlib_module_names

    def visit(self, node: ast.AST) -> Any:
        redefined = self.redefined and isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if not (redefined or self._of_solution(node)):
            return self.generic_visit(node)
        inner = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)}
        own = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load)}
        own |= {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)}
        if inner & self.bound - own:
            raise UnsupportedTest(f"a call that depends on a loop variable: {self.test[:200]!r}")
        self.lifted.append(ast.unparse(node))
        return ast.Name(PLACEHOLDER.format(self.first + len(self.lifted) - 1), ast.Load())


def _check(rest: ast.expr, wanted: tuple[int, ...]) -> Check:
    names = {inner.id for inner in ast.walk(rest) if isinstance(inner, ast.Name)}
    modules = tuple(sorted(name for name in names - BUILTINS if name in sys.stdlib_module_names))
    relation, expected = "judge", None
    if isinstance(rest, ast.Name):
        relation = "true"
    elif isinstance(rest, ast.UnaryOp) and isinstance(rest.op, ast.Not) and isinstance(rest.operand, ast.Name):
        relation = "false"
    elif isinstance(rest, ast.Compare) and len(rest.ops) == 1:
        left, right = rest.left, rest.comparators[0]
        if isinstance(right, ast.Name) and not isinstance(left, ast.Name):
            left, right = right, left
        names_of = {ast.Eq: "equal", ast.NotEq: "unequal", ast.Is: "is", ast.IsNot: "is_not"}
        relation = names_of.get(type(rest.ops[0]), "judge") if isinstance(left, ast.Name) else "judge"
        if relation != "judge":
            try:
                expected = ast.literal_eval(right)
            except (ValueError, TypeError, RecursionError, MemoryError):
                relation = "judge"
        if relation in ("is", "is_not") and not any(expected is one for one in SINGLETONS):
            relation = "judge"
    return Check(wanted, ast.unparse(rest), modules, relation, expected)


def holds(check: Check, value: Any) -> bool:
    """Is the check true of this value? For every relation but ``judge``; both sides are built-in types."""
    if check.relation == "true":
        return bool(value)
    if check.relation == "false":
        return not value
    if check.relation == "is":
        return value is check.expected
    if check.relation == "is_not":
        return value is not check.expected
    return bool(value == check.expected) is (check.relation == "equal")
