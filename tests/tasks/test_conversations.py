"""Prompts that are conversations: TRL's format, templates, malformed messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import Attempt, Problem, TaskError, load_task

USER = {"role": "user", "content": "What is 2+2?"}
SYSTEM = {"role": "system", "content": "Be short."}
ASSISTANT = {"role": "assistant", "content": "4"}


def problem_of(folder: Path, row: dict[str, Any], **more: Any) -> Problem:
    """The problem of a row, in a file of its own: what was read is kept."""
    file = folder / str(len(list(folder.iterdir()))) / "test.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps({"answer": "4", **row}) + "\n")
    return load_task(TaskConfig(name="jsonl", path=str(file), **more)).problem("test", 0)


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_messages_are_used_as_they_are(tmp_path: Path, field: str) -> None:
    problem = problem_of(tmp_path, {field: [SYSTEM, USER], "level": 3})
    assert problem.messages == (("system", "Be short."), ("user", "What is 2+2?"))
    assert (problem.question, problem.answer) == ("What is 2+2?", "4")
    assert problem.prompt == "system: Be short.\n\nuser: What is 2+2?"
    assert problem.columns["level"] == 3
    task = load_task(TaskConfig(name="jsonl", path=str(tmp_path / "0")))
    assert task.judge(Attempt(problem, "so</think> <answer>4</answer>")).correct


def test_longer_conversations_and_text_parts(tmp_path: Path) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "3+3?"}]}
    problem = problem_of(tmp_path, {"prompt": [USER, ASSISTANT, parts]})
    assert problem.messages[-1] == ("user", "And 3+3?")
    assert problem.question == "user: What is 2+2?\n\nassistant: 4\n\nuser: And 3+3?"
    started = problem_of(tmp_path, {"prompt": [USER, {"role": "assistant", "content": "It is"}]})
    assert started.messages[-1] == ("assistant", "It is")


def test_question_and_answer_need_no_keys(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, {"question": "What is 2+2?"})
    assert (problem.question, problem.messages) == ("What is 2+2?", ())


def test_templates_of_a_conversation(tmp_path: Path) -> None:
    row = {"prompt": [USER]}
    assert problem_of(tmp_path, row, template="r1").prompt.endswith("User: What is 2+2?\nAssistant: <think>")
    assert problem_of(tmp_path, row, template="Q: {question}").prompt == "Q: What is 2+2?"
    with_format = problem_of(tmp_path, row, template="chat", system_prompt="Hi")
    assert with_format.messages[0] == ("system", "Hi")
    assert with_format.messages[1][1].startswith("What is 2+2?\n\nReason step by step")
    assert problem_of(tmp_path, {"prompt": [SYSTEM, USER]}, system_prompt="Hi").messages[0] == ("system", "Be short.")
    assert problem_of(tmp_path, {**row, "template": "question"}).prompt == "What is 2+2?"
    with pytest.raises(
        TaskError, match=r"test\.jsonl, line 1: task\.template: 'r1' takes one question, .*system, user"
    ):
        problem_of(tmp_path, {"prompt": [SYSTEM, USER]}, template="r1")


@pytest.mark.parametrize(
    ("field", "messages", "message"),
    [
        ("prompt", [], "'prompt' has no messages"),
        ("prompt", ["hi"], r"'prompt' has a message that is not an object with role and content \(message 0\)"),
        ("prompt", [{"role": "user"}], r"has a message whose content is not text \(message 0\)"),
        ("prompt", [{"role": "user", "content": [{"type": "image"}]}], "whose content is not text"),
        ("prompt", [{"role": "tool", "content": "x"}], r"the role 'tool' \(message 0\), expected system, user"),
        ("prompt", [USER, SYSTEM], r"has a system message after the first message \(message 1\)"),
        ("prompt", [SYSTEM], "has no turn of the user"),
        ("prompt", [{"role": "user", "content": " "}], "ends with an empty turn of the user"),
        (
            "prompt",
            [USER, {**ASSISTANT, "tool_calls": [{}]}, USER],
            r"has a message with 'tool_calls' \(message 1\), and",
        ),
        ("messages", [USER, ASSISTANT], "'messages' ends with the assistant's turn, expected the user's: remove the"),
    ],
)
def test_malformed_messages_name_line_and_field(tmp_path: Path, field: str, messages: list[Any], message: str) -> None:
    with pytest.raises(TaskError, match=message) as error:
        problem_of(tmp_path, {field: messages})
    assert str(error.value).startswith(f"{tmp_path / '0' / 'test.jsonl'}, line 1: '{field}' ")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": "2+2?", "tools": [{"name": "add"}]},
            "'tools' is for a model's chat template, .* set task.template: chat",
        ),
        (
            {"prompt": "2+2?", "chat_template_kwargs": {"enable_thinking": False}},
            "'chat_template_kwargs' is for a model's",
        ),
        ({"prompt": [USER], "tools": ["add"]}, "'tools' has a tool that is not an object"),
        ({"prompt": [USER], "chat_template_kwargs": "fast"}, "'chat_template_kwargs' is str, expected an object"),
    ],
)
def test_template_arguments_that_cannot_be_used(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=rf"line 1: {message}"):
        problem_of(tmp_path, row)
