"""``python -m grpo_train.train.fit CONFIG ROOT``: measure which batch sizes this machine's memory holds.

One process loads the policy as training does and runs the longest micro-batches that the config allows, on random
tokens, larger and larger until memory is nearly full. It prints one JSON object; ``grpo-train fit`` shows it.
Not measured on a GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_train.config import load_config, with_changes
from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy, load_policy, pick_device
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.policy.memory import PeakMemory, release_memory, surviving_out_of_memory, total_bytes
from grpo_train.rollout import Completion
from grpo_train.run_dir.errors import exiting_on_error
from grpo_train.train.buffer import RolloutBuffer
from grpo_train.train.distributed import World
from grpo_train.train.gradients import GradientSum
from grpo_train.train.loop import accumulate_gradients
from grpo_train.train.optimizer import make_optimizer

FULL = {"cuda": 0.92, "cpu": 0.4}
"""Share of the memory that a pass may fill; on a CPU other programs need some."""
MAX_SCORED = 256
"""Completions of a pass without gradient, at most; more are not faster."""


@dataclass(frozen=True)
class SizeTrial:
    """One size that was tried."""

    key: str
    size: int
    peak_bytes: int | None
    """None: it ran out of memory."""


def measure_fit(config: Config, root: Path) -> dict[str, Any]:
    """Measure; returns ``{"device", "memory_bytes", "trials", "microbatch_size", "tf_micro_batch"}``.

    A size is None where not even one prompt or completion fits. Raises PolicyError.
    """
    device = pick_device(config.model.device)
    policy = load_policy(config.model, root, device, gradient_checkpointing=config.train.gradient_checkpointing)
    meter = _Meter(device)
    gradients = GradientSum(policy.trainable())
    optimizer, _ = make_optimizer(policy, config.optimizer, config.run.total_steps)
    forward = LogprobForward(
        policy, temperature=1.0, packing=config.train.packing, chunked=config.train.chunked_logprobs
    )
    generations = config.rollout.num_generations
    share = config.rollout.buffer_size // (config.run.nproc * config.algorithm.updates_per_buffer)

    def step(prompts: int) -> None:
        rows = prompts * generations
        buffer = RolloutBuffer(
            _longest(policy, config, rows), torch.linspace(-1, 1, rows), torch.ones(rows, dtype=torch.bool), [rows],
            [float(rows * config.rollout.max_completion_length)],
        )  # fmt: skip
        changed = with_changes(
            config, train={"microbatch_size": prompts}, algorithm={"updates_per_buffer": 1, "beta": 0.0}
        )
        gradients.start()
        accumulate_gradients(forward, buffer, 0, gradients, changed)
        gradients.all_reduce(World())
        optimizer.step()

    def score(rows: int) -> None:
        with torch.no_grad():
            forward.score(_longest(policy, config, rows), rows)

    trials: list[SizeTrial] = []
    prompts = _largest("train.microbatch_size", _divisors(share), step, meter, trials)
    doubling = (1 << power for power in range(MAX_SCORED.bit_length()))
    rows = _largest("train.tf_micro_batch", doubling, score, meter, trials)
    gradients.close()
    return {
        "device": policy.device_name,
        "memory_bytes": meter.total,
        "trials": [asdict(trial) for trial in trials],
        "microbatch_size": prompts,
        "tf_micro_batch": rows,
    }


def _largest(
    key: str, sizes: Iterator[int], work: Callable[[int], None], meter: _Meter, trials: list[SizeTrial]
) -> int | None:
    """The largest of rising ``sizes`` whose work fits; None if the first does not."""
    best: SizeTrial | None = None
    for size in sizes:
        trial = SizeTrial(key, size, meter.peak(partial(work, size)))
        trials.append(trial)
        if trial.peak_bytes is None or trial.peak_bytes > meter.total * FULL[meter.device.type]:
            break
        best = trial
    return best.size if best else None


class _Meter:
    """Peak memory of a piece of work, in bytes: reserved on the GPU, or resident in RAM."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._peak = device, PeakMemory(device)
        self.total = total_bytes(device)

    def peak(self, work: Callable[[], None]) -> int | None:
        """None where the work ran out of memory."""
        release_memory()
        self._peak.reset()
        with surviving_out_of_memory():
            work()
            return self._peak.reserved() or self._peak.used()
        return None


def _longest(policy: Policy, config: Config, rows: int) -> list[Completion]:
    """Completions of the greatest length that the config allows; each group shares its prompt, as in training."""
    draw = torch.Generator().manual_seed(0)
    vocabulary = int(policy.model.config.get_text_config().vocab_size)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocabulary, (count,), generator=draw).tolist())

    length, prompts = config.rollout.max_completion_length, range(-(-rows // config.rollout.num_generations))
    heads = [tokens(config.rollout.max_prompt_length) for _ in prompts]
    return [
        Completion(heads[row // config.rollout.num_generations], tokens(length), (-1.0,) * length, finished=False)
        for row in range(rows)
    ]


def _divisors(number: int) -> Iterator[int]:
    return (size for size in range(1, number + 1) if number % size == 0)


def main() -> None:
    """``python -m grpo_train.train.fit CONFIG ROOT``: prints the result as JSON, and says why it fails."""
    with exiting_on_error():
        print(json.dumps(measure_fit(load_config(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))))


if __name__ == "__main__":
    main()
