"""Helper processes of graders: killed, stopped, failing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.rewards.helpers import HelperError, Helpers, HelperTimeout, pool
from tests.support.patience import PATIENCE

SCRIPT = """
def prepare():
    return lambda question: question["gold"] == question["answer"]
"""


@pytest.fixture
def helpers(tmp_path: Path) -> Iterator[Helpers]:
    script = tmp_path / "equal.py"
    script.write_text(SCRIPT)
    made = Helpers(str(script))
    yield made
    made.close()


def test_dead_helper_is_replaced(helpers: Helpers) -> None:
    question = {"gold": "x", "answer": "x"}
    assert helpers.ask(question) is True
    [helper] = helpers._idle
    os.kill(helper._process.pid, signal.SIGKILL)
    helper._process.wait()
    assert helpers.ask(question) is True


def test_stopped_helper_is_killed(helpers: Helpers, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers.ask({"gold": "x", "answer": "x"})
    [helper] = helpers._idle
    os.kill(helper._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(pool, "PATIENCE", 0.0)  # no wait for an answer that cannot come
    with pytest.raises(HelperTimeout):
        helpers.ask({"gold": "x", "answer": "x"})
    monkeypatch.undo()
    assert helper._process.returncode == -signal.SIGKILL
    assert helpers.ask({"gold": "x", "answer": "x"}) is True


def test_helper_survives_a_failing_question(helpers: Helpers) -> None:
    with pytest.raises(HelperError, match="KeyError"):
        helpers.ask({})
    [helper] = helpers._idle
    assert helpers.ask({"gold": "x", "answer": "x"}) is True
    assert helpers._idle == [helper]


def test_helper_exits_with_its_parent(helpers: Helpers) -> None:
    helpers.ask({"gold": "x", "answer": "x"})
    [helper] = helpers._idle
    assert helper._process.stdin is not None
    helper._process.stdin.close()  # what the kernel does when the trainer is killed
    assert helper._process.wait(timeout=60 * PATIENCE) == 0


def test_missing_script_is_an_error() -> None:
    with pytest.raises(HelperError, match="FileNotFoundError"):
        Helpers("no_such_helper.py").ask({})
