"""A stop string ends a completion after the thoughts, in every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from grpo_train.rewards.tags import closes_thoughts, in_thoughts
from grpo_train.rollout.draw import Draw, Ends
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.prompts import end_of
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.rollout.vllm.backend import VllmBackend
from tests.rollout.native.models import TOKENIZER, make_model

STOP = ("</answer>",)
EOS = TOKENIZER.eos_token
CASES = [
    ("1+1=<think>", "put it in <answer></answer>: 46</think><answer>46</answer>", " and more"),
    ("1+1=", "<think>put it in <answer></answer>: 46</think><answer>46</answer>", " and more"),
    ("1+1=", "<answer>46</answer>", " and more"),
    ("1+1=<think></think>", "<answer>46</answer>", "</think><answer>"),
    ("1+1=", "<answer>a <think> tag</answer>", " and more"),
    ("1+1=<think>", f"I <answer>46</answer> give up{EOS}", "</think><answer>46</answer>"),
]


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def generated(backend: Any, prompt: str, budget: int = 200) -> tuple[str, bool]:
    (found,) = backend.generate([ids_of(prompt)], seeds=[0], max_completion_length=budget, temperature=0.0)
    return TOKENIZER.decode(found.ids, skip_special_tokens=False), found.finished


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a model write a text."""

    def draw(text: str) -> None:
        tokens = iter(ids_of(text) + ids_of("0") * 1000)
        monkeypatch.setattr(Draw, "__call__", lambda *_: (torch.tensor([next(tokens)]), None))

    return draw


def vllm_backend(text: str) -> Any:
    """A backend whose server writes a text, and ends at each stop string."""
    prompt: list[int] = []

    def answer(_: str, body: dict[str, Any]) -> dict[str, Any]:
        prompt[:] = prompt or body["prompt"]
        left = ids_of(text)[len(body["prompt"]) - len(prompt) :][: body["max_tokens"]]
        ends = [n for n in range(1, len(left) + 1) if TOKENIZER.decode(left[:n]).endswith((*STOP, EOS))]
        reason = "stop" if ends else "length"
        return {
            "choices": [{"token_ids": left[: min(ends, default=len(left))], "logprobs": None, "finish_reason": reason}]
        }

    backend: Any = object.__new__(VllmBackend)
    backend._stop, backend._model, backend._ends = list(STOP), "m", Ends(None, TOKENIZER, STOP)
    backend._call, backend._sync = answer, lambda: None
    return backend


def backend_of(kind: str, text: str) -> Any:
    if kind == "vllm":
        return vllm_backend(text)
    model = make_model()
    model.generation_config.eos_token_id = TOKENIZER.eos_token_id
    return (TransformersBackend if kind == "transformers" else NativeBackend)(model, TOKENIZER, STOP)


@pytest.mark.parametrize(("prompt", "text", "rest"), CASES)
@pytest.mark.parametrize("kind", ["transformers", "native", "vllm"])
def test_a_stop_string_counts_after_the_thoughts(
    kind: str, prompt: str, text: str, rest: str, drawing: Callable[[str], None]
) -> None:
    drawing(text + rest)
    assert generated(backend_of(kind, text + rest), prompt) == (text, True)


@pytest.mark.parametrize("kind", ["transformers", "native", "vllm"])
def test_a_stop_string_in_the_thoughts_may_be_the_last_token(kind: str, drawing: Callable[[str], None]) -> None:
    text = "say <answer></answer>"
    drawing(text + " on")
    assert generated(backend_of(kind, text + " on"), "<think>", len(ids_of(text))) == (text, False)


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [("<think>\n", "a", True), ("<think>\n", "a</think>", False), ("in <think> </think> tags", "a", False)],
)
def test_thoughts_are_opened_by_the_end_of_the_prompt(prompt: str, completion: str, expected: bool) -> None:
    assert in_thoughts(prompt, completion) is expected


@pytest.mark.parametrize(("text", "closed"), [("<think>\n\n</think>\n\n", True), ("<think>", False), ("a", False)])
def test_a_prompt_that_closes_the_thoughts(text: str, closed: bool) -> None:
    ids: Sequence[int] = ids_of("x" * 30 + text)
    assert closes_thoughts(end_of(ids, TOKENIZER)) is closed
