"""Prompt templates: R1, the model's own chat template, or a user's text."""

from __future__ import annotations

from collections.abc import Iterable

from grpo_train.config import schema
from grpo_train.tasks.shared.base import Problem, TaskError

R1_TEMPLATE = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. "
    "The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags, "
    "respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
    "User: {question}\nAssistant: <think>"
)
"""understand-r1-zero, ``apply_r1_template``; the prompt ends with the opening <think>."""
CHAT_QUESTION = (
    "{question}\n\nReason step by step inside <think> </think> tags, then give the final answer alone inside "
    "<answer> </answer> tags."
)
"""The user's message to an Instruct model."""
TEMPLATES = {"r1": R1_TEMPLATE, "chat": CHAT_QUESTION, "question": "{question}"}


def ask(
    config: schema.TaskConfig,
    index: int,
    question: str,
    answer: str,
    *,
    default: str = "r1",
    template: str | None = None,
    chat: str = CHAT_QUESTION,
    data: object = None,
) -> Problem:
    """The problem with a template applied: ``template`` (a row's own), else ``task.template``, else ``default``.

    ``chat`` is the user's message under the chat template. Raises TaskError for an unknown template.
    """
    name = template or config.template or default
    text = chat if name == "chat" else TEMPLATES.get(name, name)
    if "{question}" not in text:
        raise unknown_template(name, TEMPLATES)
    prompt = text.replace("{question}", question)  # not str.format: a question may contain braces
    messages: tuple[tuple[str, str], ...] = ()
    if name == "chat":
        system = (("system", config.system_prompt),) if config.system_prompt else ()
        messages = (*system, ("user", prompt))
    return Problem(index, prompt, answer, question, messages, data)


def check_template(config: schema.TaskConfig) -> None:
    """Raise TaskError for an unknown ``task.template``."""
    ask(config, 0, "", "")


def unknown_template(name: str, known: Iterable[str]) -> TaskError:
    """The error for a template that is neither a known name nor a text with {question}."""
    return TaskError(f"task.template: '{name}' is neither one of {', '.join(known)} nor a text with {{question}} in it")
