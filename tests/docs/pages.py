"""The steps of a documentation page, and a reader that performs them: saves the files, runs the commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.engine import REPOSITORY, environment
from tests.support.forked import run_forked
from tests.support.patience import PATIENCE
from tests.support.terminal import Terminal


@dataclass(frozen=True)
class SavedFile:
    """ "Save as `NAME`:" and the block that follows."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line of a console block that begins with ``$``, and the lines that the page shows below it."""

    line: str
    shown: tuple[str, ...]


def steps_of(page: str) -> Iterator[SavedFile | Command]:
    """Files and commands of ``docs/PAGE``, in order."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        named = re.search(r"Save as\s`([^`]+)`:\s*$", text[: block.start()])
        if named:
            yield SavedFile(named[1], block[2])
        elif block[1] == "console":
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block[2], re.MULTILINE):
                yield Command(command, tuple(shown.splitlines()))


@dataclass
class Reader:
    """Works in ``folder`` on a model of the suite; commands of the engine are forks."""

    folder: Path
    tiny_model: Path
    replaced: dict[str, str] = field(default_factory=dict)
    """Words of commands, and what this reader writes for them."""
    variables: dict[str, str] = field(default_factory=dict)

    def follow(self, page: str) -> None:
        """Do every step of a page; a command that fails or prints something else fails the test."""
        for step in steps_of(page):
            if isinstance(step, SavedFile):
                (self.folder / step.name).write_text(step.text, encoding="utf-8")
            else:
                output = self.run(step.line)
                missing = first_missing(step.shown, output)
                assert missing is None, f"{page}: $ {step.line}\nthe page shows: {missing}\nprinted was:\n{output}"

    def run(self, line: str) -> str:
        """Run a command line; returns what it printed."""
        words = [self.replaced.get(word, word) for word in shlex.split(line, comments=True)]
        words = [word.replace("$PWD", str(self.folder)) for word in words]
        if words[0] == "export":
            self.variables.update(word.split("=", 1) for word in words[1:])
            return ""
        variables = {**environment(), "HOME": str(self.folder), "COLUMNS": "100", **self.variables}
        if words[0] == "grpo-tui":
            return self.look(words[1:])
        if words[:2] == ["grpo-train", "tiny-model"]:  # a minute of warm start, made once for all tests
            out = words[words.index("--out") + 1]
            shutil.copytree(self.tiny_model, self.folder / out)
            return f"wrote {out}"
        if words[0] == "grpo-train":
            done = run_forked(["grpo_train.cli", *words[1:]], variables, self.folder, PATIENCE * 120)
        else:
            words = [sys.executable, *words[1:]] if words[0] == "python" else words
            done = subprocess.run(
                words, env=variables, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE * 120
            )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def look(self, options: list[str]) -> str:
        """The app's first screen with a run, in a terminal."""
        app = str(Path(sys.executable).with_name("grpo-tui"))
        variables = {"HOME": str(self.folder), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", **self.variables}
        if path := os.environ.get("PYTHONPATH"):
            variables["PYTHONPATH"] = path
        command = f"cd {shlex.quote(str(self.folder))} && exec {shlex.join([app, *options])}"
        with Terminal(["sh", "-c", command], variables) as screen:
            seen = screen.wait_for("first", "finished")
            screen.press("q")
        return seen


def first_missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first shown line that was not printed in this order, numbers aside; "…" is any text."""
    lines = [_masked(line) for line in printed.splitlines()]
    position = 0
    for line in shown:
        if not line.strip() or line.strip() == "…":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in _masked(line).split("…")))
        found = next((i for i in range(position, len(lines)) if pattern.fullmatch(lines[i])), None)
        if found is None:
            return line
        position = found + 1
    return None


def _masked(line: str) -> str:
    """Numbers as N, one space between words."""
    return " ".join(re.sub(r"[-+]?\d[\d.,:]*(e[-+]?\d+)?", "N", line).split())
