"""Chat templates: what those of real models do, here in as few words as it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from grpo_train.rollout.chat import MARK, chat_text
from grpo_train.rollout.prompts import encode
from grpo_train.tasks import Problem, TaskError

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
ASSISTANT = "{% if add_generation_prompt %}<assistant>{% endif %}"
QWEN = TURNS + ASSISTANT
LLAMA = (
    "{{- bos_token }}{%- if date_string is not defined %}{%- if strftime_now is defined %}"
    '{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}'
    '{%- endif %}{{- "Today Date: " + date_string }}{%- for m in messages %}'
    '{{- "<" + m.role + ">" + m.content | trim + "</s>" }}{%- endfor %}{%- if add_generation_prompt %}'
    '{{- "<assistant>" }}{%- endif %}'
)
"""The date, and white space cut off, as Llama 3.2's."""
GEMMA = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + QWEN
"""Refuses, as Gemma 2's."""
THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n"
    "{% endif %}{{ m.content }}</s>{% endfor %}" + ASSISTANT
)
"""An answer that is begun has thought already, as Qwen 3's."""


@pytest.fixture
def tokenizer(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.mark.parametrize(
    ("template", "prompt", "begun"),
    [
        (QWEN, "<user>Hi. </s><assistant>", "<user>Hi. </s><assistant>Look:\n\n"),
        (GEMMA, "<user>Hi. </s><assistant>", "<user>Hi. </s><assistant>Look:\n\n"),
        (THINKING, "<user>Hi. </s><assistant>", "<user>Hi. </s><assistant><think>\n\n</think>\n\nLook:\n\n"),
    ],
)
def test_a_question_and_an_answer_that_is_begun(tokenizer: Any, template: str, prompt: str, begun: str) -> None:
    tokenizer.chat_template = template
    assert chat_text([("user", "Hi. ")], tokenizer) == prompt
    assert chat_text([("user", "Hi. "), ("assistant", "Look:\n\n")], tokenizer) == begun


def test_a_question_may_say_anything(tokenizer: Any) -> None:
    tokenizer.chat_template = QWEN
    assert chat_text([("user", f"a{MARK}b")], tokenizer) == f"<user>a{MARK}b</s><assistant>"
    assert chat_text([("user", MARK), ("assistant", "Look:")], tokenizer) == f"<user>{MARK}</s><assistant>Look:"


def test_white_space_that_a_template_cuts_off_an_answer_stays(tokenizer: Any) -> None:
    tokenizer.chat_template = LLAMA
    assert chat_text([("user", "Hi."), ("assistant", "```python\n")], tokenizer).endswith("<assistant>```python\n")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("%d %b %Y", "26 Jul 2024"),
        ("%Y-%m-%d", "2024-07-26"),
        ("%B %d, %Y", "July 26, 2024"),
        ("%A %d/%m/%y %H:%M", "Friday 26/07/24 00:00"),
    ],
)
def test_every_day_asks_the_same(tokenizer: Any, asked: str, said: str) -> None:
    tokenizer.chat_template = "{{ strftime_now('" + asked + "') }}" + QWEN
    assert chat_text([("user", "Hi.")], tokenizer) == said + "<user>Hi.</s><assistant>"


def test_the_date_as_llama_asks_for_it(tokenizer: Any) -> None:
    tokenizer.chat_template = LLAMA
    assert "Today Date: 26 Jul 2024<user>Hi.</s><assistant>" in chat_text([("user", "Hi.")], tokenizer)


def test_a_template_among_several_is_the_default(tokenizer: Any) -> None:
    tokenizer.chat_template = {"default": QWEN, "tool_use": "tools"}
    assert chat_text([("user", "Hi.")], tokenizer) == "<user>Hi.</s><assistant>"


def test_what_a_template_cannot_do_is_said_with_the_way_out(tokenizer: Any) -> None:
    tokenizer.chat_template = GEMMA
    with pytest.raises(TaskError, match=r"refuses: System role not supported \(leave task\.system_prompt out\)"):
        chat_text([("system", "Be brief."), ("user", "Hi.")], tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(TaskError, match="leaves out the beginning of the answer"):
        chat_text([("user", "Hi."), ("assistant", "Look:")], tokenizer)
    tokenizer.chat_template = "{% if %}"
    with pytest.raises(TaskError, match=r"this model's chat template refuses: .*\(use another task\.template\)"):
        chat_text([("user", "Hi.")], tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(TaskError, match="this model has no chat template"):
        chat_text([("user", "Hi.")], tokenizer)


def test_questions_with_and_without_a_chat_stand_side_by_side(tokenizer: Any) -> None:
    """Each keeps the special tokens of its kind: those of a raw prompt are the tokenizer's, a chat's are its own."""
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.eos_token_id)]
    )
    tokenizer.chat_template = QWEN
    chat = Problem(0, "", "", "", messages=(("user", "1+2="),))
    raw = Problem(1, "1+2=", "", "")
    found = encode([raw, chat, raw], tokenizer)
    assert found[0] == found[2] == (tokenizer.eos_token_id, *tokenizer("1+2=", add_special_tokens=False)["input_ids"])
    assert found[1] == tuple(tokenizer("<user>1+2=</s><assistant>", add_special_tokens=False)["input_ids"])
    assert encode([], tokenizer) == []
