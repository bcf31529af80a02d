"""Questions of a connection, asked on the terminal of this process, as ssh asks them: ``up | tee log`` has one, too.

Without a terminal, they are answered no.
"""

from __future__ import annotations

import getpass
import sys

from remote.events import HostKeyAsked, QuestionAsked

TERMINAL = "/dev/tty"


def has_person() -> bool:
    """Whether somebody can answer."""
    try:
        with open(TERMINAL):
            return True
    except OSError:  # or Windows
        return sys.stdin.isatty() and sys.stderr.isatty()


def accept_host_key(question: HostKeyAsked) -> bool:
    """Show an unknown host key; True if it is accepted."""
    text = f"{question.host} has the unknown host key {question.key_type} {question.fingerprint}."
    if not has_person():
        print(f"{text} Accept it once in a terminal: grpo-tui doctor --box NAME", file=sys.stderr)
        return False
    return _line(f"{text}\nIs this the box? [y/N] ").strip().lower() in ("y", "yes")


def answer(question: QuestionAsked) -> str | None:
    """The answer to a question of ssh; None if it was dismissed. It is neither stored nor logged."""
    if question.kind == "touch" or not has_person():
        print(question.text, file=sys.stderr)
        return None
    if question.kind == "confirm":
        return "yes" if _line(f"{question.text} [y/N] ").strip().lower() in ("y", "yes") else None
    try:
        return _line(f"{question.text} ") if question.echo else getpass.getpass(f"{question.text} ")
    except EOFError:
        return None


def _line(prompt: str) -> str:
    try:
        with open(TERMINAL, "w") as screen, open(TERMINAL) as keys:
            print(prompt, end="", file=screen, flush=True)
            return keys.readline().rstrip("\n")
    except OSError:
        print(prompt, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().rstrip("\n")
