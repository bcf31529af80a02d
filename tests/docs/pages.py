"""The blocks of a documentation page, and a reader who performs them: saves the files, runs the commands."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.forkserver import ForkServer
from pathlib import Path
from unittest.mock import patch

from grpo_tui import cli
from tests.support.engine import REPOSITORY, environment
from tests.support.forked import run_forked
from tests.support.patience import PATIENCE
from tests.support.terminal import Terminal

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<kind>[\w ]+):(?P<reason>[^\n]*?) *-->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
PROMPT = re.compile(r"^(?P<who>[\w ]*)\$ (?P<line>.*)$")
ENDED_BY_CTRL_C = 130
NOT_RUN, SLOW = "not run", "slow"
"""Marks before a block, with a reason. What is slow runs in tests/soak."""


@dataclass(frozen=True)
class Command:
    """A line of a console block that begins with a prompt, and the lines that the page shows below it."""

    who: str
    line: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    page: str
    number: int
    """Its line in the page."""
    language: str
    text: str
    mark: str
    reason: str
    saved_as: str
    """"Save as `NAME`:" before the block."""

    @cached_property
    def commands(self) -> list[Command]:
        """Those of a console block, in order."""
        found: list[tuple[str, str, list[str]]] = []
        for line in self.text.replace("\\\n", " ").splitlines() if self.language == "console" else []:
            if prompt := PROMPT.match(line):
                found.append((prompt["who"], prompt["line"], []))
            else:
                found[-1][2].append(line)
        return [Command(who, line, tuple(shown)) for who, line, shown in found]


def page_text(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """A page without its blocks."""
    return BLOCK.sub("", page_text(page))


def blocks_of(page: str) -> Iterator[Block]:
    """All blocks of a page, in order."""
    text = page_text(page)
    for found in BLOCK.finditer(text):
        before = text[: found.start()]
        named = re.search(r"Save as\s`([^`]+)`:\s*$", before)
        lines = re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(
            page, text.count("\n", 0, found.start("language")) + 1, found["language"], lines,
            found["kind"] or "", (found["reason"] or "").strip(), named[1] if named else "",
        )  # fmt: skip


@dataclass
class Reader:
    """Works in ``folder``, which is also the home directory.

    Commands of the engine are forks; those of ``grpo-tui`` run in this process, the app itself in a terminal.
    """

    folder: Path
    tiny_model: Path
    server: ForkServer | None = None
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Parts of lines that stand for something, and what this reader writes for them."""
    variables: dict[str, str] = field(default_factory=dict)
    machines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables by the name before the prompt."""
    outcomes: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Exit code and a part of the output, of lines that do not end with 0 in this world."""
    screen: str = "finished"
    """What the app shows once it has the run."""
    ran: int = 0

    def __post_init__(self) -> None:
        self.home = self.cwd = self.folder
        """Where each block begins."""

    def follow(self, page: str, slow: bool = False) -> list[str]:
        """Do every step of a page that is not marked; returns the commands that fail or print something else."""
        wrong = []
        for block in blocks_of(page):
            if block.mark == NOT_RUN or (block.mark == SLOW) != slow:
                continue
            self.cwd = self.home
            if block.saved_as:
                (self.cwd / block.saved_as).write_text(block.text, encoding="utf-8")
            for command in block.commands:
                self.ran += 1
                code, output = self.run(command)
                expected, said = self.outcomes.get(without_comment(command.line), (0, ""))
                missing = said if said not in output else first_missing(command.shown, output)
                if code != expected or missing:
                    reason = f"ended with {code}" if code != expected else f"did not print: {missing}"
                    wrong.append(f"{page}, line {block.number}: $ {command.line}\n{reason}\n{output[-3000:]}")
        return wrong

    def run(self, command: Command) -> tuple[int, str]:
        """Run a command line, parts after ``;`` and ``&&`` in turn; returns the last exit code and all output."""
        line = command.line
        for part, other in self.replaced.items():
            line = line.replace(part, other)
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[list[str]] = [[]]
        for word in lexer:
            if word in (";", "&&"):
                words.append([])
            else:
                assert word not in ("|", ">", "&"), f"this reader cannot {word}: {line}"
                words[-1].append(word)
        code, output = 0, ""
        for part in words:
            code, text = self.run_words(part, self.machines.get(command.who.strip(), {}))
            output += text
        return code, output

    def run_words(self, words: list[str], machine: Mapping[str, str]) -> tuple[int, str]:
        """Run one command; returns its exit code and what it printed."""
        inherited = {name: value for name, value in environment().items() if not name.startswith("XDG_")}
        variables = {**inherited, "HOME": str(self.folder), "COLUMNS": "100", "PWD": str(self.cwd)}
        variables |= {**self.variables, **machine}
        words = [word for given in words for word in self.expanded(given, variables)]
        stdin = self.cwd / words.pop(words.index("<") + 1) if "<" in words else None
        words = [word for word in words if word != "<"]
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, variables[name] = words.pop(0).partition("=")
        name, *rest = words
        if name == "export":
            self.variables.update(word.split("=", 1) for word in rest)
            return 0, ""
        if name == "cd":
            self.cwd = self.home = self.cwd / rest[0]
            return (0, "") if self.cwd.is_dir() else (1, f"cd: {self.cwd}: no such directory")
        if name == "grpo-tui":
            command = rest[:1] and rest[0] in cli.COMMANDS
            return self.command(rest, variables) if command else self.look(rest)
        if name == "grpo-train" and rest[0] == "tiny-model":  # a minute of warm start, made once for all tests
            out = rest[rest.index("--out") + 1]
            shutil.copytree(self.tiny_model, self.cwd / out)
            return 0, f"wrote {out}"
        if name == "make":
            return self.make(rest)
        modules: dict[str, Callable[[], list[str]]] = {
            "grpo-train": lambda: ["grpo_train.cli", *rest],
            "torchrun": lambda: ["torch.distributed.run", *rest],
            "python": lambda: [rest[0].removesuffix(".py"), *rest[1:]],
        }
        if name in modules:
            if name == "python":
                variables["PYTHONPATH"] = str(self.cwd)
            limit = PATIENCE * 120
            done = run_forked(modules[name](), variables, self.cwd, limit, server=self.server, stdin=stdin)
        else:
            done = subprocess.run(words, env=variables, cwd=self.cwd, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def expanded(self, word: str, variables: Mapping[str, str]) -> list[str]:
        """A word with variables, home directory and names of files as a shell writes them."""
        word = re.sub(r"\$(\w+)", lambda found: variables.get(found[1], ""), word)
        word = re.sub(r"^~(?=/|$)", str(self.folder), word)
        names = sorted(glob.glob(word, root_dir=self.cwd)) if "*" in word else []
        return names or [word]

    def command(self, words: list[str], variables: Mapping[str, str]) -> tuple[int, str]:
        """A command of ``grpo-tui`` in this process, whose agents are in threads."""
        if "--follow" in words:
            return self.followed(words, variables)
        printed, before = io.StringIO(), os.getcwd()
        with (
            patch.dict(os.environ, variables, clear=True),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            os.chdir(self.cwd)
            try:
                code = cli.main(words)
            except SystemExit as ended:
                code = int(ended.code or 0)
            finally:
                os.chdir(before)
        return code, printed.getvalue()

    def followed(self, words: list[str], variables: Mapping[str, str]) -> tuple[int, str]:
        """A command that prints until Ctrl-C, pressed after its first line."""

        def as_in_a_terminal() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)

        command = [sys.executable, "-m", "grpo_tui.cli", *words]
        with subprocess.Popen(
            command, env={**variables, "PYTHONPATH": str(REPOSITORY)}, cwd=self.cwd, preexec_fn=as_in_a_terminal,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
        return 0 if process.returncode == ENDED_BY_CTRL_C else process.returncode, first + rest

    def make(self, targets: list[str]) -> tuple[int, str]:
        """A target that shows the app, in a clone that is set up: its environment is the one of these tests."""
        if not (self.cwd / ".venv").exists():
            (self.cwd / ".venv").symlink_to(sys.prefix)
        for file in ("pyproject.toml", "setup.py", "scripts/setup.sh"):
            os.utime(self.cwd / file, (0, 0))
        return self.show(["make", *targets])

    def look(self, options: list[str]) -> tuple[int, str]:
        """The app's first screen with a run, in a terminal."""
        return self.show([str(Path(sys.executable).with_name("grpo-tui")), *options])

    def show(self, words: list[str]) -> tuple[int, str]:
        """What a command shows in a terminal once it is ready, before ``q``."""
        kept = {"HOME": str(self.folder), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", **self.variables}
        if path := os.environ.get("PYTHONPATH"):
            kept["PYTHONPATH"] = path
        command = f"cd {shlex.quote(str(self.cwd))} && exec {shlex.join(words)}"
        with Terminal(["sh", "-c", command], kept) as screen:
            seen = screen.wait_for(self.screen)
            screen.press("q")
        return 0, seen


def without_comment(line: str) -> str:
    return re.sub(r"\s+#.*", "", line)


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
    return " ".join(re.sub(r"[-+]?\.?\d[\d.,:]*(e[-+]?\d+)?", "N", line).split())
