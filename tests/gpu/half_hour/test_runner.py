"""The runner of the half hour: it continues after what fails, and reports it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.half_hour import runner
from tests.gpu.half_hour.runner import Check, Session, check

VARIABLES = (runner.END, runner.RESULTS, "GPU_ONLY", "GPU_BUDGET")
Run = Callable[..., tuple[int, list[str]]]


def fine() -> str:
    return "all is well"


def wrong() -> str:
    raise RuntimeError("not equal\nin two places")


def late() -> str:
    signal.raise_signal(signal.SIGALRM)
    return "not reached"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs checks; returns the exit status, and result and name of each line."""
    monkeypatch.setattr(runner, "OUT", tmp_path)
    monkeypatch.setattr(runner, "DRY", True)

    def found(*checks: Check, **variables: str) -> tuple[int, list[str]]:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        status = Session(checks, "found.jsonl").run()
        return status, [" ".join(line.split()[:2]) for line in capsys.readouterr().out.splitlines()]

    before = signal.getsignal(signal.SIGALRM)
    yield found
    signal.signal(signal.SIGALRM, before)
    for name in VARIABLES:
        os.environ.pop(name, None)


def test_continues_after_failures(run: Run, tmp_path: Path) -> None:
    assert run(check(wrong, 9), check(late, 9), check(fine, 9)) == (1, ["FAIL wrong", "LATE late", "ok fine"])
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [(row["name"], row["detail"]) for row in rows] == [
        ("wrong", "RuntimeError: not equal"), ("late", "Late: took too long"), ("fine", "all is well"),
    ]  # fmt: skip
    assert "in two places" in rows[0]["trace"]


def test_what_cannot_run_is_skipped(run: Run) -> None:
    """For lack of a GPU, of time, or of what it needs: none of these fails the call."""
    assert run(check(fine, 9, needs_gpu=True)) == (0, ["SKIP fine"])
    assert run(check(wrong, 9), GPU_BUDGET="1") == (0, ["SKIP wrong"])
    assert run(check(wrong, 9), check(fine, 9, needs="wrong")) == (1, ["FAIL wrong", "SKIP fine"])


def test_names_choose_checks_and_what_they_need(run: Run) -> None:
    checks = check(fine, 9, "first"), check(wrong, 9), check(fine, 9, "last", needs="first")
    assert run(*checks, GPU_ONLY="last") == (0, ["ok first", "ok last"])
    with pytest.raises(SystemExit, match="no check other; known: first, wrong, last"):
        run(*checks, GPU_ONLY="other")


def test_a_broken_context_continues_in_a_new_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def start(program: str, words: list[str]) -> None:
        started.append(words)
        raise KeyboardInterrupt  # this process would be gone

    monkeypatch.setattr(runner, "is_broken", lambda: True)
    monkeypatch.setattr(os, "execv", start)
    checks = check(fine, 9, "before"), check(wrong, 9), check(fine, 9, "after", needs="before")
    with pytest.raises(KeyboardInterrupt):
        run(*checks)
    assert len(started) == 1
    results = os.environ[runner.RESULTS]
    assert run(*checks, **{runner.RESULTS: results})[1][-2:] == ["ok before", "ok after"]
