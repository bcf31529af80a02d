"""The numbers of the log, each computed a second time from its definition.

Two real runs are recomputed from what they left on disk (weights before each step, rewards of each completion) with
plain forwards of transformers in float64, one completion at a time: no code of the engine takes part. Their sampler's
log-probabilities are disturbed, so that ratios, mismatch and effective sample sizes have something to say. What a run
seldom shows is in the tests of hand-made rows and tensors.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_train.algorithm import PolicyLoss
from grpo_train.config import load_config
from grpo_train.policy.logprobs import TokenLogprobs
from grpo_train.rewards import Grade
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Sample
from grpo_train.rollout.prompts import Prompt
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.run_dir import RunDir
from grpo_train.tasks.shared.base import Problem, Verdict
from grpo_train.train import loop as training
from grpo_train.train.buffer import groups_of, make_buffer
from grpo_train.train.distributed import Group
from grpo_train.train.metrics import TokenSums, reward_metrics, token_metrics
from tests.support.engine import config_text, file_hash, rows, train_here, weights_hash, write_config
from tests.train.test_invariance import in_float64

TOKEN_LEVEL = ("entropy", "clip_ratio/", "ess/", "mismatch/")
"""What is measured in forwards, and left out of the log where there were none."""

# ---------------------------------------------------------------------------------------------- two runs, recomputed

GENERATIONS, PROMPTS, LIMIT, SIZE = 4, 8, 100, 2
RUNS: dict[str, dict[str, Any]] = {
    "off-policy, with a reference and a correction": {
        "algorithm__num_iterations": 2,
        "algorithm__beta": 0.05,
        "algorithm__epsilon": 0.01,
        "algorithm__epsilon_high": 0.03,
        "algorithm__rollout_correction": "token_truncate",
        "algorithm__rollout_correction_cap": 1.1,
        "rollout__temperature": 0.9,
    },
    "two updates, the truncated ones masked, two rewards": {
        "algorithm__updates_per_buffer": 2,
        "algorithm__mask_truncated_completions": True,
        "algorithm__overlong_buffer": 3,
        "algorithm__reward_weights": {"overlong": 0.5},
        "algorithm__rollout_correction": "sequence_truncate",
        "algorithm__rollout_correction_cap": 1.3,
        "rollout__max_completion_length": 21,
        "train__token_budget": 200,
    },
}


@dataclass
class Golden:
    """What a step must say."""

    line: dict[str, float]
    """Of its tokens, in ``train_log.jsonl``."""
    ratios: dict[str, float]
    """In ``ratios.jsonl``."""
    gradients: list[torch.Tensor]
    """What each micro-batch adds to the step's gradient, flat."""


@dataclass
class Recorded:
    """A run of two buffers, two steps each."""

    run: RunDir
    changes: dict[str, Any]
    buffers: list[list[Completion]]
    """As the trainer got them."""
    golden: dict[int, Golden] = dataclasses.field(default_factory=dict)
    """What the steps should have said, as far as it was asked for."""

    def option(self, name: str, default: Any = 0) -> Any:
        return self.changes.get(name, default)


@pytest.fixture(scope="module", params=RUNS)
def recorded(request: pytest.FixtureRequest, make_root: Callable[[], Path]) -> Recorded:
    """The sampler says of each token something else than what it drew it with."""
    torch.set_num_threads(1)
    root, changes = make_root(), RUNS[request.param]
    options: dict[str, Any] = {
        "run__total_steps": 4,
        "run__seed": 4,
        "rollout__buffer_size": PROMPTS,
        "rollout__num_generations": GENERATIONS,
        "train__microbatch_size": SIZE,
        "task__limit": LIMIT,
        "optimizer__warmup_steps": 0,
    }
    noise, made, generate = torch.Generator().manual_seed(5), [], TransformersBackend.generate

    def disturbed(self: TransformersBackend, *arguments: Any, **named: Any) -> list[Completion]:
        completions = []
        for one in generate(self, *arguments, **named):
            logps = torch.tensor(one.logps) + 0.1 * torch.randn(len(one.ids), generator=noise)
            completions.append(dataclasses.replace(one, logps=tuple(logps.tolist())))
        made.append(completions)
        return completions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersBackend, "generate", disturbed)
        run = train_here(root, write_config(root, **{**options, **changes}), "recorded")
    assert len(made) == 2
    return Recorded(run, changes, made)


def model_before(recorded: Recorded, step: int) -> torch.nn.Module:
    """The policy that step ``step`` started with, in float64."""
    run = recorded.run
    path = run.training_state / f"step_{step - 1}" / "model" if step > 1 else run.root / "models" / "tiny"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    in_float64(model)
    return model


def tokens_under(model: torch.nn.Module, completion: Completion, temperature: float) -> tuple[torch.Tensor, ...]:
    """Log-probabilities and entropies, (T,) each."""
    ids = torch.tensor([completion.prompt_ids + completion.ids])
    logits = model(ids).logits[0, len(completion.prompt_ids) - 1 : -1]
    logps = (logits / temperature).log_softmax(dim=-1)
    return logps.gather(1, ids[0, len(completion.prompt_ids) :, None])[:, 0], -(logps.exp() * logps).sum(dim=-1)


def buffer_rows(recorded: Recorded, number: int) -> list[dict[str, Any]]:
    """The lines of ``rollouts.jsonl`` of a buffer."""
    return [row for row in rows(recorded.run, "rollouts.jsonl") if row["step"] == 2 * number + 1]


def weighted_rewards(recorded: Recorded, number: int) -> list[float]:
    weights = recorded.option("algorithm__reward_weights", {})
    return [
        math.fsum(weights.get(name, 1.0) * value for name, value in row["rewards"].items())
        for row in buffer_rows(recorded, number)
    ]


def golden_of(recorded: Recorded, step: int) -> Golden:
    if step not in recorded.golden:
        recorded.golden[step] = recompute(recorded, step)
    return recorded.golden[step]


def recompute(recorded: Recorded, step: int) -> Golden:
    """From the definitions of docs/algorithms.md, a completion at a time."""
    number, place = divmod(step - 1, 2)
    updates = recorded.option("algorithm__updates_per_buffer", 1)
    beta, temperature = recorded.option("algorithm__beta"), recorded.option("rollout__temperature", 1.0)
    low, high = recorded.option("algorithm__epsilon", 0.2), recorded.option("algorithm__epsilon_high", 0.2)
    correction = recorded.option("algorithm__rollout_correction", "none")
    cap = recorded.option("algorithm__rollout_correction_cap", 2.0)
    budget = recorded.option("rollout__max_completion_length", 40)
    rewards = torch.tensor(weighted_rewards(recorded, number), dtype=torch.float64).view(-1, GENERATIONS)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)).flatten().tolist()
    policy = model_before(recorded, step)
    old_policy = model_before(recorded, 2 * number + 1) if place else policy
    reference = model_before(recorded, 1) if beta else policy
    count = PROMPTS * GENERATIONS // updates
    part = range((place % updates) * count, (place % updates + 1) * count)

    gradients, loss_of_step = [], 0.0
    seen: dict[str, list[torch.Tensor]] = {key: [] for key in ("now", "old", "entropy", "kl", "low", "high", "weight")}
    for first in range(part.start, part.stop, SIZE * GENERATIONS):
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(first, first + SIZE * GENERATIONS):
            completion, advantage = recorded.buffers[number][i], advantages[i]
            masked = not completion.finished and recorded.option("algorithm__mask_truncated_completions", False)
            if masked or (abs(advantage) < 1e-9 and not beta):
                continue
            logps, entropy = tokens_under(policy, completion, temperature)
            with torch.no_grad():
                old, away = (
                    logps.detach() if model is policy else tokens_under(model, completion, temperature)[0]
                    for model in (old_policy, reference)
                )
            sampled = torch.tensor(completion.logps, dtype=torch.float64)
            ratio, weight = (logps - old).exp(), torch.ones_like(sampled)
            if correction == "token_truncate":
                weight = (old - sampled).exp().clamp(max=cap)
            elif correction == "sequence_truncate":
                weight = weight * (old - sampled).sum().exp().clamp(max=cap)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
            kl = (away - logps).exp() - (away - logps) - 1
            loss = loss + (beta * kl - weight * surrogate).sum() / (budget * count)
            found = {
                "now": logps - sampled,
                "old": old - sampled,
                "entropy": entropy,
                "kl": kl,
                "low": (ratio < 1 - low) & (advantage < 0),
                "high": (ratio > 1 + high) & (advantage > 0),
                "weight": weight,
            }
            for key, value in found.items():
                seen[key].append(value.detach().double())
        parameters = list(policy.parameters())
        if loss.requires_grad:
            gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
        else:
            gradients.append(torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64))
        loss_of_step += loss.item()

    flat = {key: torch.cat(values) for key, values in seen.items()}
    now, ratio = flat["now"].exp(), flat["old"].exp()
    sequences = torch.stack([values.sum() for values in seen["now"]]).exp()
    expected = {
        "loss": loss_of_step,
        "entropy": flat["entropy"].mean(),
        "kl": flat["kl"].mean() if beta else 0.0,
        "clip_ratio/low_mean": flat["low"].mean(),
        "clip_ratio/high_mean": flat["high"].mean(),
        "clip_ratio/region_mean": flat["low"].mean() + flat["high"].mean(),
        "ess/token": now.sum() ** 2 / (len(now) * (now**2).sum()),
        "ess/sequence": sequences.sum() ** 2 / (len(sequences) * (sequences**2).sum()),
    }
    for name, values in (("token", now), ("sequence", sequences)):
        clipped = values.clamp(1 / cap, cap)
        expected[f"ess/{name}_clipped"] = clipped.sum() ** 2 / (len(clipped) * (clipped**2).sum())
    mismatch = {
        "mismatch/kl": (ratio - flat["old"] - 1).mean(),
        "mismatch/ratio_mean": ratio.mean(),
        "mismatch/ratio_min": ratio.min(),
        "mismatch/ratio_max": ratio.max(),
        "mismatch/outside_0.9_1.1": ((ratio < 0.9) | (ratio > 1.1)).double().mean(),
        "mismatch/correction_mean": flat["weight"].mean(),
    }
    ratios = {
        "tokens": len(now),
        "ratio/mean": now.mean(),
        "ratio/min": now.min(),
        "ratio/max": now.max(),
        "ratio/outside_0.9_1.1": ((now < 0.9) | (now > 1.1)).double().mean(),
        "logp_difference/mean": flat["old"].abs().mean(),
        "logp_difference/max": flat["old"].abs().max(),
        **mismatch,
        **{key: value for key, value in expected.items() if key.startswith("ess/")},
    }
    expected |= mismatch
    return Golden(_floats(expected), _floats(ratios), gradients)


def _floats(values: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items()}


def assert_says(line: dict[str, Any], expected: dict[str, float], rel: float = 1e-4, floor: float = 1e-6) -> None:
    for key, value in expected.items():
        assert line[key] == pytest.approx(value, rel=rel, abs=floor), key


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_what_a_run_says_of_its_tokens(recorded: Recorded, step: int) -> None:
    expected = golden_of(recorded, step)
    line = rows(recorded.run)[step - 1]
    assert {key for key in line if key.startswith((*TOKEN_LEVEL, "loss", "kl"))} == set(expected.line)
    assert_says(line, expected.line)
    assert_says(rows(recorded.run, "ratios.jsonl")[step - 1], expected.ratios)


def test_the_runs_have_something_to_say(recorded: Recorded) -> None:
    """A number that is 0 or 1 whatever happens would prove nothing above."""
    lines = rows(recorded.run)
    assert all(abs(line["loss"]) > 2e-5 and line["entropy"] > 0.01 for line in lines)
    assert all(0 < line["mismatch/outside_0.9_1.1"] < 1 for line in lines)
    assert all(line["ess/sequence"] < line["ess/token"] < 0.999 for line in lines)
    assert 0 < lines[0]["frac_reward_zero_std"] < 1
    assert all(0.5 < line["mismatch/correction_mean"] != 1 for line in lines)
    if recorded.option("algorithm__beta"):
        assert [line["kl"] > 1e-5 for line in lines] == [False, True, True, True]
        assert [line["clip_ratio/region_mean"] > 0 for line in lines] == [False, True, False, True]
        assert any(line["clip_ratio/low_mean"] != line["clip_ratio/high_mean"] for line in lines)
    else:
        assert 0 < lines[0]["completions/clipped_ratio"] < 1
        tokens = [line["tokens"] for line in rows(recorded.run, "ratios.jsonl")]
        assert sum(tokens) < sum(len(c.ids) for made in recorded.buffers for c in made), "some completions are left out"


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_the_noise_scale_and_the_norm_are_those_of_the_micro_batches(recorded: Recorded, step: int) -> None:
    """trS = b M / (M - 1) (mean |G_i|^2 - |Gbar|^2), G_i = M x what micro-batch i adds to the step's gradient."""
    weight = signal = noise = 0.0
    for earlier in range(1, step + 1):
        parts = golden_of(recorded, earlier).gradients
        count = len(parts)
        assert count == PROMPTS // recorded.option("algorithm__updates_per_buffer", 1) // SIZE
        total = torch.stack(parts).sum(dim=0).square().sum().item()
        own = statistics.fmean((count * part).square().sum().item() for part in parts)
        trace = SIZE * count / (count - 1) * (own - total)
        weight, signal, noise = (
            0.95 * weight + 1,
            0.95 * signal + total - trace / (SIZE * count),
            0.95 * noise + trace,
        )
    line = rows(recorded.run)[step - 1]
    assert line["grad_norm"] == pytest.approx(math.sqrt(total), rel=1e-4)
    assert line["gns/noise"] == pytest.approx(noise / weight, rel=1e-3)
    assert line["gns/signal"] == pytest.approx(signal / weight, rel=1e-3, abs=1e-4 * noise / weight)
    scale = line["gns/noise"] / line["gns/signal"] if line["gns/signal"] > 0 else math.nan
    assert float(line["gns/b_simple"]) == pytest.approx(scale, nan_ok=True)
    assert float(line["gns/b_simple_completions"]) == pytest.approx(scale * GENERATIONS, nan_ok=True)


@pytest.mark.parametrize("number", [0, 1])
def test_what_a_run_says_of_its_buffers(recorded: Recorded, number: int) -> None:
    """Both steps of a buffer say the same of it."""
    made, lines, rewards = recorded.buffers[number], buffer_rows(recorded, number), weighted_rewards(recorded, number)
    groups = [rewards[i : i + GENERATIONS] for i in range(0, len(rewards), GENERATIONS)]
    right = [row["correct"] for row in lines]
    flat = [k for k, group in enumerate(groups) if len(set(group)) == 1]
    share = [sum(right[k * GENERATIONS : (k + 1) * GENERATIONS]) for k in flat]
    ended = [len(c.ids) for c in made if c.finished]
    expected = {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.fmean(statistics.stdev(group) for group in groups),
        "frac_reward_zero_std": len(flat) / PROMPTS,
        "groups/all_right": share.count(GENERATIONS) / PROMPTS,
        "groups/all_wrong": share.count(0) / PROMPTS,
        "groups/all_equal": sum(0 < count < GENERATIONS for count in share) / PROMPTS,
        "groups/unscored": 0.0,
        "accuracy": statistics.fmean(right),
        "accuracy/flexible": statistics.fmean(row["flexible"] for row in lines),
        "format": statistics.fmean(row["formatted"] for row in lines),
        "completions/mean_length": statistics.fmean(len(c.ids) for c in made),
        "completions/min_length": min(len(c.ids) for c in made),
        "completions/max_length": max(len(c.ids) for c in made),
        "completions/mean_terminated_length": statistics.fmean(ended) if ended else 0.0,
        "completions/clipped_ratio": statistics.fmean(not c.finished for c in made),
        "num_tokens": sum(len(c.prompt_ids) + len(c.ids) for made in recorded.buffers[: number + 1] for c in made),
        "epoch": (number + 1) * PROMPTS / LIMIT,
    }
    names = {"accuracy", "overlong"} if "algorithm__overlong_buffer" in recorded.changes else {"accuracy"}
    for name in names:
        values = [row["rewards"][name] for row in lines]
        expected[f"rewards/{name}/mean"] = statistics.fmean(values)
        expected[f"rewards/{name}/std"] = statistics.stdev(values)
    for line in rows(recorded.run)[2 * number : 2 * number + 2]:
        families = ("reward", "frac_", "groups/", "completions/", "accuracy", "format", "num_tokens", "epoch")
        assert {key for key in line if key.startswith(families)} == set(expected)
        assert_says(line, expected, rel=1e-6, floor=1e-12)
    assert [row["reward"] for row in lines] == pytest.approx(rewards)
    assert [row["length"] for row in lines] == [len(c.ids) for c in made]
    assert [row["truncated"] for row in lines] == [not c.finished for c in made]


# -------------------------------------------------------------------------------------------- steps that teach nothing


def test_a_step_without_a_live_completion_measures_nothing(root: Path) -> None:
    """Every reward is 0: a loss of 0, nothing said of tokens, weights untouched."""
    run = train_here(root, write_config(root, task__correct_reward=0.0, run__total_steps=2), "dead")
    for line, ratios in zip(rows(run), rows(run, "ratios.jsonl"), strict=True):
        assert line["loss"] == line["kl"] == line["grad_norm"] == line["gns/signal"] == line["gns/noise"] == 0
        assert not [key for key in line if key.startswith(TOKEN_LEVEL)]
        assert line["frac_reward_zero_std"] == 1
        assert line["gns/b_simple"] == "NaN"
        assert set(ratios) == {"step", "time", "tokens"}
        assert ratios["tokens"] == 0
    before, after = (
        load_file(path / "model.safetensors")
        for path in (root / "models" / "tiny", run.training_state / "step_2" / "model")
    )
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Weights, moments and schedule stay those of the step before, and training goes on from them."""
    real, done = training.accumulate_gradients, []

    def poisoned(forward: Any, buffer: Any, update: int, gradients: Any, config: Any) -> TokenSums:
        sums = real(forward, buffer, update, gradients, config)
        done.append(update)
        if len(done) == 2:
            gradients.backward(gradients.parameters[0].sum() * value)
        return sums

    monkeypatch.setattr(training, "accumulate_gradients", poisoned)
    run = train_here(root, write_config(root, run__total_steps=3, optimizer__warmup_steps=3), "poisoned")
    assert weights_hash(run, 2) == weights_hash(run, 1)
    for name in ("optimizer.pt", "scheduler.pt"):
        one, two, three = (file_hash(run.training_state / f"step_{step}" / name) for step in (1, 2, 3))
        assert one == two != three, name
    assert weights_hash(run, 3) != weights_hash(run, 2)
    final = load_file(run.training_state / "step_3" / "model" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in final.values())
    lines = rows(run)
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.75e-4, 1.5e-4, 1.5e-4])
    assert not math.isfinite(float(lines[1]["grad_norm"]))
    assert lines[1]["health"][0].startswith("alarm")
    assert [line["gns/noise"] for line in lines[:2]] == [lines[0]["gns/noise"]] * 2, "it has no say in the averages"
    assert math.isfinite(lines[2]["grad_norm"])


# ----------------------------------------------------------------------------------------------------- by hand: rewards


def told(
    earned: Sequence[float | None], size: int, right: Sequence[bool] | None = None, **columns: Any
) -> list[dict[str, Any]]:
    """Rows of ``rollouts.jsonl``, ``size`` a group, with one reward function, "score"; ``columns``: other values."""
    return [
        {
            "group": i // size,
            "reward": reward,
            "rewards": {"score": reward},
            "correct": bool(right and right[i]),
            "formatted": True,
            "length": 5,
            "truncated": False,
            **{name: values[i] for name, values in columns.items()},
        }
        for i, reward in enumerate(earned)
    ]


def test_equal_rewards_have_no_spread_whatever_their_mean_rounds_to() -> None:
    """Six times 0.7 sum to something else than 6 x 0.7."""
    line = reward_metrics(told([0.7] * 12, size=6))
    assert line["frac_reward_zero_std"] == 1.0
    assert line["reward_std"] == 0.0
    assert line["groups/all_wrong"] == 1.0
    assert line["reward"] == pytest.approx(0.7)


def test_why_a_group_has_no_spread() -> None:
    rewards = [2.0, 2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0]
    line = reward_metrics(told(rewards, right=[True, True, False, False, True, False, True, False], size=2))
    assert line["frac_reward_zero_std"] == 0.75
    assert [line[f"groups/{why}"] for why in ("all_right", "all_wrong", "all_equal")] == [0.25, 0.25, 0.25]
    assert line["groups/unscored"] == 0
    assert line["reward"] == 1.0
    assert line["reward_std"] == pytest.approx(math.sqrt(2) / 4), "ddof 1, the mean over the groups"
    assert line["rewards/score/std"] == pytest.approx(math.sqrt(6 / 7)), "ddof 1, over all completions"
    assert line["accuracy"] == 0.5


def test_completions_that_ended_and_that_did_not() -> None:
    line = reward_metrics(told([1.0, 0.0, 0.0, 0.0], length=[3, 9, 5, 9], truncated=[False, True, False, True], size=2))
    names = ("mean_length", "min_length", "max_length", "mean_terminated_length", "clipped_ratio")
    assert [line[f"completions/{name}"] for name in names] == [6.5, 3.0, 9.0, 4.0, 0.5]
    all_cut = reward_metrics(told([1.0, 0.0], truncated=[True, True], size=2))
    assert (all_cut["completions/mean_terminated_length"], all_cut["completions/clipped_ratio"]) == (0.0, 1.0)


def test_rewards_that_apply_to_some_completions_only() -> None:
    scores = [{"score": 1.0, "other": None}, {"score": 3.0, "other": 4.0}, {"score": None}, {"score": 2.0}]
    line = reward_metrics(told([1.0, 7.0, None, 2.0], rewards=scores, size=2))
    assert line["reward"] == pytest.approx(10 / 3)
    assert line["reward_std"] == pytest.approx(math.sqrt(18) / 2), "a group of one known reward has a spread of 0"
    assert line["frac_reward_zero_std"] == 0.5
    assert (line["rewards/score/mean"], line["rewards/score/std"]) == pytest.approx((2.0, 1.0))
    assert (line["rewards/other/mean"], line["rewards/other/std"]) == (4.0, 0.0)


def test_rewards_that_apply_to_no_completion() -> None:
    line = reward_metrics(told([None] * 4, size=2))
    assert math.isnan(line["reward"])
    assert math.isnan(line["rewards/score/mean"])
    assert (line["reward_std"], line["frac_reward_zero_std"], line["groups/unscored"]) == (0.0, 1.0, 1.0)
    assert [line[f"groups/{why}"] for why in ("all_right", "all_wrong", "all_equal")] == [0, 0, 0]
    half = reward_metrics(told([None, None, 1.0, 0.0], size=2))
    assert (half["reward"], half["frac_reward_zero_std"], half["groups/unscored"]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_a_buffer_without_a_reward_says_so_and_moves_nothing(nothing: float | None) -> None:
    config = load_config(config_text(rollout__buffer_size=2, rollout__num_generations=2))
    prompts = [Prompt(Problem(index=k, prompt="1+1=", answer="2", question="1+1"), (1, 2, 3)) for k in range(2)]
    completions = [Completion((1, 2, 3), (4,) * (k + 1), (-0.5,) * (k + 1), True) for k in range(4)]
    grade = Grade(Verdict(False, False, "none", None), {"accuracy": nothing})
    samples = [Sample(prompts[k // 2], completion, "", grade) for k, completion in enumerate(completions)]
    buffer, lines, tokens = make_buffer(1, groups_of(0, 1, 2, 1), samples, config, Group())
    assert [line["reward"] for line in lines] == [None] * 4
    assert buffer.advantages.tolist() == [0.0] * 4
    assert math.isnan(buffer.metrics["reward"])
    assert buffer.metrics["frac_reward_zero_std"] == buffer.metrics["groups/unscored"] == 1
    assert tokens == 4 * 3 + 1 + 2 + 3 + 4


# ------------------------------------------------------------------------------------------------------ by hand: tokens

MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
NOW = torch.tensor([[-0.5, -1.0, -2.0, 9.0], [-0.2, -0.3, 9.0, 9.0], [9.0] * 4])
OLD = torch.tensor([[-0.6, -1.0, -1.5, 8.0], [-0.2, -0.8, 8.0, 8.0], [8.0] * 4])
SAMPLED = torch.tensor([[-0.5, -1.2, -1.5, 7.0], [-0.3, -0.8, 7.0, 7.0], [7.0] * 4])
"""Of three completions, three, two and no tokens that count; what stands beside the mask has no say."""


def parts_of(weights: torch.Tensor | None = None, ranks: int = 1) -> list[TokenSums]:
    """Two forwards a rank: 2 x 5 tokens, 6 of them clipped low, 2 high; losses 0.25 and -1."""
    parts = []
    for _ in range(ranks):
        sums = TokenSums()
        for loss in (0.25, -1.0):
            low, high = MASK.bool() & (torch.tensor([0, 1, 1, 1]) > 0), MASK.bool() & (MASK.cumsum(dim=1) == 3)
            kl = torch.full(MASK.shape, 0.3) * MASK
            explained = PolicyLoss(torch.tensor(loss), MASK * 0.0, low, high, kl, MASK.float())
            entropy = torch.tensor([[1.0, 2.0, 3.0, 50.0], [4.0, 5.0, 50.0, 50.0], [50.0] * 4])
            sums.add(explained, TokenLogprobs(NOW, entropy, MASK), OLD, SAMPLED, weights)
        parts.append(sums.collect())
    return parts


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_become_means_over_the_tokens(ranks: int) -> None:
    """The loss is a sum already; all else is per token, over all forwards and ranks together."""
    line, ratios = token_metrics(parts_of(ranks=ranks), cap=2.0)
    assert line["loss"] == -0.75 * ranks
    assert line["entropy"] == pytest.approx(3.0)
    assert line["kl"] == pytest.approx(0.3)
    assert line["clip_ratio/low_mean"] == pytest.approx(0.6)
    assert line["clip_ratio/high_mean"] == pytest.approx(0.2)
    assert line["clip_ratio/region_mean"] == pytest.approx(0.8)
    assert ratios["tokens"] == 10 * ranks
    assert "mismatch/correction_mean" not in line


@pytest.mark.parametrize("cap", [1.05, 2.0])
def test_ratios_of_the_tokens_and_of_the_sequences(cap: float) -> None:
    line, ratios = token_metrics(parts_of(ranks=2), cap=cap)
    now, old = [[0.0, 0.2, -0.5], [0.1, 0.5]], [-0.1, 0.2, 0.0, 0.1, 0.0]

    def ess(logs: Sequence[float], low: float = 0.0, high: float = math.inf) -> float:
        weights = [min(max(math.exp(value), low), high) for value in logs]
        return sum(weights) ** 2 / (len(weights) * sum(weight**2 for weight in weights))

    tokens, sequences = [*now[0], *now[1]], [math.fsum(values) for values in now]
    expected = {
        "ess/token": ess(tokens),
        "ess/sequence": ess(sequences),
        "ess/token_clipped": ess(tokens, 1 / cap, cap),
        "ess/sequence_clipped": ess(sequences, 1 / cap, cap),
        "mismatch/kl": statistics.fmean(math.exp(value) - value - 1 for value in old),
        "mismatch/ratio_mean": statistics.fmean(map(math.exp, old)),
        "mismatch/ratio_min": math.exp(-0.1),
        "mismatch/ratio_max": math.exp(0.2),
        "mismatch/outside_0.9_1.1": 2 / 5,  # exp(-0.1) is 0.905
    }
    assert_says(line, expected)
    assert_says(
        ratios,
        {
            "ratio/mean": statistics.fmean(map(math.exp, tokens)),
            "ratio/min": math.exp(-0.5),
            "ratio/max": math.exp(0.5),
            "ratio/outside_0.9_1.1": 4 / 5,
            "logp_difference/mean": 0.08,
            "logp_difference/max": 0.2,
            **expected,
        },
    )


def test_the_mean_of_the_corrections_weights_is_over_tokens() -> None:
    per_token = torch.tensor([[1.0, 2.0, 3.0, 70.0], [4.0, 5.0, 70.0, 70.0], [70.0] * 4])
    of_sequences = torch.tensor([[1.0], [2.0], [70.0]])
    for weights, mean in ((per_token, 3.0), (of_sequences, 7 / 5)):
        assert token_metrics(parts_of(weights, ranks=2), cap=2.0)[0]["mismatch/correction_mean"] == pytest.approx(mean)


def test_without_tokens_there_is_a_loss_and_no_more() -> None:
    for parts in ([TokenSums()], [TokenSums().collect(), TokenSums().collect()]):
        assert token_metrics(parts, cap=2.0) == ({"loss": 0.0, "kl": 0.0}, {"tokens": 0.0})


def test_a_rank_without_tokens_adds_nothing() -> None:
    assert token_metrics([TokenSums(), *parts_of()], cap=2.0) == token_metrics(parts_of(), cap=2.0)
