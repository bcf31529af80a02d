"""The suite itself: no test pauses, so that none is slow on a fast machine or wrong on a slow one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from tests.conftest import REPOSITORY

SUPPORT = "tests/support/"
EXEMPT = (
    "tests/bench/", "tests/gpu/", "tests/soak/",
    f"{SUPPORT}clock.py", "tests/run_dir/test_clock.py",  # a clock that stands until it is advanced
    f"{SUPPORT}patience.py",  # ``eventually``, which looks at a condition again and again: the one place that waits so
    # Simulated programs, networks and servers: their delays are what they simulate.
    f"{SUPPORT}fake_engine.py", f"{SUPPORT}fake_stage.py", f"{SUPPORT}floods.py", f"{SUPPORT}line.py",
    f"{SUPPORT}log_loads.py", f"{SUPPORT}proxy.py", f"{SUPPORT}s3_front.py", f"{SUPPORT}watching_laptop.py",
)  # fmt: skip
CANDIDATE = re.compile(r"sleep|\.(pause|wait|join|poll|select)\(|\bselect\(")


def pauses_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and source of each pause.

    A test waits for an event or a condition, and gives up after a limit that grows with ``PATIENCE``. To show that
    something does not happen, it waits for a later thing that has happened, or advances a fake clock. So these are
    pauses:

    - ``sleep(n)`` of any module. ``sleep(0)`` only lets other tasks run; ``clock.sleep(n)`` waits by a test's clock.
    - ``pilot.pause(n)``. Without an argument it waits for the app's messages.
    - ``wait(n)``, ``join(n)``, ``poll(n)`` and ``select(…, n)`` where ``n`` has a number but not ``PATIENCE``, which a
      limit for giving up has. ``0`` only looks.
    - ``while not event.wait(…)`` with any time, and ``Event().wait(…)`` of an event that nothing can set.
    - ``"sleep", "60"`` as a command: a process that only has to be there reads its standard input (``cat``), so that it
      ends with the test.

    Program text in a string is not looked at: a program under test may sleep.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.While):
            for inner in ast.walk(node.test):
                if isinstance(inner, ast.Call) and name_of(inner) == "wait" and limit_of(inner) is not None:
                    yield node.lineno, f"while … {ast.unparse(inner)}"
        elif isinstance(node, ast.Call) and is_pause(node):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call | ast.List | ast.Tuple):
            elements = node.args if isinstance(node, ast.Call) else node.elts
            words = [element.value if isinstance(element, ast.Constant) else None for element in elements]
            if any(first == "sleep" and str(second).isdecimal() for first, second in pairwise(words)):
                yield node.lineno, "a command that sleeps"


def is_pause(call: ast.Call) -> bool:
    name, limit = name_of(call), limit_of(call)
    if limit is None or ast.unparse(limit) in ("0", "0.0", "None"):
        return False
    if name in ("sleep", "pause"):
        return True
    if name == "wait" and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        return name_of(call.func.value) == "Event"
    parts = list(ast.walk(limit))
    numbers = [part.value for part in parts if isinstance(part, ast.Constant) and type(part.value) in (int, float)]
    return any(numbers) and not any(isinstance(part, ast.Name) and part.id == "PATIENCE" for part in parts)


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def limit_of(call: ast.Call) -> ast.expr | None:
    """The time that a call of a pausing function is given; None without one.

    ``recorder.wait(condition, 30)`` and ``", ".join(parts[:3])`` are not such calls.
    """
    position = {"sleep": 0, "pause": 0, "wait": 0, "join": 0, "poll": 0, "select": 3}.get(name_of(call), -1)
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(receiver, ast.Constant) or getattr(receiver, "id", "") == "clock":
        return None  # "".join(…), and a wait by a clock that the test advances
    given = [keyword.value for keyword in call.keywords if keyword.arg in ("timeout", "delay")]
    if position < 0 or len(call.args) + len(given) != position + 1:
        return None
    limit = [*call.args, *given][position]
    return limit if isinstance(limit, ast.Constant | ast.Name | ast.Attribute | ast.BinOp | ast.Call) else None


def test_no_test_pauses() -> None:
    found = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        name = path.relative_to(REPOSITORY).as_posix()
        text = path.read_text()
        if not name.startswith(EXEMPT) and CANDIDATE.search(text):
            found += [f"{name}:{line}: {source}" for line, source in pauses_in(ast.parse(text))]
    assert not found, "pauses:\n" + "\n".join(found)


def test_each_form_of_a_pause_is_found() -> None:
    pausing = """
time.sleep(1)
asyncio.sleep(delay)
pilot.pause(0.1)
event.wait(2)
event.wait(timeout=5.0)
thread.join(min(left, 0.2))
poller.poll(100)
select.select([a], [], [], 0.1)
threading.Event().wait(PATIENCE * 2)
Popen(["sleep", "60"])
tmux("new-session", "sleep", "60")
"""
    tree = ast.parse(pausing)
    assert sorted(line for line, _ in pauses_in(tree)) == list(range(2, 2 + len(tree.body)))
    assert [line for line, _ in pauses_in(ast.parse("while not event.wait(PATIENCE * EVERY_S):\n    look()"))] == [1]
    waiting = """
asyncio.sleep(0)
clock.sleep(60)
pilot.pause()
event.wait(60 * PATIENCE)
child.wait(timeout=PATIENCE * 60)
thread.join(left)
"".join(lines)
store.select("run")
recorder.wait(lambda event: event.done, 30)
select.select([a], [], [], 0)
select.select([a], [], [], deadline - now)
run_program("import time; time.sleep(1000)")
"""
    assert list(pauses_in(ast.parse(waiting))) == []
