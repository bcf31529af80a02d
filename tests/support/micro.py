"""The micro model: one layer, 45,000 weights, eight tokens a completion, milliseconds a step.

For tests that train, save, resume or evaluate, and assert nothing about what is learned or how long a text is. Its
completions (``12</think><answer>132</answer>``) are correct often enough for groups with and without spread.

It stands where the tiny model does, as ``models/tiny``. A test takes it by the fixtures ``micro_root`` and
``make_micro_root``, a whole folder by a line of its conftest.py::

    make_root, tiny_model = micro.make_root, micro.tiny_model

:data:`tests.support.engine.MICRO` has the budget of its answers; :data:`~tests.support.engine.SMALL` works, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import Problem, load_worked_task
from grpo_train.tasks.shared.base import WorkedTask

WARM_START: dict[str, Any] = {"steps": 300, "batch_size": 64, "learning_rate": 6e-3}
"""Without it, no answer would be correct."""
SHAPE: dict[str, Any] = {
    "num_hidden_layers": 1, "layer_types": ["full_attention"], "hidden_size": 48, "intermediate_size": 96,
    "num_attention_heads": 3, "num_key_value_heads": 1,
}  # fmt: skip


class Short:
    """A task whose worked examples fit into eight tokens: of a sum, the thought is the sum of the units."""

    def __init__(self, task: WorkedTask) -> None:
        self.task, self.size, self.problem = task, task.size, task.problem

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        answer = self.task.example(problem, rng, careless=False).partition("</think>")[2]
        digits = problem.question[1::3] if self.task.name == "addition" else ""  # of 47+85: 7 and 5
        return f"{sum(map(int, digits)):02d}</think>{answer}" if digits else f"<think></think>{answer}"


def make_micro_model(out: Path, task: str = "addition") -> None:
    """Create, warm-start on a task and save the model, with the tokenizer of the tiny model."""
    import torch
    from transformers import Qwen2ForCausalLM

    from grpo_train.tiny import model as tiny
    from grpo_train.tiny.architectures import config_of
    from grpo_train.tiny.tokenizer import make_tokenizer

    worked: Any = Short(load_worked_task(TaskConfig(name=task)))
    threads = torch.get_num_threads()
    torch.set_num_threads(tiny.THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            tokenizer = make_tokenizer()
            shape = config_of("qwen2", tokenizer)
            shape.update(SHAPE)
            model = Qwen2ForCausalLM(shape)
            tiny._train(model, tokenizer, worked, 0, tiny.WarmStart(**WARM_START), lambda fraction, message: None)
    finally:
        torch.set_num_threads(threads)
    out.parent.mkdir(parents=True, exist_ok=True)
    tiny._save(model, tokenizer, out)


@pytest.fixture(scope="session")
def tiny_model(micro_model: Path) -> Path:
    return micro_model


@pytest.fixture(scope="session")
def make_root(make_micro_root: Callable[[], Path]) -> Callable[[], Path]:
    return make_micro_root
