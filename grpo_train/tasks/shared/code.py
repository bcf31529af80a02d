"""Programs in completions: prompt templates that ask for one, stop strings, extraction, the base class of such tasks.

A template that ends where the program begins (inside an open Markdown fence, after ``[BEGIN]``, after a docstring)
makes the completion the program itself, up to a stop string. With any other template the program is in a fence or in
answer tags.
"""

from __future__ import annotations

import ast
import re
import textwrap
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from grpo_train.config import schema
from grpo_train.rewards.tags import CLOSE_THINK
from grpo_train.sandbox import SandboxError, allow_weak, isolation
from grpo_train.sandbox.syntax import parse_program
from grpo_train.tasks.shared.base import Problem, TaskDefaults, TaskError
from grpo_train.tasks.shared.template import TEMPLATES, ask, unknown_template

FENCE_STOP = ("\n```",)
DOCSTRING_STOP = ("\nclass ", "\nassert ", '\n"""', "\nprint", "\nif ", "\n```")
"""Stop strings for base models, which continue after the function; as in bigcode-evaluation-harness (``tasks/mbpp.py``)
and evalplus."""
COMPACT = "{question}\n```python\n"
"""Template of tasks without a published one: the question and an open fence."""
PREFILL = "Here is a Python program that does it:\n```python\n"
"""Default beginning of the assistant's answer under the chat template."""

DENIALS = ("network", "process", "signal", "file", "limits", "introspection")
"""Kinds of denied attempts that are logged for every program; others only where they occur."""

MAX_STARTS = 50
"""Lines that are tried as the start of a program without a fence."""

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>\w*)[^\n`]*\n(?P<source>.*?)(?:^[ \t]*(?P=mark)|\Z)",
    re.DOTALL | re.MULTILINE,
)
_STATEMENT = re.compile(r"(?:async |def |class |import |from |@|\w+ *[:=])")
"""The start of a line that a program without a fence may begin with."""
_FENCE_LINE = re.compile(r"^[ \t]*```", re.MULTILINE)
_OPENED_AGAIN = re.compile(r"\A\s*```(?:python|py)\b[^\n]*\n")
"""A fence at the start of a completion: models repeat the one the prompt opened, or add one after ``[BEGIN]``."""
_SUSPICIOUS = {
    "exit": r"\b(?:sys\s*\.\s*exit|os\s*\.\s*_exit|exit|quit)\s*\(|\bSystemExit\b",
    "equality": r"\b__(?:eq|ne|hash|class|bool|instancecheck)__\b",
    "frames": r"\b(?:_getframe|currentframe|f_back|f_locals|f_globals|tb_frame|inspect|gc)\b",
    "native": r"\b(?:ctypes|cffi|mmap)\b",
    "processes": r"\b(?:subprocess|popen|fork|execve?|system|kill|ptrace)\s*\(|\bimport\s+subprocess\b",
    "network": r"\b(?:socket|urllib|http|requests)\b",
    "files": r"\bopen\s*\(|\b(?:pathlib|shutil|glob)\b",
    "builtins": r"\b(?:builtins|__builtins__|__import__|globals|setattr)\b",
}


@dataclass(frozen=True)
class Frame:
    """How a prompt asks for a program."""

    template: str
    """For :func:`~grpo_train.tasks.shared.template.ask`: a text with {question} in it, or "chat"."""
    chat: str = "{question}"
    """The user's message under the chat template."""
    prefill: str = ""
    """The beginning of the assistant's answer under the chat template."""

    @property
    def opening(self) -> Literal["fence", "begin", "docstring"] | None:
        """What the prompt leaves open for the program; None if the program does not begin where the prompt ends."""
        end = self._last_text.rstrip()
        if end.count("```") % 2:
            return "fence"
        if end.endswith("[BEGIN]"):
            return "begin"
        return "docstring" if end.endswith('"""') else None

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end the program."""
        stops: dict[str | None, tuple[str, ...]] = {
            "fence": FENCE_STOP, "begin": ("[DONE]",), "docstring": DOCSTRING_STOP,
        }  # fmt: skip
        return stops.get(self.opening, ("</answer>",) if "<answer>" in self._last_text else ())

    @property
    def _last_text(self) -> str:
        return self.prefill if self.template == "chat" else self.template

    def ask(
        self, config: schema.TaskConfig, index: int, question: str, answer: str = "", data: object = None
    ) -> Problem:
        """The problem with the template applied."""
        problem = ask(config, index, question, answer, template=self.template, chat=self.chat, data=data)
        if not problem.messages or not self.prefill:
            return problem
        return replace(problem, messages=(*problem.messages, ("assistant", self.prefill)))


@dataclass(frozen=True)
class ProgramTask(TaskDefaults, ABC):
    """A task whose completions are programs, which run in the sandbox."""

    slow: bool = True
    sandbox: schema.Sandbox = field(default_factory=schema.Sandbox)
    """Limits of a program."""
    frame: Frame = Frame(COMPACT)

    def sandboxed(self, limits: schema.Sandbox) -> ProgramTask:
        allow_weak(limits.allow_weak)
        try:
            isolation()
        except SandboxError as error:  # a container without user namespaces
            raise TaskError(f"task.name {self.name} runs programs that a model wrote: {error}") from error
        return replace(self, sandbox=limits)

    @property
    def memory_bytes(self) -> int:
        """Memory limit of a program."""
        return self.sandbox.memory_mb << 20


@dataclass(frozen=True)
class Program:
    """The program in a completion."""

    source: str | None
    """None if the completion has no program."""
    closed: bool
    """Whether the program ends as its template requires: a stop string, a closing fence or tag, or the end of text."""


def make_frame(
    config: schema.TaskConfig,
    texts: Mapping[str, str],
    *,
    default: str,
    chat: str = "{question}",
    prefill: str = PREFILL,
) -> Frame:
    """The frame of ``task.template`` (else ``default``): one of the task's own ``texts``, a common template, or a
    user's text. Raises TaskError for an unknown name.
    """
    name = config.template or default
    if name == "chat":
        return Frame("chat", chat, prefill)
    text = texts.get(name) or TEMPLATES.get(name, name)
    if "{question}" not in text:
        raise unknown_template(name, [*texts, *TEMPLATES])
    return Frame(text)


def program_of(completion: str, frame: Frame, *, function: str = "", truncated: bool = False) -> Program:
    """The program in a completion. Never raises.

    As EvalPlus' sanitizer: of several fences the longest that is Python counts (of equals the last), and if the task
    tests a ``function``, one that defines it. A fence of another language counts only if all are of another language.
    If no fence defines the ``function``, the longest lines in a row that do are the program. Without a closing mark
    the program extends to the end of the text.
    """
    text = completion.replace("\r\n", "\n")
    closed = not truncated
    if frame.opening:
        inner = _OPENED_AGAIN.sub("", text)
        text, found = _cut(inner, frame.stop if inner == text else (*FENCE_STOP, *frame.stop))
        closed = closed or found
    elif "</answer>" in frame.stop:
        _, opening, answer = text.rpartition("<answer>")
        if not opening:
            return Program(None, closed=False)
        text, end, _ = answer.partition("</answer>")
        closed = bool(end)
    else:
        thoughts, _, answer = text.partition(CLOSE_THINK)
        text = answer or thoughts
    fences = list(_FENCE.finditer(text))
    if len(fences) > 1:
        source: str | None = _in_fence(max(fences, key=lambda fence: _rank(fence, function)))
    elif fences:
        source = _in_fence(fences[0])
    else:
        source = text if frame.opening or frame.stop else None
    if function and function not in (_definitions(source or "") or ()):
        source = _longest_lines(text, function) or source
    return Program(_stripped(source or ""), closed)


def suspicious(source: str) -> list[str]:
    """Kinds of code that a solution of a small problem rarely needs; shown to people, not part of the verdict."""
    return [kind for kind, pattern in _SUSPICIOUS.items() if re.search(pattern, source)]


def denials(attempts: Mapping[str, int]) -> dict[str, float]:
    """Metrics of what a program attempted in the sandbox; a program without attempts counts as 0."""
    kinds = dict.fromkeys(DENIALS, 0) | {kind: n for kind, n in attempts.items() if kind != "canary"}
    return {
        "hacking/canary": float(bool(attempts.get("canary"))),
        **{f"sandbox/denied_{kind}": float(count) for kind, count in kinds.items()},
    }


def _cut(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the first stop string, and whether it has one."""
    starts = [start for start in map(text.find, stop) if start >= 0]
    if "\n```" in stop and (fence := _FENCE_LINE.search(text)):
        starts.append(fence.start())  # an indented fence, or one at the start, whose line break is the prompt's
    return (text[: min(starts)], True) if starts else (text, False)


def _in_fence(fence: re.Match[str]) -> str:
    """The lines of a fence; those of an indented one (in a list) without the indentation."""
    return textwrap.dedent(fence["source"]) if fence["indent"] else fence["source"]


def _rank(fence: re.Match[str], function: str) -> tuple[bool, int, bool, int, int]:
    source, language = _in_fence(fence), fence["language"].lower()
    names = _definitions(source)
    label = 2 if language in ("python", "py", "python3") else 0 if language else 1
    lines = sum(bool(line.strip()) for line in source.split("\n"))
    return function in (names or ()), label, names is not None, lines, fence.start()


def _definitions(source: str) -> set[str] | None:
    """The names that a program defines outside functions and classes; None if it is not Python."""
    try:
        todo: list[ast.AST] = [parse_program(source)]
    except SyntaxError:
        return None
    names: set[str] = set()
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name):
            names |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        else:
            todo += ast.iter_child_nodes(node)
    return names


def _longest_lines(text: str, function: str) -> str:
    """The longest lines in a row that are Python and define the function; "" without any."""
    lines, found = text.split("\n"), ""
    starts = [number for number, line in enumerate(lines) if _STATEMENT.match(line)] if function in text else []
    for start in starts[:MAX_STARTS]:
        end = len(lines)
        while end > start and len(part := "\n".join(lines[start:end])) > len(found):
            try:
                parse_program(part)
            except SyntaxError as error:  # no beginning that has this line is Python
                end = min(end, start + (error.lineno or end - start)) - 1
                continue
            found = part if function in (_definitions(part) or ()) else found
            break
    return found


def _stripped(text: str) -> str | None:
    return text.strip("\n").rstrip() or None
