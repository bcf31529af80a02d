"""From a row of a user's data to a question and its gold answer, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_train.config import schema
from grpo_train.rewards.math_answer import last_boxed
from grpo_train.run_dir.suggest import nearest
from grpo_train.tasks.shared.base import TaskError
from grpo_train.tasks.shared.conversation import Turns, ask_conversation, question_of, turns_of
from grpo_train.tasks.shared.graders import grader_of
from grpo_train.tasks.shared.template import ask

ANSWERED = "messages"
"""Field whose conversation may hold the answer to learn, in data for supervised training."""


@dataclass(frozen=True)
class Fields:
    """Names of the fields of a row."""

    prompt: tuple[str, ...]
    """Alternatives; the first that a file's first row has is used."""
    answer: tuple[str, ...]
    """Alternatives; the first that a row has is used."""
    template: str
    boxed: tuple[str, ...] = ()
    r"""Answer fields with a whole solution, whose last ``\boxed{}`` is the answer."""

    @property
    def names(self) -> frozenset[str]:
        """All of them; the cells of these columns of a CSV file stay as written."""
        return frozenset((*self.prompt, *self.answer, self.template))

    def prompt_of(self, record: Mapping[str, Any]) -> str:
        """The prompt field of a file, from its first row."""
        return next((name for name in self.prompt if name in record), self.prompt[0])


@dataclass(frozen=True)
class Row:
    """A validated row."""

    question: str
    answer: str
    template: str | None
    record: dict[str, Any]
    turns: Turns = ()
    """The prompt's messages, if it is a conversation."""


def row_of(location: str, record: dict[str, Any], prompt: str, fields: Fields, config: schema.Task, grader: str) -> Row:
    """A row, checked. Raises TaskError that begins with ``location``.

    Args:
        prompt: the prompt field of the row's file.
        config: for ``task.template``, which not every conversation can be used with.
        grader: its name, which decides what a gold answer is.
    """
    question, turns = _prompt(location, record, prompt, fields)
    answer = _answer(location, record, fields, grader)
    template = record.get(fields.template)
    if template is not None and not (isinstance(template, str) and template.strip()):
        raise TaskError(f"{location}: '{fields.template}' {_defect(record, fields.template)} (task.template_field)")
    try:
        ask(schema.Task(), 0, "", "", template=template)
        if turns:
            ask_conversation(config, 0, turns, answer, template, None)
    except TaskError as error:
        message = str(error)
        if template is not None:
            message = f"'{fields.template}': {message.removeprefix('task.template: ')}"
        raise TaskError(f"{location}: {message}") from error
    return Row(question, answer, template, record, turns)


def _prompt(location: str, record: dict[str, Any], name: str, fields: Fields) -> tuple[str, Turns]:
    value = record.get(name)
    if isinstance(value, list):
        try:
            turns = turns_of(value, may_start_answer=name != ANSWERED)
        except ValueError as error:
            raise TaskError(f"{location}: '{name}' {error}") from error
        return question_of(turns), turns
    if not isinstance(value, str) or not value.strip():
        if name not in record and len(fields.prompt) > 1 and fields.prompt[0] != "prompt":
            names = ", ".join(fields.prompt)
            raise TaskError(f"{location}: none of the fields {names}; found {_columns(record)}")
        raise TaskError(f"{location}: '{name}' {_defect(record, name)} (task.prompt_field){_other(record, name)}")
    return value.strip(), ()


def _answer(location: str, record: dict[str, Any], fields: Fields, grader: str) -> str:
    name = next((name for name in fields.answer if name in record), None)
    if name is None:
        if not grader_of(grader).needs_gold:
            return ""
        names = " or ".join(f"'{name}'" for name in fields.answer)
        near = _other(record, fields.answer[0], "task.answer_field")
        raise TaskError(f"{location}: {names} is missing (task.answer_field){near}")
    try:
        if name in fields.boxed and last_boxed(str(record[name])) is None:
            raise ValueError(r"has no \boxed{} with the answer")
        return grader_of(grader).gold(record[name])
    except ValueError as error:
        raise TaskError(f"{location}: '{name}' {error} (task.grader: {grader})") from error


def _defect(record: dict[str, Any], name: str) -> str:
    if name not in record:
        return "is missing"
    if record[name] is None:
        return "is empty"
    return "is empty" if isinstance(record[name], str) else f"is {type(record[name]).__name__}, expected text"


def _other(record: dict[str, Any], name: str, key: str = "task.prompt_field") -> str:
    """What to set the key of a missing field to; "" for a field that the row has."""
    if name in record:
        return ""
    near = nearest(name, record)
    fix = f": set {key}: {near}" if near else f": set {key} to one of them" if len(record) > 1 else ""
    return f"; the row has {_columns(record)}{fix}"


def _columns(record: dict[str, Any]) -> str:
    return ", ".join(list(record)[:8])
