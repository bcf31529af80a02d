"""Helper processes of graders: killed, stopped, failing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from grpo_train.rewards.helpers import HelperError, Helpers, HelperTimeout
from grpo_train.rewards.helpers.pool import PATIENCE as HELPER_PATIENCE
from tests.support.clock import TestClock
from tests.support.patience import PATIENCE

SCRIPT = """
def prepare():
    return lambda question: question["gold"] == question["answer"]
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "equal.py"
    file.write_text(SCRIPT)
    return str(file)


@pytest.fixture
def helpers(script: str) -> Iterator[Helpers]:
    made = Helpers(script)
    yield made
    made.close()


def test_dead_helper_is_replaced(helpers: Helpers) -> None:
    question = {"gold": "x", "answer": "x"}
    assert helpers.ask(question) is True
    [helper] = helpers._idle
    os.kill(helper._process.pid, signal.SIGKILL)
    helper._process.wait()
    assert helpers.ask(question) is True


def test_stopped_helper_is_killed(script: str) -> None:
    """After PATIENCE times its CPU time: a process that computes has used that up before."""
    clock, question = TestClock(), {"gold": "x", "answer": "x"}
    failures: list[Exception] = []

    def ask() -> None:
        try:
            helpers.ask(question)
        except HelperTimeout as error:
            failures.append(error)

    with closing(Helpers(script, seconds=2.0, clock=clock)) as helpers:
        assert helpers.ask(question) is True
        [helper] = helpers._idle
        os.kill(helper._process.pid, signal.SIGSTOP)
        asking = threading.Thread(target=ask)
        asking.start()
        clock.wait_for_threads(2)
        clock.advance(HELPER_PATIENCE * 2 - 0.1)
        assert (asking.is_alive(), helper.is_alive) == (True, True)
        clock.advance(0.1)
        asking.join()
        assert (len(failures), helper._process.returncode) == (1, -signal.SIGKILL)
        assert helpers.ask(question) is True


def test_helper_survives_a_failing_question(helpers: Helpers) -> None:
    with pytest.raises(HelperError, match="KeyError"):
        helpers.ask({})
    [helper] = helpers._idle
    assert helpers.ask({"gold": "x", "answer": "x"}) is True
    assert helpers._idle == [helper]


def test_helper_exits_with_its_parent(helpers: Helpers) -> None:
    helpers.ask({"gold": "x", "answer": "x"})
    [helper] = helpers._idle
    helper._connection.close()  # what the kernel does when the trainer is killed
    assert helper._process.wait(timeout=60 * PATIENCE) == 0


def test_missing_script_is_an_error() -> None:
    with pytest.raises(HelperError, match="FileNotFoundError"):
        Helpers("no_such_helper.py").ask({})
