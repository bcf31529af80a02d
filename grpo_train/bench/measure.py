"""Measurements of one process on one device: rates of the machine, rollouts, a training step, a save."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from grpo_train.algorithm import group_advantages
from grpo_train.bench.floors import Figure, Rates, decode_floor, prefill_floor
from grpo_train.config.schema import Config
from grpo_train.platforms.memory import Shape
from grpo_train.policy.flops import model_size, product_rate, timed
from grpo_train.policy.loading import Policy, compute_type
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.policy.memory import PeakMemory, RowLimit, kept_bytes
from grpo_train.rollout import Completion
from grpo_train.rollout.backends import make_backend
from grpo_train.run_dir import create_run
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.checkpoint import CheckpointSaver, collect_content
from grpo_train.train.compiling import Compiling
from grpo_train.train.distributed import World
from grpo_train.train.gradients import GradientSum
from grpo_train.train.loop import accumulate_gradients
from grpo_train.train.optimizer import make_optimizer
from grpo_train.train.token_metrics import TokenSums

COPIED = {"cuda": 2**30, "cpu": 2**27}
"""Bytes of the copy by device type: far more than caches hold."""
WRITTEN = 2**27
"""Bytes written to measure the disk."""
REPEATS = 3


def machine_rates(device: torch.device, dtype: torch.dtype, folder: Path) -> Rates:
    """Rates of the device in the compute type, and of the disk of ``folder``. Raises OSError."""
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = min(timed(device, partial(target.copy_, source))[1] for _ in range(2 * REPEATS))
    disk = WRITTEN / _seconds_to_write(folder / "written", os.urandom(WRITTEN))  # zeros may be compressed
    return Rates(2 * len(source) / copying, product_rate(device, dtype), disk)


def _seconds_to_write(file: Path, content: bytes) -> float:
    start = time.perf_counter()
    with file.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    seconds = time.perf_counter() - start
    file.unlink()
    return seconds


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step: seconds of its parts, and what they worked on."""

    rollout: float
    gradient: float
    """Forward and backward passes."""
    optimizer: float
    """Sum of the gradients, clipping, update."""
    completion_tokens: int
    computed: int
    """Tokens that went through the layers in the gradient's passes."""
    predicted: int
    """Likewise through the head."""
    peak_bytes: int
    above_bytes: int | None
    """Peak above what was in use before the step; None on a CPU, where freed memory may stay with the process."""

    @property
    def seconds(self) -> float:
        return self.rollout + self.gradient + self.optimizer


class Trainer:
    """What :func:`grpo_train.train.loop.train` sets up, with constant rewards in place of a task.

    float16 trains without a loss scale here, which takes no time that could be measured.
    """

    def __init__(self, policy: Policy, config: Config, prompts: Sequence[str]) -> None:
        """``prompts``: of a step."""
        self.policy, self.config = policy, config
        self.prompts = [list[int](ids) for ids in policy.tokenizer(list(prompts))["input_ids"]]
        self.backend = make_backend(config, policy)
        self.optimizer, self.scheduler = make_optimizer(policy, config.optimizer, config.run.total_steps)
        self.gradients = GradientSum(policy.trainable())
        self.forward = LogprobForward(
            policy,
            temperature=config.rollout.temperature,
            packing=config.train.packing,
            chunked=config.train.chunked_logprobs,
        )
        self.compiling = Compiling(self.forward, config, World())
        self.compiling.decide(None)
        self.rows = RowLimit(config.microbatch_size * config.rollout.num_generations, "train.microbatch_size")
        self._peak = PeakMemory(policy.device)
        self._drawn = 0

    def sync(self) -> None:
        """Rollouts use the policy's weights from now on."""
        with self.policy.autocast():
            self.backend.sync()

    def generate(self, prompts: Sequence[Sequence[int]], length: int) -> list[Completion]:
        """One completion of each prompt, of at most ``length`` tokens, with the weights of the last sync."""
        seeds = range(self._drawn, self._drawn + len(prompts))
        self._drawn += len(prompts)
        with self.policy.autocast():
            return self.backend.generate(
                prompts,
                seeds=seeds,
                max_completion_length=length,
                temperature=self.config.rollout.temperature,
                batch_size=self.config.rollout.generation_batch_size,
            )

    def rollout(self, prompts: Sequence[Sequence[int]], length: int) -> list[Completion]:
        """What a training step does before it rewards completions: sync and generate."""
        self.sync()
        return self.generate(prompts, length)

    def step(self) -> MeasuredStep:
        """Rollouts, gradient, update. Every third completion of a group is rewarded, so that no group is skipped."""
        device, rollout = self.policy.device, self.config.rollout
        kept = kept_bytes(device)  # a part of what the step needs
        self._peak.reset()
        repeated = [prompt for prompt in self.prompts for _ in range(rollout.num_generations)]
        completions, generating = timed(device, partial(self.rollout, repeated, rollout.max_completion_length))
        buffer = _buffer(completions, rollout.num_generations)
        sums, accumulating = timed(device, lambda: self.rows.run(partial(self._accumulate, buffer)))
        _, updating = timed(device, self._update)
        return MeasuredStep(
            rollout=generating,
            gradient=accumulating,
            optimizer=updating,
            completion_tokens=sum(len(completion.ids) for completion in completions),
            computed=sums.computed,
            predicted=sums.predicted,
            peak_bytes=self._peak.used(),
            above_bytes=None if (above := self._peak.above()) is None else above + kept,
        )

    def close(self) -> None:
        self.gradients.close()

    def _accumulate(self, buffer: RolloutBuffer, max_rows: int) -> TokenSums:
        def work() -> TokenSums:
            self.gradients.start()
            return accumulate_gradients(self.forward, buffer, 0, self.gradients, self.config, max_rows=max_rows)

        return self.compiling.run(work)

    def _update(self) -> None:
        self.gradients.all_reduce(World())
        torch.nn.utils.clip_grad_norm_(self.policy.trainable(), self.config.optimizer.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()


def _buffer(completions: list[Completion], generations: int) -> RolloutBuffer:
    rewards = torch.tensor([reward_of(row, generations) for row in range(len(completions))])
    return RolloutBuffer(
        completions=completions,
        advantages=group_advantages(rewards, generations, "none"),
        counted=torch.ones(len(completions), dtype=torch.bool),
        completions_per_update=[len(completions)],
        tokens_per_update=[float(sum(len(completion.ids) for completion in completions))],
    )


def reward_of(row: int, generations: int) -> float:
    """Reward of a step's completion ``row``."""
    return float(row % generations % 3 == 0)


def sync_figure(trainer: Trainer, shape: Shape, rates: Rates) -> Figure:
    """Taking over the weights that are trained: each is read and written once in the compute type."""
    device, config = trainer.policy.device, trainer.config
    trainer.sync()
    seconds = median(timed(device, trainer.sync)[1] for _ in range(REPEATS))
    trained = shape.layers * shape.layer_parameters if config.model.adapter == "lora" else shape.parameters
    written = trained * compute_type(config.model, device).itemsize
    return Figure("sync", 0, written, "bytes", seconds, 2 * written / rates.copy)


def rollout_figures(
    trainer: Trainer, prompts: list[list[int]], shape: Shape, rates: Rates, length: int
) -> list[Figure]:
    """Reading all prompts, which differ, and decoding ``length`` tokens after each.

    Decoding is what a generation takes longer than one of a single token, and its second half what it takes longer than
    one of half as many: without the first step, which is launched kernel by kernel, and the capture of CUDA graphs.
    Where the machine's noise hides a difference, it is the whole generation, an upper bound.
    """
    device, rows = trainer.policy.device, len(prompts)
    width = compute_type(trainer.config.model, device).itemsize
    trainer.generate(prompts, 2)
    reading, half, whole = (
        median(timed(device, partial(trainer.generate, prompts, count))[1] for _ in range(REPEATS))
        for count in (1, length // 2, length)
    )
    tokens = sum(map(len, prompts))

    def decoding(name: str, first: int, before: float) -> Figure:
        """The steps after ``first`` tokens, which took ``before`` seconds."""
        steps, seconds = length - first, whole - before if whole > before else whole
        step, bandwidth = decode_floor(shape, rates, rows, tokens / rows + (first - 1 + length) / 2, width)
        return Figure(name, rows, steps * rows, "tokens", seconds, steps * step, steps * bandwidth)

    return [
        Figure("prefill", rows, tokens, "tokens", reading, prefill_floor(shape, rates, rows, tokens, width)),
        decoding("decode", 1, reading),
        decoding("decode, second half", length // 2, half),
    ]


def train_figure(trainer: Trainer, steps: Sequence[MeasuredStep], rates: Rates) -> Figure:
    """Gradient and update of a step; its share of the floor is the MFU."""
    size = model_size(trainer.policy.model)
    assert size is not None  # the shapes here are dense
    flops = median(size.training_flops(step.computed, step.predicted) for step in steps)
    seconds = median(step.gradient + step.optimizer for step in steps)
    return Figure("train", 0, median(step.computed for step in steps), "tokens", seconds, flops / rates.products)


def save_figure(trainer: Trainer, rates: Rates, folder: Path) -> tuple[Figure, float]:
    """A checkpoint of a run below ``folder``, hashed and flushed, and the seconds of it that training waits.

    The second of two: the memory for the copy is there. Raises RunDirError, CheckpointError.
    """
    run = create_run(folder, {"by": "bench"}, "bench")
    saver = CheckpointSaver(run, trainer.policy)
    waited = seconds = 0.0

    def done(taken: float) -> None:
        nonlocal seconds
        seconds = taken

    for step in (1, 2):
        content = collect_content(
            step, trainer.policy, trainer.optimizer, trainer.scheduler, World(), info={}, is_final=False
        )
        assert content is not None
        _, waited = timed(trainer.policy.device, partial(saver.save, content, done))
        saver.wait()
    written = sum(file.stat().st_size for file in (run.training_state / "step_2").rglob("*") if file.is_file())
    return Figure("save", 0, written, "bytes", seconds, written / rates.disk), waited
