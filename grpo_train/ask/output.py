"""What is shown of the answers: text for a reader, JSON lines for a program, events in a directory for the app."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import to_json
from grpo_train.run_dir.questions import ANSWERS, append_row, is_cancelled

if TYPE_CHECKING:
    from grpo_train.ask.checkpoint import Answer, AskedCheckpoint
    from grpo_train.ask.questions import Question

FLUSH_S = 0.15
"""Text is collected for this long: one event per token would be ten times its text."""
MAX_CHARACTERS = 80_000
"""Of a text in an event of a directory: a line stays below 1 MiB, which is all that its readers take."""


class SessionOutput:
    """What is shown of a session."""

    def ready(self, checkpoints: Sequence[AskedCheckpoint]) -> None: ...

    def question(self, question: Question, checkpoint: AskedCheckpoint) -> None: ...

    def checkpoint(self, name: str) -> None: ...

    def text(self, sample: int, text: str) -> None: ...

    def answer(self, answer: Answer) -> None: ...

    def error(self, error: UserError) -> None:
        print(f"error: {error}", file=sys.stderr, flush=True)


class TextOutput(SessionOutput):
    """For a reader: a single completion as it is drawn, several as each ends."""

    def __init__(self, checkpoints: int, count: int) -> None:
        self._named, self._streams = checkpoints > 1, count == 1

    def question(self, question: Question, checkpoint: AskedCheckpoint) -> None:
        number = "" if question.index is None else f"problem {question.index}: "
        gold = f"  (answer: {question.problem.answer})" if question.problem.answer else ""
        print(f"{number}{question.problem.question}{gold}\n", flush=True)

    def checkpoint(self, name: str) -> None:
        if self._named:
            print(f"--- {name}", flush=True)

    def text(self, sample: int, text: str) -> None:
        if self._streams:
            print(text, end="", flush=True)

    def answer(self, answer: Answer) -> None:
        if not self._streams:
            print(f"[{answer.sample + 1}] {answer.completion}", end="", flush=True)
        print(f"\n    {verdict_text(answer)}\n", flush=True)


class JsonOutput(SessionOutput):
    """For a program: one event a line."""

    def __init__(self) -> None:
        self._checkpoint = ""

    def ready(self, checkpoints: Sequence[AskedCheckpoint]) -> None:
        self.say("ready", checkpoints=[each.name for each in checkpoints], device=checkpoints[0].device)

    def question(self, question: Question, checkpoint: AskedCheckpoint) -> None:
        problem = question.problem
        self.say(
            "question", question=problem.question, index=question.index, answer=problem.answer,
            prompt=checkpoint.prompt_of(problem),
        )  # fmt: skip

    def checkpoint(self, name: str) -> None:
        self._checkpoint = name

    def text(self, sample: int, text: str) -> None:
        self.say("text", checkpoint=self._checkpoint, sample=sample, text=text)

    def answer(self, answer: Answer) -> None:
        self.say("completion", **asdict(answer))

    def error(self, error: UserError) -> None:
        self.say("error", message=str(error), code=error.code)

    def say(self, event: str, **fields: Any) -> None:
        """Write an event."""
        print(to_json({"event": event, **fields}), flush=True)


class AnswerCancelled(Exception):
    """Whoever asked wants no more of this answer."""


class FolderOutput(JsonOutput):
    """For the app: events in ``answers.jsonl`` of a directory, with bounded texts.

    ``starting``, ``ready`` or ``failed``; of each question ``question``, ``text``, ``completion``, ``error`` and, last,
    ``done``; ``ended`` with a reason.
    """

    def __init__(self, folder: Path, clock: Clock = CLOCK) -> None:
        super().__init__()
        self._folder, self._clock = folder, clock
        self._file = folder / ANSWERS
        self._id = ""
        self._pieces: dict[int, str] = {}
        self._sent: dict[tuple[str, int], int] = {}
        """Characters of each completion that were written."""
        self._flushed_at = 0.0

    def begin(self, id: str) -> None:
        """The events that follow are of this question; "" = of none."""
        self._id, self._sent = id, {}

    def checkpoint(self, name: str) -> None:
        self.flush()
        super().checkpoint(name)

    def text(self, sample: int, text: str) -> None:
        """Collect and write text. Raises AnswerCancelled."""
        self._pieces[sample] = self._pieces.get(sample, "") + text
        if self._clock.monotonic() - self._flushed_at >= FLUSH_S:
            self.flush()
            self.check_cancelled()

    def check_cancelled(self) -> None:
        """Raise AnswerCancelled once the answer to this question shall stop."""
        if is_cancelled(self._folder, self._id):
            raise AnswerCancelled

    def flush(self) -> None:
        """Write the text that was collected."""
        pieces, self._pieces, self._flushed_at = self._pieces, {}, self._clock.monotonic()
        for sample, text in pieces.items():
            place = (self._checkpoint, sample)
            sent = self._sent.get(place, 0)
            if shown := text[: MAX_CHARACTERS - sent]:
                self._sent[place] = sent + len(shown)
                super().text(sample, shown)

    def answer(self, answer: Answer) -> None:
        self.flush()
        fields = asdict(answer)
        fields["completion"] = answer.completion[:MAX_CHARACTERS]
        self.say("completion", **fields, characters=len(answer.completion))

    def say(self, event: str, **fields: Any) -> None:
        named = {"id": self._id} if self._id else {}
        append_row(self._file, {"event": event, **named, **{key: _cut(value) for key, value in fields.items()}})


def _cut(value: Any) -> Any:
    return value[:MAX_CHARACTERS] if isinstance(value, str) else value


def verdict_text(answer: Answer) -> str:
    """``212 tokens, correct, accuracy 2`` of a completion."""
    parts = [f"{answer.length} tokens" + (", cut off" if answer.truncated else "")]
    if answer.correct is not None:
        parts.append("correct" if answer.correct else answer.reason.replace("_", " "))
    parts += [f"{name} {value:g}" for name, value in answer.rewards.items() if value is not None]
    return ", ".join(parts)
