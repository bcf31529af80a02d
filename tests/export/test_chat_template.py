"""The chat template of an export: a question sent through a chat API gives the tokens of the training prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers.processors import TemplateProcessing

from grpo_train.config import load_config
from grpo_train.export.chat_template import chat_template, different_prompts
from grpo_train.export.shape import PromptShape, common_shape, sample_problems
from grpo_train.tasks import TaskError
from grpo_train.tiny.tokenizer import make_tokenizer
from tests.rollout.test_chat import GEMMA, LLAMA, QWEN
from tests.support.data import data_file

QUESTIONS = ["What is 5 + 5?", 'Say "{{ x }}" and \\n {%- 1 %}', "Zürich 東京 😀\nIn two lines?", "5"]


def config(tmp_path: Path, **task: Any) -> Any:
    """A config with a task of its own rows."""
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"prompt": question, "answer": "1"}) + "\n" for question in QUESTIONS))
    return load_config(yaml.safe_dump({"task": {"name": "jsonl", "path": str(file), **task}}))


def rendered(settings: Any, tokenizer: Any) -> tuple[PromptShape, int]:
    """The shape of a run's prompts, and how many of its problems the exported template gets wrong."""
    problems = sample_problems(settings)
    shape = common_shape(problems)
    return shape, different_prompts(chat_template(shape, tokenizer), problems, tokenizer)


@pytest.mark.parametrize("template", ["r1", "question", 'My "own" {{ x }} \\d {question}\n\n😀 {% if %}:'])
@pytest.mark.parametrize("special", [False, True], ids=["plain", "start token"])
def test_text_prompts(tmp_path: Path, template: str, special: bool) -> None:
    tokenizer = make_tokenizer()
    if special:
        eos = tokenizer.eos_token
        tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{eos} $A", special_tokens=[(eos, 0)])
        assert tokenizer("x")["input_ids"][0] == tokenizer.eos_token_id
    shape, different = rendered(config(tmp_path, template=template), tokenizer)
    assert not shape.is_chat
    assert different == 0


@pytest.mark.parametrize(
    ("own", "system"),
    [(QWEN, None), (QWEN, 'Answer "briefly".'), (LLAMA, None), (LLAMA, "Be brief."), (GEMMA, None)],
    ids=["qwen", "qwen with system", "llama", "llama with system", "gemma"],
)
def test_chat_prompts_keep_the_instruction(tmp_path: Path, own: str, system: str | None) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = own
    task = {"template": "chat", **({"system_prompt": system} if system else {})}
    shape, different = rendered(config(tmp_path, **task), tokenizer)
    assert "<answer>" in shape.after
    assert shape.system == (system or "")
    assert different == 0


def test_a_conversation_is_framed_turn_by_turn(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = QWEN
    settings = config(tmp_path, template="chat", system_prompt="Be brief.")
    tokenizer.chat_template = chat_template(common_shape(sample_problems(settings)), tokenizer)
    turns = [
        {"role": "system", "content": "Another system."},
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Second?"},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text.count("Reason step by step") == 2
    assert "Be brief." not in text
    assert text.index("Another system.") < text.index("First?") < text.index("One.") < text.index("Second?")


def test_programs_keep_the_started_answer() -> None:
    settings = load_config(
        yaml.safe_dump({"task": {"name": "mbpp", "template": "chat", "path": str(data_file("mbpp.jsonl"))}})
    )
    tokenizer = make_tokenizer()
    tokenizer.chat_template = QWEN
    shape, different = rendered(settings, tokenizer)
    assert shape.prefill.endswith("```python\n")
    assert different == 0


def test_a_template_is_known_without_the_data(tmp_path: Path) -> None:
    settings = load_config(yaml.safe_dump({"task": {"name": "gsm8k", "path": str(tmp_path / "gone")}}))
    shape = common_shape(sample_problems(settings))
    assert shape.before.startswith("A conversation between User and Assistant.")
    assert shape.after == "\nAssistant: <think>"


def test_data_without_training_rows_shows_the_template(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({"prompt": "One?", "answer": "1"}) + "\n")
    settings = load_config(yaml.safe_dump({"task": {"name": "jsonl", "path": str(tmp_path)}}))
    assert [problem.question for problem in sample_problems(settings)] == ["One?"]


def test_prompts_without_a_common_frame() -> None:
    settings = load_config(yaml.safe_dump({"task": {"name": "comparison"}}))
    shape, different = rendered(settings, make_tokenizer())
    assert shape == PromptShape(is_chat=False)
    assert different > 0


def test_a_chat_run_needs_a_chat_template(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(TaskError, match="its tokenizer has none"):
        chat_template(common_shape(sample_problems(config(tmp_path, template="chat"))), tokenizer)
