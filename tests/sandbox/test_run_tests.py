"""Dataset tests on a solution: splitting, judging, and reference solutions of MBPP."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from grpo_train.sandbox import UnsupportedTest, run_tests, split_tests
from grpo_train.sandbox import grading as grading_module
from tests.support.data import data_file
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.official_data
CORES = len(os.sched_getaffinity(0))
MBPP = [json.loads(line) for line in data_file("mbpp.jsonl").open()]


def lifted(test: str) -> list[tuple[int | None, str]]:
    return list(split_tests((test,)).steps[0])


def relation(test: str) -> str:
    return split_tests((test,)).checks[0][0].relation


@pytest.mark.parametrize(
    ("test", "computed", "judged"),
    [
        ("assert f(1) == 2", ["f(1)"], "equal"),
        ("assert 2 == f(1)", ["f(1)"], "equal"),
        ("assert f(1) != 2, 'message'", ["f(1)"], "unequal"),
        ("assert f([1, 2], x={3})", ["f([1, 2], x={3})"], "true"),
        ("assert not f(1)", ["f(1)"], "false"),
        ("assert f(1) is None", ["f(1)"], "is"),
        ("assert f(1) is not True", ["f(1)"], "is_not"),
        ("assert f(1) is 2", ["f(1)"], "judge"),
        ("assert f(g(1)) == g(f(2))", ["f(g(1))", "g(f(2))"], "judge"),
        ("assert int(f(1)) == 2", ["f(1)"], "judge"),
        ("assert math.isclose(f(1), 2.0, rel_tol=0.1)", ["f(1)"], "judge"),
        ("assert f(1) == sys.getsizeof((1, 2))", ["f(1)"], "judge"),
        ("assert f(1)[0] == 2", ["f(1)[0]"], "equal"),
        ("assert Stack(3).top().value == 3", ["Stack(3).top().value"], "equal"),
        ("assert sum(10, 15) == 6", ["sum(10, 15)"], "equal"),
        ("assert f(lambda x: x + 1) == 2", ["f(lambda x: x + 1)"], "equal"),
        ("assert f([x for x in range(3)]) == {1: [2, (3, -4.5)]}", ["f([x for x in range(3)])"], "equal"),
        ("assert f(1) < 3", ["f(1)"], "judge"),
        ("assert f(1) == 2 and f(2) == 4", ["f(1)", "f(2)"], "judge"),
        ("assert all(x > 0 for x in f(3))", ["f(3)"], "judge"),
        ("assert root == 3", ["root"], "equal"),
        ("assert copy(1) == 2", ["copy(1)"], "equal"),
        ("assert sqrt(4) == 2", ["sqrt(4)"], "equal"),
        ("assert isclose(f(1), 1.5)", ["f(1)"], "judge"),
        ("assert f('aab') == Counter(a=2, b=1)", ["f('aab')"], "judge"),
        ("assert f(1).startswith('a')", ["f(1)"], "judge"),
        ("assert not f(1)[0].strip().isdigit()", ["f(1)[0].strip()"], "judge"),
        ("assert Trie('a').startswith('a')", ["Trie('a').startswith('a')"], "true"),
        ("assert t.startswith('a')", ["t.startswith('a')"], "true"),
        ("import difflib as d\nassert d.SequenceMatcher(None, f(1), 'a').ratio() > 0.9", ["f(1)"], "judge"),
        ("assert eval(f(1)) == 2", ["eval(f(1))"], "equal"),
        ("assert pickle.loads(f(1)) == 2", ["pickle.loads(f(1))"], "equal"),
        ("import math as m\nassert m.isclose(f(1), 1.5)", ["f(1)"], "judge"),
        ("from math import fabs as g\nassert g(f(1)) == 2", ["f(1)"], "judge"),
    ],
)
def test_split_into_expressions_and_check(test: str, computed: list[str], judged: str) -> None:
    assert [code for index, code in lifted(test) if index is not None] == computed
    assert relation(test) == judged


def test_steps_contain_no_expected_values() -> None:
    for row in MBPP:
        plan = split_tests(tuple(row["test_list"]))
        for test, steps in zip(row["test_list"], plan.steps, strict=True):
            assert all("==" not in code for _, code in steps), test


UNSPLITTABLE = [
    "f(1)",
    "assert 1 == 1",
    "assert (",
    "for i in range(3):\n    assert f(i) == i",
    "assert all(f(i) for i in (1, 2))",
    "def same(a, b): return a == b\nassert same(f(1), 2)",
    "same = lambda a, b: a == b\nassert same(f(1), 2)",
    "",
]


@pytest.mark.parametrize("test", UNSPLITTABLE)
def test_unsplittable_tests_are_errors(test: str) -> None:
    with pytest.raises(UnsupportedTest):
        split_tests(("assert f(1) == 1", test))


def test_unsplittable_tests_fail_alone() -> None:
    tests = [each for test in UNSPLITTABLE for each in (test, "assert f(2) == 2")]
    result = run_tests("def f(x): return x", tests)
    assert result.passed == [False, True] * len(UNSPLITTABLE)
    assert result.reason == "unsupported_test"
    assert all(reason.startswith("unsupported_test: ") for reason in result.reasons[::2])


def test_invalid_setup_fails_every_test() -> None:
    with pytest.raises(UnsupportedTest):
        split_tests(("assert f(1) == 1",), "def (")
    assert run_tests("def f(x): return x", ["assert f(1) == 1"], "def (").reason == "setup_failed"


def test_setup_helpers_must_not_judge() -> None:
    setup = "from math import isclose\ndef tree(n): return [n]\ndef same(a, b): return a == b"
    assert run_tests("def f(x): return 2.0 * x[0]", ["assert isclose(f(tree(3)), 6)"], setup).passed == [True]
    assert run_tests("def f(x): return 2 * x", ["assert same(f(1), 2)"], setup).reason == "unsupported_test"


def test_program_text_is_not_run_by_the_judge() -> None:
    forged = "def f(): return '[g.update(claimed=1) for g in [globals()]] and 2'"
    assert run_tests(forged, ["assert eval(f()) == 3", "assert eval(f()) == 2"]).passed == [False, True]


def test_duplicate_tests() -> None:
    tests = ["assert f(1) == 1", "assert f(1) == 1", "assert f(1) == 2"]
    assert run_tests("def f(x): return x", tests).passed == [True, True, False]


def test_statements_run_in_order() -> None:
    result = run_tests(
        "class Stack(list):\n    push = list.append",
        [
            "s = Stack()\ns.push(3)\nassert len(s) == 1\ns.push(4)\nassert s.pop() == 4\nassert s == [3]",
            "assert s == []",
        ],
    )
    assert result.passed == [True, False]


VALUES: list[tuple[str, bool]] = [
    ("{1, 2} == {2, 1}", True), ("(1, 'a', None) == (1, 'a', None)", True), ("1j + 2 == 2 + 1j", True),
    ("b'x' == b'x'", True), ("bytearray(b'x') == b'x'", True), ("frozenset([1]) == {1}", True), ("True == 1", True),
    ("[1] == (1,)", False), ("{'a': [1.5, {2: 3}]} == {'a': [1.5, {2: 3}]}", True), ("'1' == 1", False),
    ("10 ** 400 == 10 ** 400", True), ("-2 ** 200 == -2 ** 200", True), ("0.1 + 0.2 == 0.3", False),
    ("float('inf') == float('inf')", True), ("'\\ud800' == '\\ud800'", True), ("-0.0 == 0.0", True),
    ("__import__('collections').Counter('aab') == {'a': 2, 'b': 1}", True),
    ("__import__('collections').OrderedDict(a=1) == {'a': 1}", True),
    ("__import__('collections').namedtuple('P', 'x')(1) == (1,)", True), ("{1: 2}.keys() == {1}", True),
    ("range(3) == [0, 1, 2]", False), ("map(int, '12') == [1, 2]", False), ("(i for i in 'a') == ['a']", False),
    ("{1: 2}.values() == [2]", False), ("object() == 1", False), ("int == int", False), ("... == 1", False),
    ("__import__('fractions').Fraction(1, 2) == 0.5", True), ("__import__('fractions').Fraction(4, 2) == 2", True),
    ("__import__('fractions').Fraction(1, 3) == 1 / 3", False),
    ("__import__('fractions').Fraction(1, 2) == Fraction(2, 4)", True),
    ("[__import__('decimal').Decimal('1.50')] == [1.5]", True), ("__import__('decimal').Decimal(3) == 3", True),
    ("__import__('decimal').Decimal('0.1') == 0.1", False),
    ("__import__('decimal').Decimal('0.5') == Fraction(1, 2)", True),
    ("__import__('decimal').Decimal('NaN') == __import__('decimal').Decimal('NaN')", False),
    ("__import__('decimal').Decimal('sNaN') == 1", False),
    ("__import__('decimal').Decimal('1e999999999') == 10 ** 1000", False),
    ("__import__('fractions').Fraction(10 ** 100_000, 3) == 0.5", False),
    ("__import__('datetime').date(2020, 2, 29) == datetime.date(2020, 2, 29)", True),
    ("__import__('datetime').datetime(2020, 1, 1) == datetime.date(2020, 1, 1)", False),
    ("{'a': [__import__('datetime').timedelta(1)]} == {'a': [datetime.timedelta(hours=24)]}", True),
    ("__import__('datetime').time(1, 2) == datetime.time(1, 2)", True),
    ("__import__('collections').Counter('aab') == Counter('baa')", True),
    ("__import__('collections').Counter(a=0) == Counter()", True),
    ("__import__('collections').OrderedDict(a=1, b=2) == OrderedDict(b=2, a=1)", False),
    ("__import__('collections').OrderedDict(a=1, b=2) == {'b': 2, 'a': 1}", True),
    ("__import__('collections').defaultdict(lambda: 1 / 0, a=1) == {'a': 1}", True),
    ("[__import__('collections').deque([1])] == [deque([1])]", True),
    ("__import__('collections').deque([1]) == [1]", False), ("[range(0, 4, 2)] == [range(0, 3, 2)]", True),
    ("range(3) == range(4)", False), ("{1j, b'x', frozenset({2})} == {1j, b'x', frozenset({2})}", True),
]  # fmt: skip


def test_values_are_compared_as_plain_data() -> None:
    """The left side is the solution's value, the right side the dataset's. All in one program."""
    sides = [comparison.rpartition(" == ") for comparison, _ in VALUES]
    solution = "\n".join(f"def f{index}(): return {value}" for index, (value, _, _) in enumerate(sides))
    result = run_tests(solution, [f"assert f{index}() == {expected}" for index, (_, _, expected) in enumerate(sides)])
    found = [(comparison, passed) for (comparison, _), passed in zip(VALUES, result.passed, strict=True)]
    assert found == VALUES


JUDGED: list[tuple[str, str, bool]] = [
    ("(i for i in range(3))", "list(f()) == [0, 1, 2]", True), ("map(int, '12')", "tuple(f()) == (1, 2)", True),
    ("range(5)", "len(f()) == 5 and f()[1] == 1", True),
    ("__import__('collections').deque([1, 2])", "list(f()) == [1, 2]", True),
    ("{3: 4}.values()", "sorted(f()) == [4]", True),
    ("dict(zip('gbad', range(4))).keys()", "list(f()) == ['g', 'b', 'a', 'd']", True),
    ("dict(zip('gbad', range(4)))", "list(f().items()) == [('g', 0), ('b', 1), ('a', 2), ('d', 3)]", True),
    ("{'a': [1]}.items()", "sorted(f()) == [('a', [1])]", True), ("{'a': [1]}.items()", "f() == {'a': 1}", False),
    ("{1: 2}.items()", "f() == {(1, 2)} and f() == {1: 2}.items() and len(f()) == 1", True),
    ("'ab'", "f().startswith('a') and not f()[1:].isdigit()", True),
    ("type('S', (str,), {'startswith': lambda *_: True})('b')", "f().startswith('a')", False),
    ("type('I', (int,), {'__eq__': lambda *_: True})(1)", "f().__eq__(2)", False),
    ("list(range(100_000, 0, -1))", "f() == list(range(100_000, 0, -1))", True),
    ("2.0000001", "math.isclose(f(), 2, rel_tol=1e-3)", True), ("2.1", "math.isclose(f(), 2, rel_tol=1e-3)", False),
    ("'7'", "int(f()) == 7", True), ("[[iter([1])]]", "list(f()) == 1", False),
    ("map(__import__('fractions').Fraction, '12')", "list(f()) == [1, 2]", True),
    ("__import__('fractions').Fraction(1, 3)", "round(f(), 2) == Fraction(33, 100)", True),
    ("__import__('decimal').Decimal('2.50')", "str(f()) == '2.50'", True),
    ("__import__('datetime').date(2024, 2, 29)", "f() > datetime.date(2024, 2, 28)", True),
    ("__import__('collections').deque([3, 1])", "sorted(f()) == [1, 3] and f() == deque([3, 1])", True),
]  # fmt: skip


def test_checks_with_code_run_in_a_judge() -> None:
    """All in one program and one judge."""
    solution = "\n".join(f"def f{index}(): return {value}" for index, (value, _, _) in enumerate(JUDGED))
    tests = [f"assert {check.replace('f()', f'f{index}()')}" for index, (_, check, _) in enumerate(JUDGED)]
    result = run_tests(solution, tests)
    wrong = [(*case, reason) for case, passed, reason in zip(JUDGED, result.passed, result.reasons, strict=True)
             if passed != case[2]]  # fmt: skip
    assert wrong == []


def test_several_large_values_reach_the_judge() -> None:
    solution = "def f(): return list(range(100_000, 0, -1))"
    assert run_tests(solution, ["assert f() == list(range(100_000, 0, -1))\n" * 3]).passed == [True]


@pytest.mark.parametrize(
    ("returned", "check"),
    [
        ("10 ** 8", "f() * 'a' == 'b'"),
        ("9", "f() ** f() ** f() == 1"),
        ("__import__('decimal').Decimal('1E+99999')", "f() ** f() == 1"),
    ],
)
def test_judges_are_limited(returned: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading_module, "JUDGE_CPU_SECONDS", 1.0)
    began = time.monotonic()
    result = run_tests(f"def f(): return {returned}", [f"assert {check}"])
    assert result.passed == [False], result.reasons
    assert time.monotonic() - began < PATIENCE * 16


def test_enumeration_members() -> None:
    solution = "import enum\nclass Light(enum.Enum):\n    RED = 1\n    GREEN = 2\n    __eq__ = lambda *_: True\n"
    solution += "    __hash__ = None\ndef f(): return Light.GREEN\ndef g(): return [Light.RED, f()]"
    tests = ["f() == Light.GREEN", "f() is Light.GREEN", "g() == [Light.RED, Light.GREEN]", "f() != Light.RED",
             "f() == Light.RED", "f() == 2", "f().value == 2"]  # fmt: skip
    result = run_tests(solution, [f"assert {test}" for test in tests])
    assert result.passed == [True, True, True, True, False, False, True], result.reasons


@pytest.mark.parametrize(
    ("solution", "test"),
    [
        ("from fractions import *\nFraction.__eq__ = lambda *_: True\ndef f(): return Fraction(1)", "f() == 2"),
        ("from fractions import *\nFraction._numerator = 2\ndef f(): return Fraction(1)", "f() == 3"),
        ("class F(__import__('fractions').Fraction):\n    numerator = 2\ndef f(): return F(1)", "f() == 2"),
        ("class D(__import__('decimal').Decimal):\n    __eq__ = lambda *_: True\ndef f(): return D(1)", "f() == 2"),
        ("import collections as c\nclass C(c.Counter):\n    __eq__ = lambda *_: True\ndef f(): return C('a')",
         "f() == {'a': 2}"),
        ("import collections as c\nclass P(c.namedtuple('P', 'x')):\n    __eq__ = dict\ndef f(): return P(1)",
         "f() == (2,)"),
        ("class E(int):\n    __class__ = dict\n    __eq__ = lambda *_: True\ndef f(): return E(1)", "f() == 2"),
        ("import sys, fractions, types\nclass Fraction:\n    _numerator, _denominator = [], 'x'\n"
         "sys.modules['fractions'] = types.SimpleNamespace(Fraction=Fraction)\ndef f(): return Fraction()", "f() == 2"),
    ],
)  # fmt: skip
def test_lying_classes_pass_nothing(solution: str, test: str) -> None:
    result = run_tests(solution, [f"assert {test}"])
    assert result.passed == [False], result.reasons


def test_a_value_that_changes_while_encoded() -> None:
    solution = "import collections, threading\nd = collections.deque([[0]] * 50_000)\n"
    solution += "def turn():\n    while True: d.append(d.popleft())\n"
    solution += "threading.Thread(target=turn, daemon=True).start()\ndef f(): return d"
    result = run_tests(solution, ["assert f() == 1", "assert 2 + 2 == len('four') and not f"])
    assert result.passed == [False, False]
    assert result.reasons[0].partition(":")[0] in ("exception", "wrong_answer", "timeout")


def test_reasons_are_per_test() -> None:
    solution = "def f(x):\n    if x == 1: raise KeyError('k')\n    if x == 2: return object()\n    return x"
    result = run_tests(solution, ["assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 4"])
    assert result.passed == [True, False, False, False]
    assert [reason.partition(":")[0] for reason in result.reasons] == [
        "ok", "exception", "unsupported_value", "wrong_answer",
    ]  # fmt: skip
    assert "KeyError" in result.reasons[1]
    assert result.reason == "exception"


def test_setup_runs_after_the_solution() -> None:
    solution = "class Node:\n    def __init__(self, v): self.v = v\ndef f(n): return n.v"
    assert run_tests(solution, ["assert f(root) == 3"], setup="root = Node(3)").passed == [True]
    assert run_tests("x = 1", ["assert x == 1"], setup="root = Node(3)").reason == "setup_failed"
    assert run_tests("x = 1", ["x = y\nassert x == 1"]).reason == "test_failed"


def test_no_tests_do_not_pass() -> None:
    result = run_tests("x = 1", [])
    assert (result.passed, result.reason) == ([], "no_tests")


def test_verdicts_are_reproducible() -> None:
    """With random hashes the order of a set of strings differs between runs."""
    solution = "def f(): return list({'a', 'b', 'c', 'd', 'e', 'f'})"
    seen = {run_tests(solution, [f"assert f()[0] == {letter!r}" for letter in "abcdef"]).passed.index(True)
            for _ in range(4)}  # fmt: skip
    assert len(seen) == 1


def test_attempts_are_counted() -> None:
    source = "import os, socket\nfor _ in range(3):\n    try: socket.socket()\n    except OSError: pass\n"
    source += "try: open('/etc/passwd')\nexcept OSError: pass\ndef f(x): return x"
    result = run_tests(source, ["assert f(1) == 1"])
    assert result.passed == [True]
    assert result.denials == {"network": 3, "file": 1}
    assert run_tests("import os\nos.system('x')\nos._exit(0)", ["assert f(1) == 1"]).denials == {"process": 1}
    assert run_tests("import os\nos.write(4, b'x')", ["assert f(1) == 1"]).denials == {"result_channel": 1}


def altered(test: str) -> str:
    """The same assert with another expected value."""
    left, _, right = test.rpartition("==")
    return f"{left}== ('something else', {right.strip()})"


@pytest.mark.timeout(900)
def test_mbpp_reference_solutions() -> None:
    """A hundred of the official ones; tests/soak judges all."""
    assert wrong_verdicts(random.Random("mbpp").sample(MBPP, min(len(MBPP), 100))) == []


def wrong_verdicts(rows: list[dict[str, Any]]) -> list[tuple[int, list[bool], list[bool]]]:
    """Task, verdicts and expected verdicts of reference solutions that are not judged right, on altered tests too."""

    def verdicts(row: dict[str, Any]) -> tuple[int, list[bool], list[bool]]:
        tests = [*row["test_list"], *row["challenge_test_list"]]
        tried = [*tests, altered(tests[row["task_id"] % len(tests)])]
        result = run_tests(row["code"], tried, row["test_setup_code"], cpu_seconds=10)
        return row["task_id"], result.passed, [True] * len(tests) + [False]

    with ThreadPoolExecutor(CORES) as pool:
        return [found for found in pool.map(verdicts, rows) if found[1] != found[2]]


def test_slow_solutions_pass_on_busy_cores() -> None:
    """Like MBPP 123, which takes two seconds on an idle core."""
    slow = "def f(n):\n    t = 0\n    for i in range(n): t += i * i % 7\n    return t"
    expected = sum(i * i % 7 for i in range(3_000_000))
    with ThreadPoolExecutor(3 * CORES) as pool:
        tests = [f"assert f(3_000_000) == {expected}"]
        results = list(pool.map(lambda _: run_tests(slow, tests), range(3 * CORES)))
    assert [result.reason for result in results] == ["ok"] * 3 * CORES


def test_threads_do_not_mix_up_results() -> None:
    def one(n: int) -> bool:
        tests = [f"assert f() == {n}", f"assert f() == {n + 1}"]
        return run_tests(f"def f(): return {n}", tests).passed == [True, False]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(32)))


def test_slow_checks_do_not_block_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading_module, "JUDGE_CPU_SECONDS", 1.0)
    began = time.thread_time()
    result = run_tests("def f(): return 10 ** 7", ["assert f() ** f() % 10 == 1"])
    assert result.reason == "test_failed"
    assert time.thread_time() - began < 0.5, "the check took this thread's time"
