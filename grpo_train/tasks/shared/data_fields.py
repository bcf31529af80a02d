"""From a row of a user's data to a question and its gold answer, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_train.config import schema
from grpo_train.rewards.math_answer import last_boxed
from grpo_train.run_dir.errors import nearest
from grpo_train.tasks.shared.base import Problem, TaskError
from grpo_train.tasks.shared.conversation import Turns, ask_conversation, question_of, turns_of
from grpo_train.tasks.shared.graders import grader_of
from grpo_train.tasks.shared.template import ask

ANSWERED = "messages"
"""Field whose conversation may hold the answer to learn, in data for supervised training."""


MAPPED = ("solution", "ground_truth", "reward_model.ground_truth")
"""Names of the gold answer in datasets for TRL and verl, used where a file has no ``answer``."""
KWARGS = "chat_template_kwargs"
MISSING = object()


@dataclass(frozen=True)
class FieldNames:
    """Names of the fields of a row; ``reward_model.ground_truth`` is a field of an object."""

    prompt: tuple[str, ...]
    """Alternatives; the first that a file's first row has is used."""
    answer: tuple[str, ...]
    """Alternatives; the first that a row has is used."""
    template: str
    boxed: tuple[str, ...] = ()
    r"""Answer fields with a whole solution, whose last ``\boxed{}`` is the answer."""
    mapped: tuple[str, ...] = ()
    """Further names of the answer; the first is used that a file's first row has, if that has none of ``answer``."""

    @property
    def names(self) -> frozenset[str]:
        """All of them; the cells of these columns of a CSV file stay as written."""
        return frozenset((*self.prompt, *self.answer, *self.mapped, self.template))

    def of(self, record: Mapping[str, Any], *, needs_gold: bool) -> FieldNames:
        """The fields of a file, from its first row."""
        prompts = [name for name in self.prompt if value_at(record, name) is not MISSING]
        fields = replace(self, prompt=(prompts[0],)) if prompts else self
        if not needs_gold or any(value_at(record, name) is not MISSING for name in self.answer):
            return fields
        answers = [name for name in self.mapped if value_at(record, name) is not MISSING]
        return replace(fields, answer=(answers[0],)) if answers else fields


def value_at(record: Mapping[str, Any], name: str) -> Any:
    """The value of a field; MISSING if there is none."""
    if name in record:
        return record[name]
    outer, dot, inner = name.partition(".")
    within = record.get(outer)
    return value_at(within, inner) if dot and isinstance(within, Mapping) else MISSING


@dataclass(frozen=True)
class DataRow:
    """A validated row."""

    question: str
    answer: str
    template: str | None
    record: dict[str, Any]
    turns: Turns = ()
    """The prompt's messages, if it is a conversation."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """``tools`` and ``chat_template_kwargs``, for the model's chat template."""

    def problem(self, config: schema.TaskConfig, index: int) -> Problem:
        """The problem of this row. Raises TaskError for a template that does not fit it."""
        made = (
            ask_conversation(config, index, self.turns, self.answer, self.template, self.record)
            if self.turns
            else ask(config, index, self.question, self.answer, template=self.template, data=self.record)
        )
        if self.arguments and not made.messages:
            name = "tools" if "tools" in self.arguments else KWARGS
            raise TaskError(
                f"'{name}' is for a model's chat template, and this prompt does not go through one: remove the "
                "column, or set task.template: chat"
            )
        return replace(made, template_arguments=self.arguments) if self.arguments else made


def row_of(
    location: str, record: dict[str, Any], fields: FieldNames, config: schema.TaskConfig, grader: str
) -> DataRow:
    """A row, checked. Raises TaskError that begins with ``location``.

    Args:
        fields: those of the row's file.
        config: for ``task.template``, which not every conversation can be used with.
        grader: its name, which decides what a gold answer is.
    """
    question, turns = _prompt(location, record, fields)
    answer = _answer(location, record, fields, grader)
    template = value_at(record, fields.template)
    template = None if template is MISSING else template
    if template is not None and not (isinstance(template, str) and template.strip()):
        raise TaskError(f"{location}: '{fields.template}' {_defect(record, fields.template)} (task.template_field)")
    try:
        row = DataRow(question, answer, template, record, turns, _template_arguments(record))
        row.problem(config, 0)
    except TaskError as error:
        message = str(error)
        if template is not None and message.startswith("task.template: "):
            message = f"'{fields.template}': {message.removeprefix('task.template: ')}"
        raise TaskError(f"{location}: {message}") from error
    return row


def _template_arguments(record: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of the chat template, from the columns that TRL reads them from; a cell may be JSON text.

    Raises TaskError for what cannot be one.
    """
    tools, variables = (_without_none(_from_json(record.get(name))) for name in ("tools", KWARGS))
    if isinstance(tools, list) and not all(isinstance(tool, Mapping) for tool in tools):
        raise TaskError("'tools' has a tool that is not an object (a JSON schema)")
    if variables and not isinstance(variables, Mapping):
        raise TaskError(f"'{KWARGS}' is {type(variables).__name__}, expected an object")
    return {**({"tools": tools} if tools and isinstance(tools, list) else {}), **(variables or {})}


def _from_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _without_none(value: Any) -> Any:
    """A value without the fields that Parquet adds to objects which do not have them."""
    if isinstance(value, Mapping):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def _prompt(location: str, record: dict[str, Any], fields: FieldNames) -> tuple[str, Turns]:
    name = fields.prompt[0]
    value = value_at(record, name)
    if isinstance(value, list):
        try:
            turns = turns_of(value, may_start_answer=name != ANSWERED)
        except ValueError as error:
            raise TaskError(f"{location}: '{name}' {error}") from error
        return question_of(turns), turns
    if not isinstance(value, str) or not value.strip():
        if value is MISSING and len(fields.prompt) > 1 and name != "prompt":
            names = ", ".join(fields.prompt)
            raise TaskError(f"{location}: none of the fields {names}; found {_columns(record)}")
        raise TaskError(f"{location}: '{name}' {_defect(record, name)} (task.prompt_field){_other(record, name)}")
    return value.strip(), ()


def _answer(location: str, record: dict[str, Any], fields: FieldNames, grader: str) -> str:
    name = next((name for name in fields.answer if value_at(record, name) is not MISSING), None)
    if name is None:
        if not grader_of(grader).needs_gold:
            return ""
        names = " or ".join(f"'{name}'" for name in fields.answer)
        near = _other(record, fields.answer[0], "task.answer_field")
        raise TaskError(f"{location}: {names} is missing (task.answer_field){near}")
    try:
        value = value_at(record, name)
        if name in fields.boxed and last_boxed(str(value)) is None:
            raise ValueError(r"has no \boxed{} with the answer")
        return grader_of(grader).gold(value)
    except ValueError as error:
        raise TaskError(f"{location}: '{name}' {error} (task.grader: {grader})") from error


def _defect(record: dict[str, Any], name: str) -> str:
    value = value_at(record, name)
    if value is MISSING:
        return "is missing"
    return "is empty" if value is None or isinstance(value, str) else f"is {type(value).__name__}, expected text"


def _other(record: dict[str, Any], name: str, key: str = "task.prompt_field") -> str:
    """What to set the key of a missing field to; "" for a field that the row has."""
    if value_at(record, name) is not MISSING:
        return ""
    near = nearest(name, record)
    shown = near if near == str(near).strip() else repr(near)
    fix = f": set {key}: {shown}" if near else f": set {key} to one of them" if len(record) > 1 else ""
    return f"; the row has {_columns(record)}{fix}"


def _columns(record: dict[str, Any]) -> str:
    return ", ".join(list(record)[:8]) or "no fields"
