"""Rollouts of the code game against an opponent model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.config import load_config
from grpo_train.config.schema import Config, Sandbox, TaskConfig
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError
from grpo_train.rewards import load_rewards
from grpo_train.rollout import Completion
from grpo_train.rollout.adversary import Adversary, GreedyOpponent, load_opponent, make_adversary
from grpo_train.rollout.prompts import Prompt
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tasks import Problem, load_task
from grpo_train.tasks.code_game import CodeGameTask, referee
from grpo_train.tasks.shared.base import means
from tests.support.engine import config_text

FIBONACCI = "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(10))"


def game() -> CodeGameTask:
    task = load_task(TaskConfig(name="code_game"), Sandbox(cpu_seconds=1.0))
    assert isinstance(task, CodeGameTask)
    return task


class Writer:
    """A backend that returns given texts, the last one first."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def generate(self, prompts: Sequence[Sequence[int]], *, on_done: Any = None, **_: Any) -> list[Completion]:
        assert len(self.texts) == len(prompts)
        done = [Completion((1,), tuple(text.encode()), (0.0,) * len(text), finished=True) for text in self.texts]
        for index in reversed(range(len(done))):
            on_done(index, done[index])
        return done


class Bytes:
    """A policy whose tokens are bytes, and its tokenizer."""

    @property
    def tokenizer(self) -> Bytes:
        return self

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.text(ids)

    def text(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()


class Oracle:
    """An opponent that always answers 55."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def answer(self, problems: Sequence[Problem]) -> list[str]:
        self.problems = list(problems)
        return ["</think> <answer>55</answer>" for _ in problems]


def small_config(**changes: Any) -> Config:
    defaults: dict[str, Any] = {"task__name": "code_game", "rollout__max_prompt_length": 512}
    return load_config(config_text(**{**defaults, **changes}))


def test_opponent_decides_valid_programs() -> None:
    config = small_config()
    task, oracle = game(), Oracle()
    texts = [
        FIBONACCI, "print('ab' * 3)\n```", "print(", FIBONACCI,
        "import time\nprint(time.time())", "x = 1", "print(5 * 11)", "",
    ]  # fmt: skip
    prompts = [Prompt(task.problem("train", index), (1,)) for index in (3, 7)]
    rewards = load_rewards(task, config)
    adversary = Adversary(task, rewards, Writer(texts), oracle, Bytes(), config)  # type: ignore[arg-type]
    samples = adversary.generate_and_judge(5, [2, 9], prompts)
    found = [(sample.verdict.reason, sample.rewards["score"]) for sample in samples]
    assert found == [
        ("predicted", -1.0), ("ok", 1.0), ("syntax_error", None), ("predicted", -1.0),
        ("forbidden_import", None), ("no_output", None), ("predicted", -1.0), ("no_code", None),
    ]  # fmt: skip
    assert [sample.text for sample in samples] == texts
    assert [sample.problem.index for sample in samples] == [3] * 4 + [7] * 4
    assert len(oracle.problems) == 4
    assert all(problem.prompt.endswith("\nAssistant: <think>") for problem in oracle.problems)
    assert f"What exactly does this Python program print?\n```python\n{FIBONACCI}\n```" in oracle.problems[0].prompt
    logged = means([sample.verdict.metrics for sample in samples])
    assert (logged["code_game/valid"], logged["code_game/predicted"]) == (0.5, 0.75)
    assert (logged["reward/avg_batch_reward"], logged["reward/successful_predictions_count"]) == (-0.5, 3.0)


def test_opponent_is_not_asked_without_valid_programs() -> None:
    task, config = game(), small_config()
    adversary = Adversary(task, load_rewards(task, config), Writer(["print("] * 4), Oracle(), Bytes(), config)  # type: ignore[arg-type]
    samples = adversary.generate_and_judge(0, [0], [Prompt(task.problem("train", 0), (1,))])
    assert [sum(filter(None, sample.rewards.values())) for sample in samples] == [0.0] * 4


@pytest.fixture(scope="module")
def tiny(make_root: Callable[[], Path]) -> tuple[Path, Policy]:
    root = make_root()
    return root, load_policy(small_config().model, root, torch.device("cpu"))


def test_frozen_start_model_answers(tiny: tuple[Path, Policy]) -> None:
    """The opponent keeps its weights while the policy changes, and the policy's weights are restored afterwards."""
    _, policy = tiny
    task, config = game(), small_config(rollout__max_completion_length=12)
    start = [parameter.detach().clone() for parameter in policy.trainable()]

    @contextmanager
    def frozen() -> Iterator[None]:
        own = [parameter.data for parameter in policy.trainable()]
        for parameter, value in zip(policy.trainable(), start, strict=True):
            parameter.data = value
        try:
            yield
        finally:
            for parameter, value in zip(policy.trainable(), own, strict=True):
                parameter.data = value

    question = task.question(referee(FIBONACCI, task.limits))
    opponent = GreedyOpponent(policy, config, frozen)
    before = opponent.answer([question, question])
    assert before[0] == before[1]
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.add_(torch.full_like(parameter, 0.3))
    changed = [parameter.detach().clone() for parameter in policy.trainable()]
    assert opponent.answer([question]) == before[:1]
    assert GreedyOpponent(policy, config).answer([question]) != before[:1]
    assert all(torch.equal(a, b) for a, b in zip(policy.trainable(), changed, strict=True))
    with torch.no_grad():
        for parameter, value in zip(policy.trainable(), start, strict=True):
            parameter.copy_(value)
    adversary = Adversary(task, load_rewards(task, config), Writer([FIBONACCI] * 4), opponent, Bytes(), config)
    samples = adversary.generate_and_judge(0, [0], [Prompt(task.problem("train", 0), (1,))])
    assert {sample.verdict.facts["reply"] for sample in samples} == {before[0]}


def test_another_model_as_opponent(tiny: tuple[Path, Policy]) -> None:
    root, policy = tiny
    config = small_config(task__opponent="models/tiny", rollout__max_completion_length=12)
    other = load_opponent(config, root, policy)
    assert other.model is not policy.model
    assert not any(parameter.requires_grad for parameter in other.model.parameters())
    question = game().question(referee(FIBONACCI, game().limits))
    assert GreedyOpponent(other, config).answer([question]) == GreedyOpponent(policy, config).answer([question])
    for name, message in (("models", "holds neither"), ("no/such/place/at/all", "is not a model directory")):
        with pytest.raises(PolicyError, match=rf"task\.opponent '{name}' \(or start\): .*{message}"):
            load_opponent(small_config(task__opponent=name), root, policy)


def test_rollouts_with_the_tiny_model(tiny: tuple[Path, Policy]) -> None:
    root, policy = tiny
    task, config = game(), small_config(task__opponent="models/tiny", rollout__generation_batch_size=3)
    backend = TransformersBackend(policy.model, policy.tokenizer, stop=task.stop)
    adversary = make_adversary(task, load_rewards(task, config), backend, policy, config, root, nullcontext)
    problems = [task.problem("train", index) for index in range(2)]
    ids = policy.tokenizer([problem.prompt for problem in problems])["input_ids"]
    samples = adversary.generate_and_judge(0, [0, 1], [Prompt(p, tuple(i)) for p, i in zip(problems, ids, strict=True)])
    assert len(samples) == 8
    for sample in samples:
        assert sample.verdict.reason
        assert (sample.rewards["score"] is None) == (not sample.verdict.formatted)
