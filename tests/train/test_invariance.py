"""Invariance of the gradient: one recorded buffer gives one gradient, however it is split, packed, chunked or shared.

Completions are recorded once (splitting ``generate``'s own batch would change the samples) with real rewards; some
groups have no spread. In float64, loss and gradient may differ by at most 1e-12.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_train.algorithm.losses import LOSS_TYPES
from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rewards import load_rewards
from grpo_train.rollout.collect import SingleTurn
from grpo_train.rollout.prompts import PromptSource
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tasks import load_task
from grpo_train.train import buffer as buffers
from grpo_train.train.buffer import deal_buffer, groups_of, make_buffer
from grpo_train.train.distributed import World
from grpo_train.train.gradients import GradientSum
from grpo_train.train.loop import accumulate_gradients
from grpo_train.train.samples import compute_advantages, gather_samples, total_rewards
from tests.support.engine import config_text
from tests.support.two_processes import run_in_two

GROUPS, GENERATIONS = 8, 4
SIZES = {"rollout__buffer_size": GROUPS, "rollout__num_generations": GENERATIONS, "train__microbatch_size": 2}
PLAIN = {
    "train__microbatch_size": GROUPS,
    "train__packing": False,
    "train__chunked_logprobs": False,
    "train__skip_zero_advantages": False,
}
Recording = tuple[Policy, dict[str, Any]]


def make_config(**changes: Any) -> Config:
    return load_config(config_text(**{**SIZES, **changes}))


@pytest.fixture(scope="module")
def small_root(make_root: Callable[[], Path]) -> Path:
    return make_root()


@pytest.fixture(scope="module")
def recording(small_root: Path) -> Recording:
    """A policy in float64 and the buffer it filled."""
    torch.set_num_threads(1)
    policy = load_policy(make_config().model, small_root, torch.device("cpu"))
    state = record(policy)
    in_float64(policy.model)
    return policy, state


def record(policy: Policy) -> dict[str, Any]:
    """State of a buffer with old and reference log-probabilities, perturbed as if the policy had moved since."""
    config = make_config()
    task = load_task(config.task)
    source = PromptSource(task, policy.tokenizer, seed=0, max_prompt_length=64, limit=None)
    prompts = source.draw(0, GROUPS)
    backend = TransformersBackend(policy.model, policy.tokenizer, stop=task.stop)
    collector = SingleTurn(task, load_rewards(task, config), backend, policy, config)
    groups = groups_of(World(), config)
    rollouts = collector.generate_and_judge(0, groups, prompts)
    samples = gather_samples(rollouts, World())
    advantages = compute_advantages(samples, total_rewards(samples, config.algorithm), config)
    buffer = make_buffer(rollouts, groups, samples, advantages, config)
    noise = torch.Generator().manual_seed(1)
    for values in (buffer.old_logps, buffer.ref_logps):
        values += [torch.tensor(c.logps) + 0.1 * torch.randn(len(c.ids), generator=noise) for c in buffer.completions]
    spread = buffer.advantages.view(GROUPS, GENERATIONS).abs().sum(dim=1) > 0
    assert 2 <= spread.sum() < GROUPS, "the seed must give groups with and without spread"
    return buffers.to_state(buffer, World(), config)


def in_float64(model: torch.nn.Module) -> None:
    """Convert a model completely: transformers' RMSNorm computes in float32 whatever its input."""
    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            norm = functools.partial(torch.nn.functional.rms_norm, normalized_shape=module.weight.shape)
            module.forward = functools.partial(norm, weight=module.weight, eps=module.variance_epsilon)


class Simulated(World):
    """A rank of a simulated world: the test itself sums over the ranks."""

    def sum_(self, tensor: torch.Tensor) -> None:
        pass


def gradient_of(
    recording: Recording, config: Config, rank: int = 0, world_size: int = 1, max_rows: int = 0
) -> tuple[float, torch.Tensor]:
    """Loss and flat gradient of a rank's share of the first update."""
    policy, state = recording
    state = copy.deepcopy(state)
    if not config.algorithm.beta:
        state["ref_logps"] = []
    world = Simulated(rank, rank, world_size)
    forward = LogprobForward(
        policy,
        temperature=config.rollout.temperature,
        packing=config.train.packing,
        chunked=config.train.chunked_logprobs,
    )
    inner = policy.model
    if config.train.gradient_checkpointing:
        inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        inner.gradient_checkpointing_disable()
    assert forward.packed == config.train.packing
    assert forward.chunked == config.train.chunked_logprobs
    gradients = GradientSum(policy.trainable())
    gradients.start()
    buffer = buffers.from_state(state, world, config)
    sums = accumulate_gradients(forward, buffer, 0, gradients, config, max_rows=max_rows)
    gradients.all_reduce(world)
    gradients.close()
    flat = torch.cat([p.grad.flatten() for p in policy.trainable() if p.grad is not None])
    return float(sums.collect().sums[0]), flat.clone()


def assert_same(one: tuple[float, torch.Tensor], other: tuple[float, torch.Tensor], tolerance: float = 1e-12) -> None:
    assert one[0] == pytest.approx(other[0], abs=tolerance)
    assert one[1].norm() > 1e-6
    torch.testing.assert_close(one[1], other[1], atol=tolerance, rtol=0)


@pytest.fixture(scope="module", params=[*LOSS_TYPES, "dr_grpo with beta and entropy"])
def plain(request: pytest.FixtureRequest, recording: Recording) -> tuple[dict[str, Any], tuple[float, torch.Tensor]]:
    """Config changes that select the loss, and its gradient computed plainly: one padded micro-batch, full logits, all
    completions."""
    changes: dict[str, Any] = {"algorithm__loss_type": request.param.split()[0]}
    if "beta" in request.param:
        changes |= {"algorithm__beta": 0.05, "algorithm__entropy_coef": 0.01}
    return changes, gradient_of(recording, make_config(**changes, **PLAIN))


WAYS: dict[str, dict[str, Any]] = {
    "one group a micro-batch": {"train__microbatch_size": 1},
    "four groups a micro-batch": {"train__microbatch_size": 4},
    "a budget of tokens": {"train__microbatch_size": 4, "train__token_budget": 104},
    "padded": {"train__packing": False},
    "full logits": {"train__chunked_logprobs": False},
    "nothing skipped": {"train__skip_zero_advantages": False},
    "gradient checkpointing": {"train__gradient_checkpointing": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_gradient_is_the_same_however_computed(
    recording: Recording, plain: tuple[dict[str, Any], tuple[float, torch.Tensor]], way: str
) -> None:
    changes, expected = plain
    assert_same(gradient_of(recording, make_config(**changes, **WAYS[way])), expected)


def test_smaller_passes_give_the_same_gradient(
    recording: Recording, plain: tuple[dict[str, Any], tuple[float, torch.Tensor]]
) -> None:
    """What a rank does that ran out of memory."""
    changes, expected = plain
    for rows in (5, 1):
        assert_same(gradient_of(recording, make_config(**changes), max_rows=rows), expected)


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradient_is_the_same_for_any_world_size(
    recording: Recording, plain: tuple[dict[str, Any], tuple[float, torch.Tensor]], world_size: int
) -> None:
    changes, expected = plain
    config = make_config(**changes, run__nproc=world_size)
    shares = [gradient_of(recording, config, rank, world_size) for rank in range(world_size)]
    total = sum(loss for loss, _ in shares), torch.stack([gradient for _, gradient in shares]).sum(dim=0)
    assert_same(total, expected)


@pytest.mark.parametrize("updates", [2, 4])
def test_updates_are_the_same_for_any_world_size(recording: Recording, updates: int) -> None:
    changes = {"algorithm__updates_per_buffer": updates, "train__microbatch_size": 1}
    expected = gradient_of(recording, make_config(**changes))
    shares = [gradient_of(recording, make_config(**changes, run__nproc=2), rank, 2) for rank in range(2)]
    assert_same((sum(loss for loss, _ in shares), shares[0][1] + shares[1][1]), expected)


@pytest.mark.parametrize("loss", ["dr_grpo", "dapo", "gspo"])
def test_float32_gradient_norm_within_1e_5(recording: Recording, small_root: Path, loss: str) -> None:
    single = load_policy(make_config().model, small_root, torch.device("cpu"))
    ways = [make_config(algorithm__loss_type=loss, **way) for way in (PLAIN, *WAYS.values())]
    norms = [gradient_of((single, recording[1]), config)[1].norm().item() for config in ways]
    assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-5)


def test_masked_completions_have_no_gradient(recording: Recording) -> None:
    """Masking in the loss equals zero advantages, except for the completions counted."""
    policy, state = recording
    masked = copy.deepcopy(state)
    masked["counted"] = torch.arange(GROUPS * GENERATIONS) % 3 != 0
    lengths = torch.tensor([len(c["ids"]) for c in masked["completions"]], dtype=torch.float64)
    masked["tokens_per_update"] = [float((lengths * masked["counted"]).sum())]
    zeroed = copy.deepcopy(masked)
    zeroed["advantages"] = masked["advantages"] * masked["counted"]
    zeroed["counted"] = torch.ones(GROUPS * GENERATIONS, dtype=torch.bool)
    for skip in (True, False):
        for loss in ("dr_grpo", "dapo"):
            config = make_config(algorithm__loss_type=loss, train__skip_zero_advantages=skip)
            assert_same(gradient_of((policy, masked), config), gradient_of((policy, zeroed), config))


def test_micro_batch_norms(recording: Recording) -> None:
    """The noise-scale probe gets the norm of each micro-batch's contribution, in pieces or whole."""
    policy, state = recording
    parts = []
    for first in range(GROUPS):
        alone = copy.deepcopy(state)
        keep = torch.zeros(GROUPS * GENERATIONS)
        keep[first * GENERATIONS : (first + 1) * GENERATIONS] = 1
        alone["advantages"] = state["advantages"] * keep
        parts.append(
            gradient_of((policy, alone), make_config())[1].square().sum().item() if alone["advantages"].any() else 0
        )
    for budget in (0, 104):
        config = make_config(train__microbatch_size=1, train__token_budget=budget)
        state_1 = {**copy.deepcopy(state), "ref_logps": []}
        gradients = GradientSum(policy.trainable())
        gradients.start()
        forward = LogprobForward(policy, temperature=1.0)
        accumulate_gradients(forward, buffers.from_state(state_1, World(), config), 0, gradients, config)
        assert gradients.all_reduce(World()) == pytest.approx(parts, rel=1e-9)
        gradients.close()


def gradient_on_a_rank(root: Path, state: dict[str, Any], live: int | None) -> dict[str, Any]:
    """Runs in both processes. Of the groups that were generated, rank 1 has none with spread and rank 0 has ``live``.
    None = all groups as recorded, with a KL penalty and an entropy bonus."""
    policy = load_policy(make_config().model, root, torch.device("cpu"))
    in_float64(policy.model)
    keep = torch.zeros(GROUPS, GENERATIONS)
    with_spread = (state["advantages"].view(GROUPS, GENERATIONS).abs().sum(dim=1) > 0).nonzero().flatten().tolist()
    source = state["advantages"].view(GROUPS, GENERATIONS)[with_spread[0]]
    changes: dict[str, Any] = {"algorithm__beta": 0.05, "algorithm__entropy_coef": 0.01}
    if live is not None:
        changes = {}
        keep[:live] = source
        state["advantages"] = keep.flatten()
        state["ref_logps"] = []
    config = make_config(run__nproc=2, **changes)
    world = World.join()
    groups = groups_of(world, config)
    rows = [group * GENERATIONS + slot for group in groups for slot in range(GENERATIONS)]
    buffer = deal_buffer(buffers.from_state(state, World(), config).pick(rows, groups), world, config)
    resumed = buffers.from_state(buffers.to_state(buffer, world, config), world, config)
    assert (resumed.groups, resumed.completions) == (buffer.groups, buffer.completions)
    gradients = GradientSum(policy.trainable())
    gradients.start()
    forward = LogprobForward(policy, temperature=1.0)
    sums = accumulate_gradients(forward, buffer, 0, gradients, config)
    norms = sorted(norm for part in world.gather(gradients.all_reduce(world)) for norm in part)
    tokens = world.gather(sums.computed)
    gradients.close()
    flat = torch.cat([p.grad.flatten() for p in policy.trainable() if p.grad is not None])
    alone: Any = (0.0, flat, norms)
    if world.is_main:
        alone = gradient_of((policy, state), make_config(**changes))
        alone = (*alone, norms_of((policy, state), make_config(**changes)))
    world.leave()
    return {
        "groups": buffer.groups,
        "difference": float((flat - alone[1]).abs().max()),
        "norm": float(flat.norm()),
        "norms": norms,
        "expected": sorted(alone[2]),
        "tokens": tokens,
    }


def norms_of(recording: Recording, config: Config) -> list[float]:
    """Squared norms of one process's micro-batches."""
    policy, state = recording
    gradients = GradientSum(policy.trainable())
    gradients.start()
    forward = LogprobForward(policy, temperature=1.0)
    accumulate_gradients(forward, buffers.from_state(state, World(), config), 0, gradients, config)
    norms = gradients.all_reduce(World())
    gradients.close()
    return norms


@pytest.mark.parametrize("live", [0, 2, 4, None])
def test_two_processes_equal_one(recording: Recording, small_root: Path, live: int | None) -> None:
    """Over real gloo: gradient and probe of one process, micro-batches dealt by tokens, and no hang if a rank has no
    completions."""
    one, other = run_in_two(gradient_on_a_rank, small_root, copy.deepcopy(recording[1]), live)
    assert one["norm"] == other["norm"]
    assert (one["norm"] > 0) == (live != 0)
    assert one["difference"] <= 1e-12
    assert one["norms"] == pytest.approx(one["expected"], rel=1e-9, abs=1e-20)
    assert sorted(one["groups"] + other["groups"]) == list(range(GROUPS))
    if live == 4:
        assert 0.8 < one["tokens"][0] / one["tokens"][1] < 1.25, "rank 0 generated all of them"
    elif live == 2:
        assert one["tokens"][1] == 0 < one["tokens"][0]
