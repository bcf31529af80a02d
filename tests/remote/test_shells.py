"""Sessions as terminals on a local box: a new shell, and lines typed into it, in real tmux sessions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.agent.once import RequestRecord
from remote.agent.sessions import send_line
from remote.boxes import Box
from remote.protocol import RemoteError
from remote.protocol.jobs import SendLineRequest
from tests.support.agent import ask as ask_box
from tests.support.agent import connected, eventually

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    monkeypatch.setenv("HOME", str(tmp_path))  # not the startup files and history of who runs the tests
    with connected(box) as (client, _):
        yield functools.partial(ask_box, client)


def test_a_shell_is_opened_once(ask: Ask, root: Path) -> None:
    assert ask("open_shell", idempotency_key="a") == {"session": "shell"}
    assert ask("open_shell", idempotency_key="a") == {"session": "shell"}, "a repeat"
    assert ask("open_shell", idempotency_key="b") == {"session": "shell_2"}
    ask("send_line", session="shell", line="echo root=$LOCALFS_ROOT")
    eventually(lambda: f"root={root}" in ask("capture_pane", session="shell")["text"])
    ask("send_line", session="shell", line="exit")
    eventually(lambda: [row["name"] for row in ask("list_sessions")["sessions"]] == ["shell_2"])
    assert ask("open_shell", idempotency_key="c") == {"session": "shell"}, "its name is free again"


@pytest.mark.parametrize("text", ["-x; y;", "#{session_name} #(id) $((1+1))", "Enter C-c 'quoted' \"ü\"", "tail;"])
def test_a_line_arrives_as_it_is(ask: Ask, tmp_path: Path, text: str) -> None:
    file = tmp_path / "typed"
    ask("open_shell")
    ask("send_line", session="shell", line=f"cat > {file}")
    eventually(file.exists)
    ask("send_line", session="shell", line=text)
    eventually(lambda: file.read_text() == f"{text}\n")


def test_a_repeated_line_is_typed_once(ask: Ask, root: Path, tmp_path: Path) -> None:
    (root / "training_runs").mkdir()  # has the records of requests
    file = tmp_path / "typed"
    ask("open_shell")
    for _ in range(2):
        ask("send_line", session="shell", line=f"echo x >> {file}", idempotency_key="one")
    ask("send_line", session="shell", line=f"echo y >> {file}", idempotency_key="two")
    eventually(lambda: file.exists() and file.read_text().endswith("y\n"))
    assert file.read_text() == "x\ny\n"


@pytest.mark.parametrize(
    ("session", "line", "code"),
    [("nope", "ls", "no_session"), ("shell", "export HF_TOKEN=hf_" + "a1B2" * 9, "secret")],
)
def test_what_is_not_sent(ask: Ask, session: str, line: str, code: str) -> None:
    ask("open_shell")
    with pytest.raises(RemoteError) as error:
        ask("send_line", session=session, line=line)
    assert error.value.code == code
    assert "hf_" not in error.value.message


def test_a_line_that_may_have_arrived_is_not_typed_again() -> None:
    record = RequestRecord("key")
    record.found = {}  # an agent began, and was killed
    with pytest.raises(RemoteError) as error:
        send_line(None, SendLineRequest("shell", "rm x"), record)  # type: ignore[arg-type]
    assert error.value.code == "not_known"
