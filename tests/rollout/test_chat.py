"""Chat templates with the habits of real models, in minimal form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from grpo_train.config.schema import TaskConfig
from grpo_train.evaluation.results.keys import problems_key
from grpo_train.rollout.chat import MARK, chat_text, prompt_text
from grpo_train.rollout.prompts import encode_prompts
from grpo_train.tasks import Problem, TaskError, load_task

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
"""Inserts the date and strips white space, as Llama 3.2's."""
GEMMA = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + QWEN
"""Rejects system messages, as Gemma 2's."""
THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n"
    "{% endif %}{{ m.content }}</s>{% endfor %}" + ASSISTANT
)
"""Puts an empty think block before a started answer, as Qwen 3's."""


@pytest.fixture
def tokenizer(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.mark.parametrize(
    ("template", "prompt", "started"),
    [
        (QWEN, "<user>Hi. </s><assistant>", "<user>Hi. </s><assistant>Look:\n\n"),
        (GEMMA, "<user>Hi. </s><assistant>", "<user>Hi. </s><assistant>Look:\n\n"),
        (THINKING, "<user>Hi. </s><assistant>", "<user>Hi. </s><assistant><think>\n\n</think>\n\nLook:\n\n"),
    ],
)
def test_question_and_started_answer(tokenizer: Any, template: str, prompt: str, started: str) -> None:
    tokenizer.chat_template = template
    assert chat_text([("user", "Hi. ")], tokenizer) == prompt
    assert chat_text([("user", "Hi. "), ("assistant", "Look:\n\n")], tokenizer) == started


def test_question_may_contain_the_mark(tokenizer: Any) -> None:
    tokenizer.chat_template = QWEN
    assert chat_text([("user", f"a{MARK}b")], tokenizer) == f"<user>a{MARK}b</s><assistant>"
    assert chat_text([("user", MARK), ("assistant", "Look:")], tokenizer) == f"<user>{MARK}</s><assistant>Look:"


def test_white_space_of_a_started_answer_is_kept(tokenizer: Any) -> None:
    tokenizer.chat_template = LLAMA
    assert chat_text([("user", "Hi."), ("assistant", "```python\n")], tokenizer).endswith("<assistant>```python\n")


@pytest.mark.parametrize(
    ("format", "date"),
    [
        ("%d %b %Y", "26 Jul 2024"),
        ("%Y-%m-%d", "2024-07-26"),
        ("%B %d, %Y", "July 26, 2024"),
        ("%A %d/%m/%y %H:%M", "Friday 26/07/24 00:00"),
    ],
)
def test_prompts_have_a_fixed_date(tokenizer: Any, format: str, date: str) -> None:
    tokenizer.chat_template = "{{ strftime_now('" + format + "') }}" + QWEN
    assert chat_text([("user", "Hi.")], tokenizer) == date + "<user>Hi.</s><assistant>"


def test_date_in_a_llama_template(tokenizer: Any) -> None:
    tokenizer.chat_template = LLAMA
    assert "Today Date: 26 Jul 2024<user>Hi.</s><assistant>" in chat_text([("user", "Hi.")], tokenizer)


def test_default_template_among_several(tokenizer: Any) -> None:
    tokenizer.chat_template = {"default": QWEN, "tool_use": "tools"}
    assert chat_text([("user", "Hi.")], tokenizer) == "<user>Hi.</s><assistant>"


def test_template_errors_give_the_fix(tokenizer: Any) -> None:
    tokenizer.chat_template = GEMMA
    with pytest.raises(TaskError, match=r"failed: System role not supported; remove task\.system_prompt"):
        chat_text([("system", "Be brief."), ("user", "Hi.")], tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(TaskError, match="drops the start of the answer"):
        chat_text([("user", "Hi."), ("assistant", "Look:")], tokenizer)
    tokenizer.chat_template = "{% if %}"
    with pytest.raises(TaskError, match=r"this model's chat template failed: .*; use another task\.template"):
        chat_text([("user", "Hi.")], tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(TaskError, match="this model has no chat template"):
        chat_text([("user", "Hi.")], tokenizer)


def test_chat_and_raw_prompts_in_one_batch(tokenizer: Any) -> None:
    """A raw prompt gets the tokenizer's special tokens, a chat those of its template."""
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.eos_token_id)]
    )
    tokenizer.chat_template = QWEN
    chat = Problem(0, "", "", "", messages=(("user", "1+2="),))
    raw = Problem(1, "1+2=", "", "")
    found = encode_prompts([raw, chat, raw], tokenizer)
    assert found[0] == found[2] == (tokenizer.eos_token_id, *tokenizer("1+2=", add_special_tokens=False)["input_ids"])
    assert found[1] == tuple(tokenizer("<user>1+2=</s><assistant>", add_special_tokens=False)["input_ids"])
    assert encode_prompts([], tokenizer) == []


TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    + QWEN
    + "{% if enable_thinking is false %}<think></think>{% endif %}"
)
SCHEMA = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("as_json", [False, True])
def test_tools_and_variables_of_rows_are_used(tokenizer: Any, tmp_path: Path, as_json: bool) -> None:
    tokenizer.chat_template = TOOLS
    columns = {"tools": [SCHEMA | {"strict": None}], "chat_template_kwargs": {"enable_thinking": False, "x": None}}
    row = {name: json.dumps(value) if as_json else value for name, value in columns.items()}
    file = tmp_path / "test.jsonl"
    rows = [{"prompt": [{"role": "user", "content": "Hi"}], "answer": 1, **each} for each in (row, {"tools": None}, {})]
    file.write_text("\n".join(map(json.dumps, rows)))
    task = load_task(TaskConfig(name="data", path=str(file)))
    with_tools, *without = (task.problem("test", index) for index in range(3))
    assert prompt_text(with_tools, tokenizer) == f"[{json.dumps(SCHEMA)}]<user>Hi</s><assistant><think></think>"
    assert [prompt_text(problem, tokenizer) for problem in without] == ["<user>Hi</s><assistant>"] * 2
    assert problems_key([with_tools]) != problems_key([replace(with_tools, template_arguments={})])
    for template, name in (
        (QWEN, "tools"),
        (TOOLS.replace("enable_thinking", "thinks"), "chat_template_kwargs.enable_"),
    ):
        tokenizer.chat_template = template
        with pytest.raises(TaskError, match=rf"column '{name}.* is not used by this model's chat template"):
            encode_prompts([with_tools], tokenizer)
    fixed = replace(with_tools, template_arguments={"add_generation_prompt": False})
    with pytest.raises(TaskError, match=r"column 'chat_template_kwargs.add_generation_prompt' is set by the trainer"):
        encode_prompts([fixed], tokenizer)


@pytest.mark.parametrize("messages", [(), (("user", "1+2\ud83d"),)])
def test_half_a_character_of_any_task_is_an_error(tokenizer: Any, messages: tuple[tuple[str, str], ...]) -> None:
    tokenizer.chat_template = QWEN
    problem = Problem(7, "1+2\ud83d", "3", "1+2", messages)
    assert problems_key([problem])
    with pytest.raises(TaskError, match=r"the prompt of problem 7 has \\ud83d, half of a character: write it whole"):
        encode_prompts([problem], tokenizer)
