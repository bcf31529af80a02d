"""Prompts that are conversations: messages with roles, as in TRL's conversational format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_train.config import schema
from grpo_train.tasks.shared.base import Problem, TaskError
from grpo_train.tasks.shared.template import CHAT_QUESTION, ask

Turns = tuple[tuple[str, str], ...]
"""(role, text) of each message."""
ROLES = ("system", "user", "assistant")
UNUSED = ("tool_calls", "reasoning_content", "thinking")
"""Parts of a message that a chat template would render."""


def turns_of(value: Sequence[Any], *, may_start_answer: bool) -> Turns:
    """The turns of a list of ``{"role": …, "content": …}``; a text may be a list of ``{"type": "text", "text": …}``.

    The last turn is the user's; with ``may_start_answer`` also the assistant's, which the completion continues. Raises
    ValueError with the problem.
    """
    turns = tuple(_turn(message, number) for number, message in enumerate(value))
    if not turns:
        raise ValueError("has no messages")
    for number, (role, _) in enumerate(turns):
        if role not in ROLES:
            raise ValueError(f"has a message with the role '{role}' (message {number}), expected {', '.join(ROLES)}")
        if role == "system" and number:
            raise ValueError(f"has a system message after the first message (message {number})")
    last = turns[-1][0]
    if last == "assistant" and not may_start_answer:
        raise ValueError(
            "ends with the assistant's turn, expected the user's: remove the answer, or move it to a column"
        )
    if last == "system":
        raise ValueError("has no turn of the user")
    if last == "user" and not turns[-1][1].strip():
        raise ValueError("ends with an empty turn of the user")
    return turns


def question_of(turns: Turns) -> str:
    """The user's text of a conversation of one turn; all turns of a longer one, for display and comparison."""
    spoken = [turn for turn in turns if turn[0] != "system"]
    return spoken[0][1].strip() if len(spoken) == 1 else as_text(spoken)


def as_text(turns: Sequence[tuple[str, str]]) -> str:
    """A readable version of a conversation."""
    return "\n\n".join(f"{role}: {text}" for role, text in turns)


def ask_conversation(
    config: schema.TaskConfig, index: int, turns: Turns, answer: str, template: str | None, data: object
) -> Problem:
    """The problem of a conversation, which goes through the model's chat template as it is.

    With the template ``chat`` its last turn gets the usual instruction on the format; ``task.system_prompt`` is added
    where it has no system message. Raises TaskError for another template if it is more than one question.
    """
    name = template or config.template
    if name not in (None, "chat"):
        if len(turns) > 1:
            roles = ", ".join(role for role, _ in turns)
            raise TaskError(
                f"task.template: '{name}' takes one question, and a prompt is a conversation ({roles}); remove the "
                "template to use the model's chat template"
            )
        return ask(config, index, turns[0][1].strip(), answer, template=template, data=data)
    question = question_of(turns)
    if name == "chat" and turns[-1][0] == "user":
        turns = (*turns[:-1], ("user", CHAT_QUESTION.replace("{question}", turns[-1][1])))
    if config.system_prompt and turns[0][0] != "system":
        turns = (("system", config.system_prompt), *turns)
    return Problem(index, as_text(turns), answer, question, turns, data)


def _turn(message: Any, number: int) -> tuple[str, str]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"has a message that is not an object with role and content (message {number})")
    if unused := [name for name in UNUSED if message.get(name)]:
        raise ValueError(f"has a message with '{unused[0]}' (message {number}), and only role and content are used")
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text") or "") for part in content)
    if not isinstance(content, str):
        raise ValueError(f"has a message whose content is not text (message {number})")
    return message["role"], content
