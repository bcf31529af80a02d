"""A conversation through a model's own chat template: its text up to where the completion begins.

Templates of real models do what a training run cannot have:

- they say today's date (Llama 3.2): a run resumed tomorrow would ask something else. Here it is always :data:`DATE`,
  Llama's own where nobody knows the date;
- they cut white space off an answer that is begun (Llama, Gemma), the line break before a program. Here it is kept, as
  EvalPlus does (``make_raw_chat_prompt``): what is rendered has a mark behind the beginning, and ends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from grpo_train.tasks import TaskError

DATE = datetime(2024, 7, 26)
"""Today, for a chat template that asks."""
DATE_CODES = ("%d", "%b", "%B", "%Y", "%m", "%y", "%a", "%A", "%H", "%I", "%M", "%S", "%p", "%j")
"""Parts of a date or time that a template may ask for."""
MARK = "<<<the completion begins here>>>"


def chat_text(messages: Sequence[tuple[str, str]], tokenizer: Any) -> str:
    """The prompt of (role, text) ``messages``, special tokens written out; a last "assistant" message is the beginning
    of the answer, word for word.

    Raises TaskError where the model has no chat template, or one that refuses these messages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise TaskError(
            "task.template chat: this model has no chat template (base models have none): use r1, or a text of your own"
        )
    begun = messages[-1][0] == "assistant"
    turns = [{"role": role, "content": text} for role, text in messages]
    if begun:
        turns[-1]["content"] += MARK
    try:
        text: str = tokenizer.apply_chat_template(
            turns,
            chat_template=_of_one_day(tokenizer.get_chat_template()),
            tokenize=False,
            add_generation_prompt=not begun,
        )
    except TemplateError as error:
        way_out = "leave task.system_prompt out" if messages[0][0] == "system" else "use another task.template"
        raise TaskError(f"task.template chat: this model's chat template refuses: {error} ({way_out})") from error
    if not begun:
        return text
    prompt, mark, _ = text.rpartition(MARK)
    if not mark:
        raise TaskError(
            "task.template chat: this model's chat template leaves out the beginning of the answer; use another "
            "task.template"
        )
    return prompt


def _of_one_day(template: str) -> str:
    """The template with :data:`DATE` as today: transformers gives it a function ``strftime_now``, which a macro of that
    name hides."""
    if "strftime_now" not in template:
        return template
    codes = "".join(f" | replace('{code}', '{DATE.strftime(code)}')" for code in DATE_CODES)
    return "{%- macro strftime_now(format) -%}{{ format" + codes + " }}{%- endmacro -%}" + template
