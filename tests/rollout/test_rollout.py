"""Rollouts: recorded log-probabilities equal the trainer's, and generation_config is ignored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from grpo_train.config.schema import Model, TaskConfig
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.logprobs import LogprobForward, pad_values
from grpo_train.rollout import Completion
from grpo_train.rollout.prompts import PromptSource
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tasks import TaskError, data_order, load_task

PROMPTS = ["1+2=", "12+34=", "How many apples does Anna have? 5+5=", "99+99="]


@pytest.fixture(scope="module")
def policy(tiny_model: Path) -> Policy:
    torch.set_num_threads(1)
    return load_policy(Model(backbone=str(tiny_model), adapter="none"), Path("/"), torch.device("cpu"))


def sample(
    policy: Policy, *, budget: int = 24, temperature: float = 1.0, batch_size: int = 0, stop: tuple[str, ...] = ()
) -> list[Completion]:
    backend = TransformersBackend(policy.model, policy.tokenizer, stop=stop)
    prompts = [prompt for prompt in policy.tokenizer(PROMPTS)["input_ids"] for _ in range(4)]
    return backend.generate(
        prompts, seeds=range(16), max_completion_length=budget, temperature=temperature, batch_size=batch_size
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_recorded_logprobs_equal_the_trainers(policy: Policy, temperature: float) -> None:
    completions = sample(policy, budget=20, temperature=temperature, stop=("</answer>",))
    assert {c.finished for c in completions} == {True, False}, "the test needs both kinds"
    assert len({len(c.prompt_ids) for c in completions}) > 1
    forward = LogprobForward(policy, temperature=temperature)
    for first in range(0, len(completions), 8):
        batch = completions[first : first + 8]
        tokens = forward(batch)
        sampled = pad_values([c.logps for c in batch], tokens.logps.shape[1]).to(policy.device)
        assert_close(tokens.logps.detach(), sampled, atol=2e-5, rtol=1e-5)
        assert ((tokens.entropy >= -1e-6) & (tokens.entropy <= 6.3)).all()


@pytest.mark.parametrize(("top_p", "top_k"), [(0.8, 0), (1.0, 3), (0.9, 5)])
def test_truncated_sampling_logprobs(policy: Policy, top_p: float, top_k: int) -> None:
    """Each token's probability is the policy's divided by the kept mass, which is the correction's weight."""
    prompts = [prompt for prompt in policy.tokenizer(PROMPTS)["input_ids"] for _ in range(4)]
    completions = TransformersBackend(policy.model, policy.tokenizer).generate(
        prompts, seeds=range(16), max_completion_length=12, temperature=1.3, top_p=top_p, top_k=top_k
    )
    whole = LogprobForward(policy, temperature=1.3).score(completions)
    kept = torch.cat([scored - torch.tensor(c.logps) for scored, c in zip(whole, completions, strict=True)]).exp()
    assert kept.max() <= 1 + 1e-4
    assert kept.min() >= (top_p if not top_k else 0) - 1e-4
    assert (kept < 0.999).any()


def test_completions_keep_the_order_of_prompts(policy: Policy) -> None:
    prompts = policy.tokenizer(PROMPTS)["input_ids"]
    assert [c.prompt_ids for c in sample(policy)] == [tuple(p) for p in prompts for _ in range(4)]
    assert [c.prompt_ids for c in sample(policy, batch_size=3)] == [tuple(p) for p in prompts for _ in range(4)]


def test_every_token_has_a_logprob_within_budget(policy: Policy) -> None:
    for completion in sample(policy, budget=9):
        assert 1 <= len(completion.ids) == len(completion.logps) <= 9
        assert completion.finished or len(completion.ids) == 9


def test_stop_string_ends_a_completion(policy: Policy) -> None:
    completions = sample(policy, budget=40, stop=("</answer>",))
    texts = [policy.tokenizer.decode(c.ids, skip_special_tokens=True) for c in completions]
    assert any(text.endswith("</answer>") for text in texts)
    for text, completion in zip(texts, completions, strict=True):
        assert text.count("</answer>") <= 1
        if "</answer>" in text:
            assert text.endswith("</answer>")
            assert completion.finished


def test_greedy_is_deterministic_without_logprobs(policy: Policy) -> None:
    first, again = sample(policy, temperature=0), sample(policy, temperature=0, batch_size=5)
    assert [c.ids for c in first] == [c.ids for c in again]
    assert all(c.logps == () for c in first)
    assert len({c.ids for c in first[:4]}) == 1


def test_generation_config_is_ignored(policy: Policy, tiny_model: Path, tmp_path: Path) -> None:
    opinionated = tmp_path / "model"
    shutil.copytree(tiny_model, opinionated)
    settings = {"top_k": 1, "top_p": 0.1, "repetition_penalty": 5.0, "temperature": 0.01, "do_sample": True}
    settings |= {"min_new_tokens": 30, "no_repeat_ngram_size": 1, "suppress_tokens": [10], "num_beams": 1}
    (opinionated / "generation_config.json").write_text(json.dumps(settings))
    other = load_policy(Model(backbone=str(opinionated), adapter="none"), Path("/"), torch.device("cpu"))
    assert other.model.generation_config.top_k == 1
    assert sample(other) == sample(policy)
    assert sample(other, temperature=0) == sample(policy, temperature=0)
    assert other.model.generation_config.top_k == 1  # put back: it is saved with the model


def test_sampling_restores_the_training_mode(policy: Policy) -> None:
    for mode in (True, False):
        policy.model.train(mode)
        sample(policy, budget=2)
        assert policy.model.training is mode


# ------------------------------------------------------------------------------------------------------- data order


def source(policy: Policy, **changes: int | None) -> PromptSource:
    arguments = {"seed": 3, "max_prompt_length": 64, "limit": None, **changes}
    return PromptSource(load_task(TaskConfig(name="addition")), policy.tokenizer, **arguments)  # type: ignore[arg-type]


def test_prompts_depend_only_on_the_position(policy: Policy) -> None:
    prompts = source(policy, limit=10)
    seen = [prompt.problem.index for first in range(0, 20, 4) for prompt in prompts.draw(first, 4)]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:], "each epoch has its own order"
    assert [p.problem.index for p in source(policy, limit=10).draw(7, 5)] == seen[7:12]
    assert seen == [data_order(10, 3, position) for position in range(20)]
    assert [p.problem.index for p in source(policy, limit=10, seed=4).draw(0, 4)] != seen[:4]
    assert prompts.epoch(20) == 2.0


def test_too_long_prompts_are_skipped_or_an_error(policy: Policy) -> None:
    assert source(policy, max_prompt_length=6).num_too_long == 0
    with pytest.raises(TaskError, match=r"max_prompt_length 5: all 7076 prompts .* \(the shortest has 6 tokens\)"):
        source(policy, max_prompt_length=5)
