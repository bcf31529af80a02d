"""Prompts in a model's own chat template.

Two behaviors of common templates are unsuitable for training and are overridden:

- some insert today's date (Llama 3.2), so that a run resumed on another day would use different prompts. Here it is
  always :data:`DATE`, Llama's own default;
- some strip white space from a started answer (Llama, Gemma), such as the line break before a program. Here it is kept,
  as EvalPlus does (``make_raw_chat_prompt``): a marker is appended before rendering, and the text is cut there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError

from grpo_train.tasks import Problem, TaskError

DATE = datetime(2024, 7, 26)
"""Today's date for chat templates that ask for it."""
DATE_CODES = ("%d", "%b", "%B", "%Y", "%m", "%y", "%a", "%A", "%H", "%I", "%M", "%S", "%p", "%j")
"""strftime codes that a template may use."""
MARK = "<<<the completion begins here>>>"


def prompt_text(problem: Problem, tokenizer: Any) -> str:
    """The prompt of a problem as the model gets it. Raises TaskError as :func:`chat_text`."""
    if not problem.messages:
        return problem.prompt
    return chat_text(problem.messages, tokenizer, problem.template_arguments)


def chat_text(
    messages: Sequence[tuple[str, str]], tokenizer: Any, arguments: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Render (role, text) messages as a prompt, special tokens written out.

    ``arguments`` are further variables of the chat template, such as ``tools``; one that the template does not use is
    an error.

    The prompt ends with the text of a final "assistant" message, unchanged: the start of the answer. Raises TaskError
    if the model has no chat template, or its template rejects these messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise TaskError(
            "task.template: chat: this model has no chat template (base models have none); use r1 or your own text"
        )
    template = tokenizer.get_chat_template(tools=arguments.get("tools"))
    _check_arguments(arguments, template, tokenizer)
    is_started = messages[-1][0] == "assistant"
    turns = [{"role": role, "content": text} for role, text in messages]
    if is_started:
        turns[-1]["content"] += MARK
    try:
        text: str = tokenizer.apply_chat_template(
            turns,
            chat_template=with_fixed_date(template),
            tokenize=False,
            add_generation_prompt=not is_started,
            **arguments,
        )
    except TemplateError as error:
        fix = "remove task.system_prompt" if messages[0][0] == "system" else "use another task.template"
        raise TaskError(f"task.template: chat: this model's chat template failed: {error}; {fix}") from error
    if not is_started:
        return text
    prompt, mark, _ = text.rpartition(MARK)
    if not mark:
        raise TaskError(
            "task.template: chat: this model's chat template drops the start of the answer; use another task.template"
        )
    return prompt


def _check_arguments(arguments: Mapping[str, Any], template: str, tokenizer: Any) -> None:
    """Raise TaskError for an argument that the template does not use, or that is set here."""
    ours = {"messages", *inspect.signature(tokenizer.apply_chat_template).parameters} - {"tools", "documents"}
    for name in arguments:
        column = "tools" if name == "tools" else f"chat_template_kwargs.{name}"
        if name in ours or not re.search(rf"\b{re.escape(name)}\b", template):
            why = "is set by the trainer" if name in ours else "is not used by this model's chat template"
            raise TaskError(f"column '{column}' {why}; remove it from the rows")


def with_fixed_date(template: str) -> str:
    """The template with :data:`DATE` as today's date: a macro shadows transformers' function ``strftime_now``."""
    if "strftime_now" not in template:
        return template
    codes = "".join(f" | replace('{code}', '{DATE.strftime(code)}')" for code in DATE_CODES)
    return "{%- macro strftime_now(format) -%}{{ format" + codes + " }}{%- endmacro -%}" + template
