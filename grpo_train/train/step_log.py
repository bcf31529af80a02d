"""The log of a run's steps: metrics, rows, and where they go: JSONL, TensorBoard, console and events.

Rank 0 writes it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import torch

from grpo_train.config.schema import Algorithm, Config
from grpo_train.policy.flops import model_size, product_rate
from grpo_train.policy.loading import Policy
from grpo_train.policy.memory import PeakMemory, surviving_out_of_memory
from grpo_train.rollout.collect import Sample
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.display import fraction, metric_value, setting, signed
from grpo_train.run_dir.signs import sign_of_life
from grpo_train.sandbox.results import LEVELS
from grpo_train.tasks import TaskDefaults
from grpo_train.tasks.shared.base import means
from grpo_train.tracking.logs import StepLogs
from grpo_train.train.curriculum import Raised
from grpo_train.train.distributed import World
from grpo_train.train.health import health
from grpo_train.train.resume import data_differences, new_keys, process_differences
from grpo_train.train.samples import Discarded, total_rewards
from grpo_train.train.state import TrainingState
from grpo_train.train.token_metrics import TokenSums, token_metrics
from grpo_train.train.token_rows import TokenRow, token_lines

# speed and memory, beside what the device does at best -----------------------------------------------------


class StepSpeed:
    """Metrics ``perf/*`` and ``memory/*`` of rank 0's device."""

    def __init__(self, policy: Policy) -> None:
        """Measures the rate of matrix products in the policy's compute type: tens of milliseconds."""
        dtype = policy.autocast_dtype or next(policy.model.parameters()).dtype
        self._size = model_size(policy.model)
        self._rate: float | None = None
        with surviving_out_of_memory():
            self._rate = product_rate(policy.device, dtype)
        self._memory = PeakMemory(policy.device)
        self._memory.reset()

    def metrics(self, sums: Sequence[TokenSums], drawn: int, laps: Mapping[str, float]) -> dict[str, float]:
        """Metrics of the step that ends now.

        Args:
            sums: those of all ranks.
            drawn: completion tokens that all ranks generated; 0 in a step without rollouts.
            laps: seconds by ``time/STAGE``.
        """
        found: dict[str, float] = {}
        generating = laps["time/rollout"] + laps.get("time/discarded", 0.0)
        if drawn and generating > 0:
            found["perf/decode_tokens_per_s"] = drawn / generating
        if self._size and self._rate and laps["time/train"] > 0:
            flops = sum(self._size.training_flops(part.computed, part.predicted) for part in sums)
            found["perf/mfu"] = flops / (laps["time/train"] * self._rate * len(sums))
        found["memory/peak_gib"] = round(self._memory.used() / 2**30, 3)
        if (reserved := self._memory.reserved()) is not None:
            found["memory/reserved_gib"] = round(reserved / 2**30, 3)
        self._memory.reset()
        return found


# rollout metrics of a buffer: over the samples of all ranks, in float64 ------------------------------------
# Names are TRL's (``trl/trainer/grpo_trainer.py``) where it has one.


def rollout_metrics(samples: Sequence[Sample], rewards: torch.Tensor) -> dict[str, Any]:
    """Metrics of a buffer's samples, in the order of their groups, and their total rewards (B,).

    ``groups/all_correct``, ``all_wrong`` and ``all_equal`` give the reason why a group has no spread and carries no
    signal: all answers correct, all wrong, or mixed with equal rewards. ``groups/unscored``: no reward function applied
    to any of its completions. Self-play has no group metrics: there a role's reward is compared to its baseline.
    """
    totals = [None if math.isnan(reward) else reward for reward in rewards.tolist()]
    verdicts = [sample.verdict for sample in samples]
    lengths = [sample.length for sample in samples]
    terminated = [sample.length for sample in samples if not sample.truncated]
    flexible = [float(verdict.flexible) for verdict in verdicts if verdict.flexible is not None]
    is_self_play = any(sample.role for sample in samples)
    metrics: dict[str, Any] = {
        "reward": _mean(_known(totals)),
        **(_role_metrics(samples, totals) if is_self_play else _group_metrics(samples, totals)),
        "accuracy": _mean([float(verdict.correct) for verdict in verdicts]),
        **({"accuracy/flexible": _mean(flexible)} if flexible else {}),
        "format": _mean([float(verdict.formatted) for verdict in verdicts]),
        **_isolation(samples),
    }
    for name in sorted({name for sample in samples for name in sample.rewards}):
        values = _known(sample.rewards.get(name) for sample in samples)
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = _mean(values), _std(values)
    return {
        **metrics,
        **_task_metrics(samples, totals),
        **means([verdict.metrics for verdict in verdicts]),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/mean_terminated_length": _mean(terminated) if terminated else 0.0,
        "completions/clipped_ratio": 1 - len(terminated) / len(samples),
    }


def _task_metrics(samples: Sequence[Sample], totals: Sequence[float | None]) -> dict[str, float]:
    """Metrics of each task of a mixture that the buffer has prompts of."""
    metrics: dict[str, float] = {}
    for task in sorted({sample.problem.task for sample in samples} - {""}):
        pairs = [(sample, total) for sample, total in zip(samples, totals, strict=True) if sample.problem.task == task]
        mine = [sample for sample, _ in pairs]
        groups = _group_metrics(mine, [total for _, total in pairs])
        metrics |= {
            f"task/{task}/reward": _mean(_known(total for _, total in pairs)),
            f"task/{task}/accuracy": _mean([float(sample.verdict.correct) for sample in mine]),
            f"task/{task}/frac_reward_zero_std": groups["frac_reward_zero_std"],
            f"task/{task}/mean_length": _mean([sample.length for sample in mine]),
            f"task/{task}/prompts": float(len({sample.group for sample in mine})),
        }
    return metrics


def _isolation(samples: Sequence[Sample]) -> dict[str, str]:
    """The weakest sandbox level of the buffer's programs; {} without programs."""
    levels = {sample.verdict.facts.get("isolation") for sample in samples}
    found = [level for level in LEVELS if level in levels]  # the strongest first
    return {"sandbox/isolation": found[-1]} if found else {}


def _group_metrics(samples: Sequence[Sample], totals: Sequence[float | None]) -> dict[str, float]:
    pairs = groupby(zip(samples, totals, strict=True), key=lambda pair: pair[0].group)
    groups = [list(group) for _, group in pairs]
    scored = [_known(total for _, total in group) for group in groups]
    spreads = [_std(values) if min(values, default=0) < max(values, default=0) else 0.0 for values in scored]
    flat = [group for group, values, spread in zip(groups, scored, spreads, strict=True) if values and spread == 0]
    correct = sum(all(sample.verdict.correct for sample, _ in group) for group in flat)
    wrong = sum(not any(sample.verdict.correct for sample, _ in group) for group in flat)
    return {
        "reward_std": _mean(spreads),
        "frac_reward_zero_std": sum(spread == 0 for spread in spreads) / len(groups),
        "groups/all_correct": correct / len(groups),
        "groups/all_wrong": wrong / len(groups),
        "groups/all_equal": (len(flat) - correct - wrong) / len(groups),
        "groups/unscored": sum(not values for values in scored) / len(groups),
    }


def _role_metrics(samples: Sequence[Sample], totals: Sequence[float | None]) -> dict[str, float]:
    """Self-play: each role's mean reward over the games, and turns per game."""
    games = {(sample.group, sample.role): total for sample, total in zip(samples, totals, strict=True)}
    roles = sorted({role for _, role in games if role is not None})
    by_role = {role: [total for (_, other), total in games.items() if other == role] for role in roles}
    return {
        "reward_std": _std(_known(games.values())),
        **{f"self_play/{role.label}/reward": _mean(_known(rewards)) for role, rewards in by_role.items()},
        "self_play/turns": len(samples) / len({sample.group for sample in samples}),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _std(values: Sequence[float]) -> float:
    """Sample standard deviation (ddof 1); 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


# rows of the logs, from typed values -----------------------------------------------------------------------


def rollout_rows(
    step: int, samples: Sequence[Sample], rewards: torch.Tensor, advantages: torch.Tensor
) -> list[dict[str, Any]]:
    """Lines of ``rollouts.jsonl``, one per sample. ``step``: the first step that learns from them."""
    return [
        {
            "step": step,
            "group": sample.group,
            "sample": sample.slot,
            "index": sample.problem.index,
            "reward": None if math.isnan(reward) else reward,
            "advantage": advantage,
            "rewards": dict(sample.rewards),
            "correct": sample.verdict.correct,
            "formatted": sample.verdict.formatted,
            "flexible": sample.verdict.flexible,
            "reason": sample.verdict.reason,
            "answer": sample.verdict.answer,
            "gold": sample.problem.answer,
            "length": sample.length,
            "truncated": sample.truncated,
            "prompt": sample.problem.prompt,
            "completion": sample.text,
            **({"task": sample.problem.task} if sample.problem.task else {}),
            **({"role": sample.role.label} if sample.role else {}),
            **({"facts": dict(sample.verdict.facts)} if sample.verdict.facts else {}),
        }
        for sample, reward, advantage in zip(samples, rewards.tolist(), advantages.tolist(), strict=True)
    ]


def discarded_rows(step: int, discarded: Sequence[Discarded], algorithm: Algorithm) -> list[dict[str, Any]]:
    """Lines of ``rollouts.jsonl`` for samples that no step learns from: their advantage is 0, and ``discarded`` says
    why."""
    samples = [one.sample for one in discarded]
    rewards = total_rewards(samples, algorithm)
    rows = rollout_rows(step, samples, rewards, torch.zeros_like(rewards))
    return [{**row, "discarded": one.reason} for row, one in zip(rows, discarded, strict=True)]


def console_line(row: Mapping[str, Any], total_steps: int) -> str:
    """The console's line for a row of ``train_log.jsonl``."""
    reward, loss, norm = (metric_value(row["reward"]), signed(row["loss"]), metric_value(row["grad_norm"]))
    return (
        f"step {row['step']}/{total_steps}  reward {reward}  accuracy {fraction(row['accuracy'])}  loss {loss}  "
        f"length {row['completions/mean_length']:.1f}  grad_norm {norm}  {row['time/step']:.2f} s"
    )


# startup report of a stage ---------------------------------------------------------------------------------

NAMED = 3
"""New keys that the report names."""
GSPO_EPSILON = 0.01
"""Above this, ``algorithm.epsilon`` hardly clips with gspo, whose ratio is a mean over tokens."""


def announce(run: RunDir, config: Config, world: World, state: TrainingState, until: int) -> None:
    """Print the start line and notes, and log the event ``training``. Rank 0 only."""
    if not world.is_main:
        return
    prompts, too_long = len(state.source.prompts), state.source.num_too_long
    print(
        f"{run.name}: steps {state.step + 1} to {until} of {config.run.total_steps} on {state.policy.device_name}, "
        f"processes: {world.size}, prompts per buffer: {config.rollout.buffer_size}, completions per prompt: "
        f"{config.rollout.num_generations}, steps per buffer: {config.steps_per_buffer}, micro-batches per step and "
        f"process: {config.grad_accum_steps}, training prompts: {prompts}"
        + (f" ({too_long} longer than rollout.max_prompt_length skipped)" if too_long else ""),
        flush=True,
    )
    for note in _notes(config, world, state):
        print(note, flush=True)
    differences = _differences(config, world, state)
    if differences:
        print(f"this resume is not bit-exact: {'; '.join(differences)}", flush=True)
    run.log_event(
        "training", step=state.step, until=until, device=state.policy.device_name, prompts=prompts, left_out=too_long,
        differences=differences, fallbacks=[*state.forward.notes, *state.fallbacks.values()],
        pass_rate={label: each.counts for label, each in state.filters.items()},
    )  # fmt: skip


def _notes(config: Config, world: World, state: TrainingState) -> list[str]:
    task_notes = state.task.notes if isinstance(state.task, TaskDefaults) else ()
    filters = [each.note(label) for label, each in state.filters.items()]
    notes = [
        *task_notes,
        *filters,
        state.forward.description,
        *state.forward.notes,
        *filter(None, [state.compiling.note, state.repeated]),
    ]
    if state.step and "data" not in state.saved_info:
        notes.append(
            "the checkpoint has no fingerprint of the training problems (from an earlier version); saved from now on"
        )
    epsilon = config.algorithm.epsilon
    if config.algorithm.loss_type == "gspo" and epsilon is not None and epsilon > GSPO_EPSILON:
        notes.append(f"algorithm.epsilon {epsilon:g} hardly clips with gspo; its paper uses 0.0003 and 0.0004")
    if state.noise_scale and not _is_measured(config, world):
        notes.append("gns/* is not measured: it needs at least two micro-batches per step (train.microbatch_size)")
    return notes


def _differences(config: Config, world: World, state: TrainingState) -> list[str]:
    """Reasons why a resume is not bit-exact."""
    differences = process_differences(state.saved_info, state.info())
    differences += data_differences(state.saved_info, state.source.fingerprints)
    differences += [f"{key}: was {setting(old)}, is {setting(new)}" for key, (old, new) in state.changes.items()]
    if "fallbacks" in state.saved_info and not state.repeated:
        differences += [each for name, each in state.fallbacks.items() if name not in state.failed]
    if added := new_keys(state.saved_info.get("config") or {}, config):
        named = ", ".join(added[:NAMED])
        more = f" and {len(added) - NAMED} more keys" if len(added) > NAMED else ""
        differences.append(f"the saved config does not have {named}{more} (from an earlier version?)")
    if state.step and state.noise_scale and _is_measured(config, world) and not state.noise_scale.steps:
        differences.append("noise scale: averages were not saved and restart")
    if state.step % config.steps_per_buffer and state.buffer is None:
        differences.append("rollout buffer: was not saved; a new one is generated")
    return differences


def _is_measured(config: Config, world: World) -> bool:
    """Whether a step has the two micro-batches that the noise scale needs."""
    return config.grad_accum_steps * world.size > 1


class StageClock:
    """Seconds of a step's stages."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps = {f"time/{stage}": 0.0 for stage in ("rollout", "reward", "score", "train")}

    def lap(self, stage: str) -> None:
        """End a stage."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # include the stage's pending kernels
        now = time.perf_counter()
        self.laps[f"time/{stage}"], self._last = now - self._last, now

    def split(self, stage: str, part: str, seconds: float) -> None:
        """Report ``seconds`` of a stage under the name of a part of it."""
        if seconds:
            self.laps[f"time/{stage}"] -= seconds
            self.laps[f"time/{part}"] = seconds

    def total(self) -> float:
        return time.perf_counter() - self._start


class StepLog:
    """Writes on rank 0, does nothing on other ranks."""

    def __init__(self, run: RunDir, config: Config, world: World, state: TrainingState) -> None:
        self._run, self._config, self._world, self._state = run, config, world, state
        self._logs: StepLogs | None = None
        if world.is_main:
            self._logs = StepLogs(
                run,
                tensorboard=config.tracking.tensorboard,
                purge_step=state.step + 1,
                has_tokens=config.tracking.token_rows != 0,
            )
            self._speed = StepSpeed(state.policy)
        self._rollouts: list[dict[str, Any]] = []
        self._tokens: list[dict[str, Any]] = []
        self._drawn = 0
        self._save_seconds = 0.0

    def add_rollouts(
        self,
        step: int,
        samples: Sequence[Sample],
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        discarded: Sequence[Discarded] = (),
    ) -> None:
        """Log a new buffer's samples with the next step, then those that were discarded."""
        if self._logs is None:
            return
        self._rollouts = rollout_rows(step, samples, rewards, advantages)
        self._drawn = sum(sample.length for sample in [*samples, *(each.sample for each in discarded)])
        if discarded:
            self._rollouts += discarded_rows(step, discarded, self._config.algorithm)

    def add_tokens(self, step: int, of: int, rows: Sequence[TokenRow]) -> None:
        """Log completions' tokens with the step whose pass gave their values; ``of`` is that of their other rows."""
        self._tokens = list(token_lines(step, of, rows))

    def write(
        self,
        step: int,
        sums: Sequence[TokenSums],
        grad_norm: float,
        learning_rate: float,
        rows_per_pass: int,
        clock: StageClock,
    ) -> None:
        """Log a step. ``sums``: those of all ranks; ``grad_norm``: before clipping; ``rows_per_pass``: completions that
        a forward and backward pass took at most, on the rank with the least memory."""
        sign_of_life("step")
        if self._logs is None:
            return
        state, config = self._state, self._config
        assert state.buffer is not None
        tokens, ratios = token_metrics(sums, config.algorithm.rollout_correction_cap)
        row: dict[str, Any] = {
            "step": step,
            **state.buffer.metrics,
            **tokens,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            **({"loss_scale": state.loss_scale} if state.scaler.is_enabled() else {}),
            **(state.noise_scale.metrics(config.rollout.num_generations) if state.noise_scale else {}),
            "num_tokens": state.num_tokens,
            "epoch": state.source.epoch(state.num_prompts),
            **self._speed.metrics(sums, self._drawn, clock.laps),
            "memory/rows_per_pass": rows_per_pass,
            **clock.laps,
            "time/save": self._save_seconds,  # waited for the save after the previous step
            "time/step": clock.total() + self._save_seconds,
        }
        row["health"] = health(row, config, state.noise_scale, state.fallbacks)
        self._logs.step(row, self._rollouts, {"step": step, **ratios}, self._tokens)
        self._rollouts, self._drawn, self._save_seconds = [], 0, 0.0
        print(console_line(row, config.run.total_steps), flush=True)

    def waited(self, seconds: float) -> None:
        """Add to the next step what training waited for a save."""
        self._save_seconds = seconds

    def saved(self, step: int, seconds: float) -> None:
        """Log a complete checkpoint and the seconds since its save began. Any thread of rank 0 may call it."""
        self._run.log_event("saved", step=step, checkpoint=f"step_{step}", seconds=round(seconds, 3))
        print(f"saved training_state/step_{step} ({seconds:.1f} s)\n", end="", flush=True)

    def raised(self, step: int, raised: Raised | None) -> None:
        """Log the level that a buffer raised."""
        if raised is None or not self._world.is_main:
            return
        self._run.log_event("level_raised", step=step, **asdict(raised))
        print(f"task {raised.task}: level {raised.level} (accuracy {raised.accuracy:.3f})", flush=True)

    def note(self, sentence: str) -> None:
        """Print what a step decided."""
        if sentence and self._world.is_main:
            print(sentence, flush=True)

    def stopped(self, step: int) -> None:
        """Log a requested stop."""
        if not self._world.is_main:
            return
        self._run.log_event("stopped", step=step)
        print(f"stopped after step {step} as requested; the full state is saved", flush=True)

    def close(self) -> None:
        if self._logs is not None:
            self._logs.close()
