"""Requests about the runs of the list: their configurations and last metrics, and a note on one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypedDict

from grpo_train.run_dir.notes import MAX_NOTE
from remote.protocol.fields import ConfigValue
from remote.protocol.index import Names
from remote.protocol.intake import Rule
from remote.protocol.jobs import ChangeRequest

Text: TypeAlias = Annotated[str, Rule("a non-empty string", bool)]
Row: TypeAlias = dict[str, Any]
Note: TypeAlias = Annotated[str, Rule(f"a text of at most {MAX_NOTE} characters", lambda value: len(value) <= MAX_NOTE)]
MAX_FACTS = 100
"""Runs of one ``run_facts`` request."""
Runs: TypeAlias = Annotated[
    list[Text], Rule(f"a list of at most {MAX_FACTS} names", lambda value: len(value) <= MAX_FACTS)
]


@dataclass(frozen=True)
class RunFactsRequest:
    """Configuration, and last values of metrics, of several runs."""

    runs: Runs
    metrics: Names = field(default_factory=list)
    config: bool = True


@dataclass(frozen=True)
class NoteRequest(ChangeRequest):
    """A note on a run, in place of its last one; an empty text removes it."""

    run: Text
    text: Note = ""
    by: str = ""


class RunFactsReply(TypedDict):
    facts: list[Row]
    """RunFacts; a run that cannot be read is left out."""
    same: dict[str, ConfigValue]
    """What is the same in the configuration of all of them, which their rows leave out."""


class NoteReply(TypedDict):
    run: str
    note: str
    """As it is kept, on one line."""
