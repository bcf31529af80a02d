"""Questions of a connection and the user's answers: the owner thread asks and waits, any thread answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from grpo_train.run_dir.clock import Clock
from remote.events import ClientEvent, HostKeyAsked, QuestionAsked

T = TypeVar("T")


class _Answer(Generic[T]):
    """One answer that a thread waits for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value: T | None = None
        self._given = threading.Event()

    def give(self, value: T | None) -> None:
        self._value = value
        self._given.set()

    def clear(self) -> None:
        self._value = None
        self._given.clear()

    def wait(self) -> T | None:
        """The answer, which is not kept."""
        self._clock.wait(self._given)
        value, self._value = self._value, None
        return value


class Answers:
    """The user's answers to one client's questions. They are neither stored nor logged."""

    def __init__(self, emit: Callable[[ClientEvent], None], closing: threading.Event, clock: Clock) -> None:
        self._emit = emit
        self._closing = closing
        self._host_key: _Answer[bool] = _Answer(clock)
        self._question: _Answer[str] = _Answer(clock)

    def host_key(self, accept: bool) -> None:
        """The answer to HostKeyAsked."""
        self._host_key.give(accept)

    def question(self, answer: str | None) -> None:
        """The answer to QuestionAsked; None if it was dismissed."""
        self._question.give(answer)

    def ask_host_key(self, question: HostKeyAsked) -> bool:
        """Ask, and wait for the answer; False once the client closes."""
        self._host_key.clear()
        self._emit(question)
        return not self._closing.is_set() and bool(self._host_key.wait()) and not self._closing.is_set()

    def ask_question(self, question: QuestionAsked) -> str | None:
        """Ask, and wait for the answer; None at once for a notice, and once the client closes."""
        self._question.clear()
        self._emit(question)
        if question.kind == "touch" or self._closing.is_set():
            return None
        answer = self._question.wait()
        return None if self._closing.is_set() else answer

    def close(self) -> None:
        """End the waits; ``closing`` is set."""
        self._host_key.give(None)
        self._question.give(None)
