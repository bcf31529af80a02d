"""Questions to checkpoints through the link: the engine itself with a tiny model, in a real tmux session."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.questions import asks_folder
from remote.boxes import Box
from remote.client import BoxClient
from tests.support.agent import Recorder, ask, connected, eventually, refusal
from tests.support.backups import make_run
from tests.support.engine import REPOSITORY

SECRET_WORD = "zebra"
"""Part of a question: it must not appear in a command line or on a terminal."""


@pytest.fixture
def run(golden: Callable[[str], RunDir]) -> RunDir:
    return golden("first")


@pytest.fixture
def engine_box(run: RunDir, tmux_socket: str) -> Box:
    engine = [sys.executable, "-m", "grpo_train.cli"]
    return Box("local", kind="local", root=str(run.root), repo=str(REPOSITORY), engine=engine, tmux_socket=tmux_socket)


@pytest.fixture
def link(box: Box, root: Path) -> Iterator[BoxClient]:
    """A box with the fake engine and one run."""
    make_run(root, "one", 2)
    with connected(box) as (client, _):
        yield client


def rows(recorder: Recorder, log: int) -> list[dict[str, Any]]:
    whole = bytes(recorder.logs.get(log, b"")).rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def commands_with(word: str) -> list[str]:
    """Command lines of processes that have a word."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(entry.read_text(errors="replace"))
    return [argv for argv in found if word in argv]


def of(events: list[dict[str, Any]], event: str, question: str) -> list[dict[str, Any]]:
    return [each for each in events if each["event"] == event and each["id"] == question]


def test_questions_are_answered_over_the_link(engine_box: Box, run: RunDir) -> None:
    prompt = f"12+30 {SECRET_WORD}"
    with connected(engine_box, process=True) as (client, recorder):
        opened = ask(client, "open_ask", run="first", steps=[2, 0], idempotency_key="open")
        again = ask(client, "open_ask", run="first", steps=[2, 0], idempotency_key="open")
        assert (opened["started"], again["started"], opened["session"]) == (True, False, "ask_first")
        log = client.follow(opened["answers"])
        first = ask(client, "ask", ask=opened["ask"], prompt=prompt, idempotency_key="a")["question"]
        assert ask(client, "ask", ask=opened["ask"], prompt=prompt, idempotency_key="a")["question"] == first
        eventually(lambda: of(rows(recorder, log), "done", first), 90, "the first answer")
        cursor = client._follows[log].cursor
    with connected(engine_box) as (client, recorder):  # the laptop was away: it reads on
        log = client.follow(opened["answers"], cursor=cursor)
        second = ask(client, "ask", ask=opened["ask"], index=1, count=2, temperature=1.0, idempotency_key="b")
        done = eventually(
            lambda: of(rows(recorder, log), "done", second["question"]), 60, "the second answer", client.clock
        )
        assert len(done) == 1
        events = rows(recorder, log)
        assert not of(events, "completion", first)
        shown = of(events, "completion", second["question"])
        assert sorted((each["checkpoint"], each["sample"]) for each in shown) == [
            ("step_0", 0), ("step_0", 1), ("step_2", 0), ("step_2", 1),
        ]  # fmt: skip
        assert all(each["rewards"].keys() == {"accuracy"} for each in shown)
        folder = str(asks_folder(run.root) / opened["ask"])
        commands = commands_with(folder)
        assert commands
        assert SECRET_WORD not in "".join(commands) + ask(client, "capture_pane", session="ask_first")["text"]
        assert asks_folder(run.root).stat().st_mode & 0o77 == 0
        assert ask(client, "close_ask", ask=opened["ask"], idempotency_key="c") == {"left": []}
        eventually(lambda: not commands_with(folder), what="tmux ends with its last session")
        assert ask(client, "list_sessions")["sessions"] == []
        assert list(asks_folder(run.root).iterdir()) == []
        assert refusal(client, "ask", ask=opened["ask"], prompt="1+1", idempotency_key="d").code == "ask_ended"


def test_a_run_has_one_process_at_a_time(link: BoxClient, root: Path) -> None:
    opened = ask(link, "open_ask", run="one", steps=[2], device="cpu", idempotency_key="a")
    assert opened["argv"][1:-2] == [
        *("generate", "--training-run", "one", "--step", "2", "--device", "cpu", "--folder"),
        str(asks_folder(root) / opened["ask"]),
    ]
    second = refusal(link, "open_ask", run="one", steps=[2], idempotency_key="b")
    assert second.code == "session_live"
    assert [folder.name for folder in asks_folder(root).iterdir()] == [opened["ask"]]
    for _ in range(2):
        ask(link, "close_ask", ask=opened["ask"])
    assert ask(link, "open_ask", run="one", steps=[2], dry_run=True)["started"] is False
    assert list(asks_folder(root).iterdir()) == []


def test_what_cannot_be_asked_is_refused(link: BoxClient, root: Path, tmp_path: Path) -> None:
    assert refusal(link, "open_ask", run="one", steps=[2]).code == "bad_request"
    assert refusal(link, "open_ask", run="other", steps=[2], idempotency_key="a").code == "no_run"
    assert refusal(link, "ask", ask="0" * 32, prompt="1+1", idempotency_key="a").code == "ask_ended"
    old = tmp_path / "old-engine"
    old.write_text("#!/bin/sh\necho 'No such option: --version' >&2; exit 2\n")
    old.chmod(0o755)
    with connected(Box("old", kind="local", root=str(root), engine=[str(old)])) as (client, _):
        refused = refusal(client, "open_ask", run="one", steps=[2], idempotency_key="b")
    assert (refused.code, refused.message) == ("too_old", "box engine 0.1.0 cannot answer questions: upgrade it")
    assert "make setup-box" in refused.hint
    assert not asks_folder(root).exists()
