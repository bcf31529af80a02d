"""Programs in completions: how a template asks for one, where it ends, and what text of a completion it is.

A template that ends where the program begins (inside an open Markdown fence, after ``[BEGIN]``, after a docstring)
makes the completion the program itself, up to a stop string; after any other it stands in a fence or in answer tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from grpo_train.config import schema
from grpo_train.tasks.shared.base import Problem, TaskError
from grpo_train.tasks.shared.template import TEMPLATES, ask

FENCE_STOP = ("\n```",)
DOCSTRING_STOP = ("\nclass ", "\nassert ", '\n"""', "\nprint", "\nif ", "\n```")
"""bigcode-evaluation-harness (``tasks/mbpp.py``) and evalplus stop base models so: after a function comes chatter."""
PREFILL = "Here is a Python program that does it:\n```python\n"
"""How an assistant's answer is begun under the chat template where a task has no words of its own."""

DENIALS = ("network", "process", "signal", "file", "limits", "introspection")
"""Kinds of attempts that are logged with every program; others where they are made."""

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_FENCE_LINE = re.compile(r"^[ \t]*```", re.MULTILINE)
_OPENED_AGAIN = re.compile(r"\A\s*```(?:python|py)\b[^\n]*\n")
"""A model may write the fence that the prompt has opened once more, or one of its own behind ``[BEGIN]``."""
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
    """How a program is asked for."""

    template: str
    """For :func:`~grpo_train.tasks.shared.template.ask`: a text with {question} in it, or "chat"."""
    stop: tuple[str, ...]
    """Strings behind the program."""
    opened: bool
    """The prompt ends where the program begins."""
    chat: str = "{question}"
    """The user's message under the chat template."""
    prefill: str = ""
    """The beginning of the assistant's answer under the chat template."""

    def ask(self, config: schema.Task, index: int, question: str, answer: str = "", data: object = None) -> Problem:
        """The problem with the template applied."""
        problem = ask(config, index, question, answer, template=self.template, chat=self.chat, data=data)
        if not problem.messages or not self.prefill:
            return problem
        return replace(problem, messages=(*problem.messages, ("assistant", self.prefill)))


@dataclass(frozen=True)
class Program:
    """What of a completion is the program."""

    source: str | None
    """None where there is none."""
    closed: bool
    """What ends a program in its template was written: a stop string, a closing fence or tag, or the end of text."""


def make_frame(
    config: schema.Task, texts: Mapping[str, str], *, default: str, chat: str = "{question}", prefill: str = PREFILL
) -> Frame:
    """The frame of ``task.template`` (else ``default``): one of a task's own ``texts`` by name, one of the common
    templates, or a user's text. Raises TaskError for a name that is none of them.
    """
    name = config.template or default
    if name == "chat":
        return Frame("chat", _stop_of(prefill), _opens(prefill), chat, prefill)
    text = texts.get(name) or TEMPLATES.get(name, name)
    if "{question}" not in text:
        known = ", ".join([*texts, *TEMPLATES])
        raise TaskError(f"task.template: '{name}' is neither one of {known} nor a text with {{question}} in it")
    return Frame(text, _stop_of(text), _opens(text))


def program_of(completion: str, frame: Frame, *, truncated: bool = False) -> Program:
    """The program in a completion. Never raises.

    The last fence counts where there are several: models correct themselves. Without a closing mark the program goes on
    to the end of the text.
    """
    text = completion.replace("\r\n", "\n")
    closed = not truncated
    if frame.opened:
        inner = _OPENED_AGAIN.sub("", text)
        text, found = _cut(inner, frame.stop if inner == text else (*FENCE_STOP, *frame.stop))
        closed = closed or found
    elif "</answer>" in frame.stop:
        _, opening, answer = text.rpartition("<answer>")
        if not opening:
            return Program(None, closed=False)
        text, end, _ = answer.partition("</answer>")
        closed = bool(end)
    if blocks := _FENCE.findall(text):
        return Program(_written(blocks[-1]), closed)
    return Program(_written(text) if frame.opened or frame.stop else None, closed)


def suspicious(source: str) -> list[str]:
    """Kinds of what a solution of a small problem hardly needs, by name: flagged for people, never a verdict."""
    return [kind for kind, pattern in _SUSPICIOUS.items() if re.search(pattern, source)]


def denials(attempts: Mapping[str, int]) -> dict[str, float]:
    """What a program attempted in the sandbox, as metrics: a program that attempted nothing counts, too."""
    kinds = dict.fromkeys(DENIALS, 0) | {kind: n for kind, n in attempts.items() if kind != "canary"}
    return {
        "hacking/canary": float(bool(attempts.get("canary"))),
        **{f"sandbox/denied_{kind}": float(count) for kind, count in kinds.items()},
    }


def _opens(text: str) -> bool:
    return _opening(text) is not None


def _stop_of(text: str) -> tuple[str, ...]:
    stops: dict[str | None, tuple[str, ...]] = {
        "fence": FENCE_STOP, "begin": ("[DONE]",), "docstring": DOCSTRING_STOP,
    }  # fmt: skip
    return stops.get(_opening(text), ("</answer>",) if "<answer>" in text else ())


def _opening(text: str) -> Literal["fence", "begin", "docstring"] | None:
    """What a prompt leaves open for the program."""
    end = text.rstrip()
    if text.count("```") % 2:
        return "fence"
    if end.endswith("[BEGIN]"):
        return "begin"
    return "docstring" if end.endswith('"""') else None


def _cut(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one."""
    places = [place for place in map(text.find, stop) if place >= 0]
    if "\n```" in stop and (fence := _FENCE_LINE.search(text)):
        places.append(fence.start())  # indented, or the very first: its line break is the prompt's
    return (text[: min(places)], True) if places else (text, False)


def _written(text: str) -> str | None:
    return text.strip("\n").rstrip() or None
