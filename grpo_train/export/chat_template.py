"""The prompt template of a run as a Jinja chat template: a chat API then gives the model the prompts of its training.

A base model that was trained on plain text (R1) gets a template of its own. An Instruct model keeps its template, with
the run's instruction around every user's message and the run's system message where a conversation has none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grpo_train.export.shape import PromptShape
from grpo_train.policy.tokenizer import special_start
from grpo_train.rollout.chat import with_fixed_date
from grpo_train.rollout.prompts import encode_prompts
from grpo_train.tasks import Problem, TaskError

TEXT = """\
{{{{- {start} -}}}}
{{%- for message in messages -%}}
    {{%- if message['role'] == 'user' -%}}
        {{{{- {before} + message['content'] + {after} -}}}}
    {{%- else -%}}
        {{{{- message['content'] + '\\n' -}}}}
    {{%- endif -%}}
{{%- endfor -%}}
"""
CHAT = """\
{{%- set run = namespace(messages=[]) -%}}
{{%- set system = {system} -%}}
{{%- if system and (not messages or messages[0]['role'] != 'system') -%}}
    {{%- set run.messages = [{{'role': 'system', 'content': system}}] -%}}
{{%- endif -%}}
{{%- for message in messages -%}}
    {{%- if message['role'] == 'user' -%}}
        {{%- set framed = {before} + message['content'] + {after} -%}}
        {{%- set run.messages = run.messages + [{{'role': 'user', 'content': framed}}] -%}}
    {{%- else -%}}
        {{%- set run.messages = run.messages + [message] -%}}
    {{%- endif -%}}
{{%- endfor -%}}
{{%- set messages = run.messages -%}}
"""
PREFILL = "{{%- if add_generation_prompt -%}}{{{{- {prefill} -}}}}{{%- endif -%}}"


def chat_template(shape: PromptShape, tokenizer: Any) -> str:
    """The Jinja template of a run's prompts. Raises TaskError for a chat run on a model without a chat template."""
    texts = {name: _literal(getattr(shape, name)) for name in ("before", "after", "system", "prefill")}
    if not shape.is_chat:
        return TEXT.format(start=_literal(tokenizer.decode(special_start(tokenizer))), **texts)
    if not tokenizer.chat_template:
        raise TaskError("the run was trained with a chat template, but its tokenizer has none")
    own = with_fixed_date(tokenizer.get_chat_template())
    frame = CHAT.format(**texts) if shape.before or shape.after or shape.system else ""
    return frame + own + (PREFILL.format(**texts) if shape.prefill else "")


def different_prompts(template: str, problems: Sequence[Problem], tokenizer: Any) -> int:
    """Number of problems whose question, sent through the template, does not give the tokens of its training prompt."""
    expected = encode_prompts(problems, tokenizer)
    different = 0
    for problem, ids in zip(problems, expected, strict=True):
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}],
            chat_template=template,
            add_generation_prompt=True,
            tokenize=False,
        )
        different += tuple(tokenizer(rendered, add_special_tokens=False)["input_ids"]) != ids
    return different


def _literal(text: str) -> str:
    """A Jinja string. Jinja reads the escapes of JSON; other characters stay as they are."""
    return json.dumps(text, ensure_ascii=False)
