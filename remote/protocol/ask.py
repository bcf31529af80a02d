"""Requests to a process that answers questions to checkpoints (``grpo-train generate --folder``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict

from remote.protocol.intake import Rule
from remote.protocol.jobs import ChangeRequest, CommandRequest, JobReply, NonNegative, Text
from remote.protocol.messages import RemoteError

MAX_PROMPT = 65_536
"""Characters of a question."""
MAX_COUNT = 64
"""Completions of each checkpoint."""
_ID = re.compile(r"[0-9a-f]{32}")
AskId: TypeAlias = Annotated[str, Rule("the id of an opened process", lambda value: bool(_ID.fullmatch(value)))]
QuestionId: TypeAlias = Annotated[str, Rule("the id of a question", lambda value: bool(_ID.fullmatch(value)))]
Prompt: TypeAlias = Annotated[
    str, Rule(f"a question of at most {MAX_PROMPT:,} characters", lambda value: len(value) <= MAX_PROMPT)
]
Samples: TypeAlias = Annotated[int, Rule(f"an integer from 1 to {MAX_COUNT}", lambda value: 1 <= value <= MAX_COUNT)]
Number: TypeAlias = Annotated[int, Rule("an integer of 0 or more", lambda value: value >= 0)]
Checkpoints: TypeAlias = Annotated[
    list[Number], Rule("a list of 1 or 2 steps", lambda value: 1 <= len(value) <= 2 and len(set(value)) == len(value))
]
Device: TypeAlias = Annotated[str, Rule("'cpu', 'cuda' or ''", lambda value: value in ("", "cpu", "cuda"))]


@dataclass(frozen=True)
class OpenAskRequest(CommandRequest):
    """Starts the process in the session ``ask_<run>``; the key is required, and names the process."""

    run: Text
    steps: Checkpoints
    """One checkpoint, or two that get the same seeds. 0 = the model the run started from."""
    device: Device = ""
    """"" = as the run's config, but no GPU of a run that is training."""


@dataclass(frozen=True)
class AskRequest(ChangeRequest):
    """Asks a question, or a held-out problem by its number."""

    ask: AskId
    prompt: Prompt = ""
    index: Number | None = None
    count: Samples = 1
    temperature: NonNegative | None = None
    """0 = greedy; None = as the run's evaluation."""
    seed: Number = 0

    def __post_init__(self) -> None:
        if bool(self.prompt.strip()) == (self.index is not None):
            raise RemoteError("bad_request", "either 'prompt' or 'index' is required")


@dataclass(frozen=True)
class CancelAnswerRequest(ChangeRequest):
    """Stops the answer to one question; the process stays. An engine that does not know this answers to the end."""

    ask: AskId
    question: QuestionId


@dataclass(frozen=True)
class CloseAskRequest(ChangeRequest):
    """Ends the process and removes its questions and answers."""

    ask: AskId


class OpenAskReply(JobReply):
    ask: str
    """Id of the process."""
    answers: str
    """Its file of events, relative to the root, to be followed as a log (:mod:`grpo_train.ask.output`)."""


class AskReply(TypedDict):
    question: str
    """Its events carry this id."""


class CancelAnswerReply(TypedDict):
    question: str


class CloseAskReply(TypedDict):
    left: list[int]
    """Processes that even SIGKILL did not end."""
