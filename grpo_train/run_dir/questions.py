"""The directory through which a process is asked: questions go in, events come out. Standard library only.

``questions.jsonl`` is appended to by whoever asks, ``answers.jsonl`` by ``grpo-train generate --folder``. A question is
neither in a command line nor on a terminal, and an answer outlives the connection of whoever asked. An empty file
``cancelled-ID`` stops the answer to a question.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import closing_descriptor, to_json

QUESTIONS, ANSWERS = "questions.jsonl", "answers.jsonl"
CANCELLED = "cancelled-"
FOLDER = ".asks"
MAX_QUESTIONS_BYTES = 1 << 24
"""Of a directory; more are refused."""


class BadQuestion(UserError):
    """A line that is not a question."""

    code = "bad_question"


@dataclass(frozen=True)
class AskedQuestion:
    """A question, and how its completions are drawn."""

    id: str
    """Every event of its answer carries it."""
    prompt: str = ""
    index: int | None = None
    """A held-out problem instead of a prompt."""
    count: int = 1
    temperature: float | None = None
    """0 = greedy; None = as the run's evaluation."""
    seed: int = 0

    @classmethod
    def from_line(cls, line: bytes) -> AskedQuestion:
        """The question of a line. Raises BadQuestion."""
        try:
            row = json.loads(line)
            question = cls(**{key: row[key] for key in cls.__dataclass_fields__ if key in row})
        except (ValueError, TypeError, RecursionError):
            raise BadQuestion(f"not a question: {line[:80]!r}") from None
        kinds: dict[str, type | tuple[type, ...]] = {
            "id": str, "prompt": str, "index": (int, type(None)), "count": int, "seed": int,
            "temperature": (int, float, type(None)),
        }  # fmt: skip
        values = asdict(question)
        for name, kind in kinds.items():
            if not isinstance(values[name], kind) or isinstance(values[name], bool):
                raise BadQuestion(f"'{name}' has the wrong type")
        if question.count < 1 or question.seed < 0 or (question.temperature or 0) < 0:
            raise BadQuestion("'count' must be 1 or more, 'seed' and 'temperature' 0 or more")
        return question


def asks_folder(root: Path) -> Path:
    """The directory below a root that holds those of this account."""
    return root / "training_runs" / f"{FOLDER}-{os.geteuid()}"


def make_folder(folder: Path) -> None:
    """Create the directory and its empty files, for this account alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (QUESTIONS, ANSWERS):
        os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def append_row(file: Path, row: dict[str, Any]) -> None:
    """Append one line of JSON in one write. Raises OSError; FileNotFoundError where the directory was removed."""
    with closing_descriptor(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)) as descriptor:
        os.write(descriptor, f"{to_json(row)}\n".encode("utf-8", "replace"))


def add_question(folder: Path, question: AskedQuestion) -> None:
    """Append a question, unless it is there. Raises OSError, BadQuestion for too many."""
    file = folder / QUESTIONS
    if file.stat().st_size > MAX_QUESTIONS_BYTES:
        raise BadQuestion("this process was asked too much; close the view and open it again")
    if f'"id": {json.dumps(question.id)}'.encode() not in file.read_bytes():
        append_row(file, asdict(question))


def cancel(folder: Path, id: str) -> None:
    """Let the answer to a question stop. Raises FileNotFoundError where the directory was removed."""
    os.close(os.open(folder / f"{CANCELLED}{id}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def is_cancelled(folder: Path, id: str) -> bool:
    """Whether the answer to a question shall stop."""
    return id.isalnum() and os.path.exists(folder / f"{CANCELLED}{id}")


class QuestionLog:
    """Reads the lines of ``questions.jsonl`` that are whole, each once."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / QUESTIONS
        self._offset = 0

    def new(self) -> list[bytes]:
        """Lines since the last call. Raises FileNotFoundError where the directory was removed."""
        with self._file.open("rb") as file:
            file.seek(self._offset)
            whole = file.read(MAX_QUESTIONS_BYTES).rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        return [line for line in whole.split(b"\n") if line.strip()]
