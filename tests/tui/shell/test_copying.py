from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from grpo_tui import cli
from grpo_tui.shell import connection
from grpo_tui.shell.connection import accept_host_key, answer
from remote.events import HostKeyAsked, QuestionAsked
from tests.support.engine import REPOSITORY
from tests.support.pty_program import PtyProgram


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of this machine as a box."""
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def test_put_and_get(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "train.jsonl"
    source.write_text("{}\n")
    assert cli.main(["put", str(source), "datasets/train.jsonl", "--root", str(root)]) == 0
    assert capsys.readouterr().out == f"1 file, 3 B\n{root}/datasets/train.jsonl\n"
    assert cli.main(["get", "datasets/train.jsonl", str(tmp_path / "here"), "--root", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "paths": [str(tmp_path / "here" / "train.jsonl")],
        "files": 1,
        "size": 3,
        "travelled": 3,
        "left_out": [],
    }
    assert (tmp_path / "here" / "train.jsonl").read_text() == "{}\n"


def test_what_is_left_out_is_named_before(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit code says so."""
    source = tmp_path / "odd"
    source.mkdir()
    (source / "a").write_text("a")
    for number in range(22):
        (source / f"link{number}").symlink_to("/etc/hostname")
    assert cli.main(["put", str(source), "odd", "--root", str(root)]) == 3
    assert capsys.readouterr().err.count(" (not a file, or a link that leaves its folder)\n") == 22
    for number in range(22):
        (root / "odd" / f"link{number}").symlink_to("/etc/hostname")
    assert cli.main(["get", "./odd", str(tmp_path / "here"), "--root", str(root), "--json"]) == 3
    told = capsys.readouterr()
    assert (told.err.count("grpo-tui: left out: odd/link"), "left out: and 2 more" in told.err) == (20, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "run_x"], "local: no run named 'run_x'"),
        (["put", "nothing"], "nothing does not exist"),
        (["get", "run_x", "--box", "nobox"], "nobox"),
    ],
)
def test_usage_errors(root: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--root", str(root)]) == 2
    assert message in capsys.readouterr().err


def test_questions_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connection, "TERMINAL", str(tmp_path / "none"))
    assert not accept_host_key(HostKeyAsked("h200-a", "ssh-ed25519", "SHA256:abc"))
    assert "SHA256:abc. Accept it once in a terminal: grpo-tui doctor --box NAME" in capsys.readouterr().err
    assert answer(QuestionAsked("password:", False, "password")) is None


def test_questions_of_a_command_in_a_pipe() -> None:
    """``grpo-tui up 2>&1 < list | tee log`` asks on the terminal."""
    asks = (
        "from grpo_tui.shell.connection import *; "
        "print(accept_host_key(HostKeyAsked('h200-a', 'ssh-ed25519', 'SHA256:abc')), "
        "answer(QuestionAsked('code', True, 'prompt')), "
        "answer(QuestionAsked('password', False, 'password')))"
    )
    program = PtyProgram(
        ["/bin/sh", "-c", f'{sys.executable} -c "{asks}" < /dev/null 2>&1 | cat'], {"PYTHONPATH": str(REPOSITORY)}
    )
    try:
        for question, key in (("SHA256:abc.", "y"), ("code ", "12"), ("password ", "secret")):
            program.until(question)
            program.type(f"{key}\n")
        assert program.end() == 0
    finally:
        program.close()
    assert program.text.endswith("True 12 secret\r\n")
    assert program.text.count("secret") == 1, "a password is not shown"


@pytest.mark.parametrize(("command", "other"), [("get", "put"), ("put", "get")])
def test_help_has_examples_of_its_command(command: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert f"grpo-tui {command} " in text.partition("examples:")[2]
    assert f"grpo-tui {other} " not in text
