"""TAB in bash, zsh and fish: names from files of this machine, whatever state these are in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from grpo_train.cli import PLACES
from grpo_tui.box.kept import AnswerCache, KeptAnswers
from grpo_tui.cli import COMMANDS
from remote.boxes import Box
from tests.support.pty_program import PtyProgram

BOXES = "boxes:\n  - {name: h200-a, host: 192.0.2.1, root: /runs}\n  - {name: h200-b, host: 192.0.2.2}\n"
BIN = Path(sys.executable).parent
ASKED = """
import os, sys
from importlib import import_module
from grpo_train.cli import PLACES, main
from grpo_tui.cli import COMMANDS, program

for module in {f"grpo_train.cli.{place.partition('.')[0]}" for place, _ in PLACES.values()} | {*COMMANDS.values()}:
    if len(sys.argv) > 9:
        import_module(module)  # once for all lines

def watch(event, arguments):
    named = event == "open" and isinstance(arguments[0], (str, bytes)) and not arguments[0].endswith(("answer", "null"))
    writes = named and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.fork", "os.mkdir"):
        print(event, arguments, flush=True)

for number, line in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        answer = f"{number}.answer"
        os.environ.update(COMP_LINE=line, COMP_POINT=str(len(line)), _ARGCOMPLETE_STDOUT_FILENAME=answer)
        sys.addaudithook(watch)
        (program if line.startswith("grpo-tui") else main)()
    os.wait()
"""
"""Answers each line in a process as the programs do, which prints what it connects to, starts, creates or writes."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home with boxes, what the app last saw on one, runs of a root, and a working directory with a config."""
    config, cache = tmp_path / ".config" / "grpo-tui", tmp_path / ".cache" / "grpo-tui"
    config.mkdir(parents=True)
    (config / "boxes.yaml").write_text(BOXES)
    answers = AnswerCache(cache)
    kept = KeptAnswers(Box("h200-a", host="192.0.2.1", root="/runs"), answers, lambda *_: None)
    kept.keep_runs([{"run": name, "state": "finished", "step": 3} for name in ("gsm8k_1", "gsm8k_2", "math_1")])
    answers.flush()
    for run in ("here_1", "there_2"):
        (tmp_path / "runs" / "training_runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / "training_runs" / run / "launch.json").touch()
    (tmp_path / "work" / "mine").mkdir(parents=True)
    (tmp_path / "work" / "mine" / "c.yaml").touch()
    (tmp_path / "work" / "mine" / "notes.txt").touch()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {"HOME": str(tmp_path), "PATH": path, "LOCALFS_ROOT": str(tmp_path / "runs"), "LANG": "C.UTF-8"}


def completed(lines: Iterable[str], environment: dict[str, str], tmp_path: Path) -> list[list[str]]:
    """What TAB offers at the end of each line. Nothing is printed, connected to, started or written for it."""
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"
    }  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "-B", "-c", ASKED, *lines]
    done = subprocess.run(command, env={**environment, **asked}, cwd=tmp_path / "work", capture_output=True, text=True)
    assert done.stdout == ""
    answers = sorted((tmp_path / "work").glob("*.answer"), key=lambda path: int(path.stem))
    assert sorted({*tmp_path.rglob("*")} - {*answers}) == before
    texts = [path.read_text() for path in answers]
    for path in answers:
        path.unlink()
    return [text.split() for text in texts]


def test_names(environment: dict[str, str], tmp_path: Path) -> None:
    expected = {
        "grpo-tui s": ["skill", "sync", "show", "sessions", "stop"],
        "grpo-tui --dem": ["--demo"],
        "grpo-tui --box h": ["h200-a", "h200-b"],
        "grpo-tui show --box h200-a gsm": ["gsm8k_1", "gsm8k_2"],
        "grpo-tui get ma": ["math_1"],  # the first box
        "grpo-tui stop --box local ": ["there_2", "here_1"],
        "grpo-tui stop --box h200-b ": [],
        "grpo-tui kill --y": ["--yes"],
        "grpo-tui launch mine/": ["mine/c.yaml"],
        "grpo-tui launch dem": ["demo.yaml"],
        "grpo-tui completion ": ["bash", "zsh", "fish"],
        "grpo-tui no-command ": [],
        "grpo-train re": ["resume", "regrade", "report", "restore"],
        "grpo-train show ": ["there_2", "here_1"],
        "grpo-train train --cfg mine/": ["mine/c.yaml"],
        "grpo-train export --dtype b": ["bfloat16"],
        "grpo-train show --root /no/such/root ": [],
    }
    options = [f"grpo-tui {name} --" for name in COMMANDS] + [
        f"grpo-train {name} --" for name, (_, panel) in PLACES.items() if panel
    ]
    answers = completed([*expected, *options], environment, tmp_path)
    assert dict(zip(expected, answers, strict=False)) == expected
    with_help = {line for line, names in zip(options, answers[len(expected) :], strict=True) if "--help" in names}
    assert with_help == {*options}


def test_damaged_files_yield_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    for file in (tmp_path / ".cache" / "grpo-tui").iterdir():
        file.write_bytes(b"not a database")
    lines = ["grpo-tui show --box h200-a ", "grpo-tui --box "]
    assert completed(lines, environment, tmp_path) == [[], ["h200-a", "h200-b", "local"]]
    (tmp_path / ".config" / "grpo-tui" / "boxes.yaml").write_text("boxes: [{")
    assert completed(lines, environment, tmp_path) == [[], []]


@pytest.mark.parametrize(
    ("shell", "start"),
    [("bash", ["--norc", "-i"]), ("zsh", ["-f", "-i"]), ("fish", ["--no-config", "-i"])],
)
def test_a_real_shell(shell: str, start: list[str], environment: dict[str, str]) -> None:
    """The lines of the docs, then TAB: a run's name is completed, also after ``grpo-train``."""
    if not (program := shutil.which(shell)):
        pytest.skip(f"no {shell}")
    lines = [f'eval "$({name} completion {shell})"' for name in ("grpo-tui", "grpo-train")]
    if shell == "fish":
        lines = [f"{name} completion fish | source" for name in ("grpo-tui", "grpo-train")]
    elif shell == "zsh":
        lines.insert(0, "autoload -Uz compinit; compinit -u -D")
    typed = PtyProgram([program, *start], {**environment, "TERM": "dumb", "PS1": "> "})
    try:
        typed.type("; ".join([*lines, 'echo "rea""dy"']) + "\n")
        typed.until("ready")
        for line, name in (("grpo-tui show --box h200-a mat", "math_1"), ("grpo-train show the", "there_2")):
            typed.type(f"{line}\t\t")
            typed.until(name)
            typed.type("\x15")  # Ctrl-U
    finally:
        typed.close()
