"""Logged metrics of real runs, recomputed from their definitions.

Two runs are recomputed from their files (weights before each step, rewards of each completion) with plain transformers
forward passes in float64, one completion at a time, without code of the engine. The sampler's log-probabilities are
perturbed, so that ratios, mismatch and effective sample sizes are not trivial.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_train.rollout import Completion
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.tokens import decode_tokens
from tests.support.engine import rows, train_here, write_config
from tests.train.test_invariance import in_float64

TOKEN_LEVEL = ("entropy", "clip_ratio/", "ess/", "mismatch/")
"""Metrics that need forward passes; not logged without any."""

# --------------------------------------------------------------------------------------------------- recomputed runs

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
    "two updates, masked truncation, two rewards": {
        "algorithm__updates_per_buffer": 2,
        "algorithm__mask_truncated_completions": True,
        "algorithm__overlong_buffer": 3,
        "algorithm__reward_weights": {"overlong": 0.5},
        "algorithm__rollout_correction": "sequence_truncate",
        "algorithm__rollout_correction_cap": 1.3,
        "rollout__max_completion_length": 8,
        "rollout__temperature": 1.4,
        "train__token_budget": 200,
    },
}


@dataclass
class Golden:
    """Expected values of a step."""

    line: dict[str, float]
    """Token metrics in ``train_log.jsonl``."""
    ratios: dict[str, float]
    """Row of ``ratios.jsonl``."""
    gradients: list[torch.Tensor]
    """Each micro-batch's contribution to the step's gradient, flat."""


@dataclass
class Recorded:
    """A run of two buffers with two steps each."""

    run: RunDir
    changes: dict[str, Any]
    buffers: list[list[Completion]]
    """Completions as the trainer got them."""
    golden: dict[int, Golden] = dataclasses.field(default_factory=dict)
    """Expected values by step, computed on demand."""

    def option(self, name: str, default: Any = 0) -> Any:
        return self.changes.get(name, default)


@pytest.fixture(scope="module", params=RUNS)
def recorded(request: pytest.FixtureRequest, make_root: Callable[[], Path]) -> Recorded:
    """A run whose sampler reports perturbed log-probabilities."""
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
    noise, buffers, generate = torch.Generator().manual_seed(5), [], NativeBackend.generate

    def perturbed(self: NativeBackend, *arguments: Any, **named: Any) -> list[Completion]:
        completions = []
        for one in generate(self, *arguments, **named):
            logps = torch.tensor(one.logps) + 0.1 * torch.randn(len(one.ids), generator=noise)
            completions.append(dataclasses.replace(one, logps=tuple(logps.tolist())))
        buffers.append(completions)
        return completions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeBackend, "generate", perturbed)
        run = train_here(root, write_config(root, **{**options, **changes}), "recorded")
    assert len(buffers) == 2
    return Recorded(run, changes, buffers)


def model_before(recorded: Recorded, step: int) -> torch.nn.Module:
    """The policy before step ``step``, in float64."""
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
    """Recompute a step from the definitions in docs/algorithms.md, one completion at a time."""
    number, position = divmod(step - 1, 2)
    updates = recorded.option("algorithm__updates_per_buffer", 1)
    beta, temperature = recorded.option("algorithm__beta"), recorded.option("rollout__temperature", 1.0)
    low, high = recorded.option("algorithm__epsilon", 0.2), recorded.option("algorithm__epsilon_high", 0.2)
    correction = recorded.option("algorithm__rollout_correction", "none")
    cap = recorded.option("algorithm__rollout_correction_cap", 2.0)
    budget = recorded.option("rollout__max_completion_length", 40)
    rewards = torch.tensor(weighted_rewards(recorded, number), dtype=torch.float64).view(-1, GENERATIONS)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)).flatten().tolist()
    policy = model_before(recorded, step)
    old_policy = model_before(recorded, 2 * number + 1) if position else policy
    reference = model_before(recorded, 1) if beta else policy
    count = PROMPTS * GENERATIONS // updates
    part = range((position % updates) * count, (position % updates + 1) * count)

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
                old, reference_logps = (
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
            kl = (reference_logps - logps).exp() - (reference_logps - logps) - 1
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


def assert_logged(line: dict[str, Any], expected: dict[str, float], rel: float = 1e-4, floor: float = 1e-6) -> None:
    for key, value in expected.items():
        assert line[key] == pytest.approx(value, rel=rel, abs=floor), key


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_token_metrics_of_a_run(recorded: Recorded, step: int) -> None:
    expected = golden_of(recorded, step)
    line = rows(recorded.run)[step - 1]
    assert {key for key in line if key.startswith((*TOKEN_LEVEL, "loss", "kl"))} == set(expected.line)
    assert_logged(line, expected.line)
    assert_logged(rows(recorded.run, "ratios.jsonl")[step - 1], expected.ratios)


def test_recorded_metrics_are_not_trivial(recorded: Recorded) -> None:
    """A metric that is always 0 or 1 would make the comparison above vacuous.

    The model learned on this machine, whose arithmetic decides what it samples. What depends on that need hold in one
    step only.
    """
    lines = rows(recorded.run)
    assert any(abs(line["loss"]) > 2e-4 for line in lines)
    assert all(line["entropy"] > 0.01 for line in lines)
    assert all(0 < line["mismatch/outside_0.9_1.1"] < 1 for line in lines)
    assert all(line["ess/token"] < 0.999 and line["ess/sequence"] < 0.999 for line in lines)
    assert any(line["ess/sequence"] < line["ess/token"] - 0.01 for line in lines)
    assert any(0 < line["frac_reward_zero_std"] < 1 for line in lines)
    assert all(0.5 < line["mismatch/correction_mean"] != 1 for line in lines)
    if recorded.option("algorithm__beta"):
        assert [line["kl"] > 1e-5 for line in lines] == [False, True, True, True]
        assert [line["clip_ratio/region_mean"] > 0 for line in lines] == [False, True, False, True]
        assert any(line["clip_ratio/low_mean"] != line["clip_ratio/high_mean"] for line in lines)
    else:
        assert any(0 < line["completions/clipped_ratio"] < 1 for line in lines)
        tokens = [line["tokens"] for line in rows(recorded.run, "ratios.jsonl")]
        assert sum(tokens) < sum(len(c.ids) for buffer in recorded.buffers for c in buffer), (
            "some completions are not computed"
        )


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_noise_scale_and_norm_of_micro_batches(recorded: Recorded, step: int) -> None:
    """trS = b M / (M - 1) (mean |G_i|^2 - |Gbar|^2), G_i = M x what micro-batch i adds to the step's gradient."""
    weight = signal = noise = 0.0
    for earlier in range(1, step + 1):
        parts = golden_of(recorded, earlier).gradients
        count = len(parts)
        assert count == PROMPTS // recorded.option("algorithm__updates_per_buffer", 1) // SIZE
        total = torch.stack(parts).sum(dim=0).square().sum().item()
        mean_square = statistics.fmean((count * part).square().sum().item() for part in parts)
        trace = SIZE * count / (count - 1) * (mean_square - total)
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
def test_rollout_metrics_of_a_run(recorded: Recorded, number: int) -> None:
    """Both steps of a buffer log the same rollout metrics."""
    completions, lines, rewards = (
        recorded.buffers[number],
        buffer_rows(recorded, number),
        weighted_rewards(recorded, number),
    )
    groups = [rewards[i : i + GENERATIONS] for i in range(0, len(rewards), GENERATIONS)]
    correct = [row["correct"] for row in lines]
    flat = [k for k, group in enumerate(groups) if len(set(group)) == 1]
    counts = [sum(correct[k * GENERATIONS : (k + 1) * GENERATIONS]) for k in flat]
    ended = [len(c.ids) for c in completions if c.finished]
    expected = {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.fmean(statistics.stdev(group) for group in groups),
        "frac_reward_zero_std": len(flat) / PROMPTS,
        "groups/all_correct": counts.count(GENERATIONS) / PROMPTS,
        "groups/all_wrong": counts.count(0) / PROMPTS,
        "groups/all_equal": sum(0 < count < GENERATIONS for count in counts) / PROMPTS,
        "groups/unscored": 0.0,
        "accuracy": statistics.fmean(correct),
        "accuracy/flexible": statistics.fmean(row["flexible"] for row in lines),
        "format": statistics.fmean(row["formatted"] for row in lines),
        "completions/mean_length": statistics.fmean(len(c.ids) for c in completions),
        "completions/min_length": min(len(c.ids) for c in completions),
        "completions/max_length": max(len(c.ids) for c in completions),
        "completions/mean_terminated_length": statistics.fmean(ended) if ended else 0.0,
        "completions/clipped_ratio": statistics.fmean(not c.finished for c in completions),
        "num_tokens": sum(len(c.prompt_ids) + len(c.ids) for buffer in recorded.buffers[: number + 1] for c in buffer),
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
        assert_logged(line, expected, rel=1e-6, floor=1e-12)
    assert [row["reward"] for row in lines] == pytest.approx(rewards)
    assert [row["length"] for row in lines] == [len(c.ids) for c in completions]
    assert [row["truncated"] for row in lines] == [not c.finished for c in completions]


def assert_near(found: list[Any], expected: list[float], rel: float) -> None:
    """Values of eight bits."""
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) <= rel * abs(other) + 3e-4


@pytest.mark.parametrize("number", [0, 1])
def test_tokens_of_a_run(recorded: Recorded, number: int) -> None:
    """Values of kept tokens are those of the last pass that uses them, and what is clipped is what the loss clips."""
    lines = [line for line in rows(recorded.run, "tokens.jsonl") if line["of"] == 2 * number + 1]
    low, high = recorded.option("algorithm__epsilon", 0.2), recorded.option("algorithm__epsilon_high", 0.2)
    updates, temperature = recorded.option("algorithm__updates_per_buffer", 1), recorded.option("rollout__temperature")
    texts = {(row["group"], row["sample"]): row for row in buffer_rows(recorded, number)}
    spread = [statistics.pstdev(weighted_rewards(recorded, number)[i : i + 4]) for i in range(0, 32, 4)]
    seen, fates = [], 0
    old_policy = model_before(recorded, 2 * number + 1)
    for line in lines:
        first = line["group"] // (PROMPTS // updates) * (PROMPTS // updates)
        assert line["step"] == 2 * number + 1 + (first // (PROMPTS // updates) if updates > 1 else 1)
        part = range(first, first + PROMPTS // updates)
        assert line["group"] in sorted(part, key=lambda group: (-spread[group], group))[:2]
        policy = model_before(recorded, line["step"])
        for sample, text in line["tokens"].items():
            tokens, row = decode_tokens(text), texts[line["group"], int(sample)]
            completion = recorded.buffers[number][line["group"] * GENERATIONS + int(sample)]
            assert len(tokens) == len(completion.ids) == row["length"]
            assert "".join(row["completion"][one.start : one.end] for one in tokens) == row["completion"]
            assert_near([one.logp for one in tokens], [-abs(sampled) for sampled in completion.logps], 0.015)
            if tokens[0].entropy is None:
                assert row["advantage"] == 0 or row["truncated"]
                continue
            with torch.no_grad():
                (logps, entropy), (old, _) = (
                    tokens_under(model, completion, temperature) for model in (policy, old_policy)
                )
            ratios = (logps - torch.tensor(completion.logps)).exp().tolist()
            assert_near([one.entropy for one in tokens], entropy.tolist(), 0.015)
            assert_near([math.log(one.ratio or 0) for one in tokens], [math.log(ratio) for ratio in ratios], 0.03)
            moved = (logps - old).exp().tolist()
            for one, ratio in zip(tokens, moved, strict=True):
                is_low = ratio < 1 - low and row["advantage"] < 0
                is_high = ratio > 1 + high and row["advantage"] > 0
                assert one.fate == ("low" if is_low else "high" if is_high else "")
                fates += bool(one.fate)
            seen.append(line["group"])
    assert len(seen) > GENERATIONS
    assert fates or not recorded.option("algorithm__beta"), "some tokens are clipped"


# ------------------------------------------------------------------------------------------ steps without a gradient


def test_a_step_without_signal_measures_no_tokens(root: Path) -> None:
    """All rewards are 0: the loss is 0, token metrics are absent and the weights unchanged."""
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
