"""Whether transformer blocks run compiled (``train.compile``): decided before the first step, kept by checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from grpo_train.config.schema import Config
from grpo_train.policy.compiled import CompiledBlocks, Float32Blocks, is_compile_error
from grpo_train.policy.logprobs import LogprobForward, tolerance
from grpo_train.policy.memory import is_out_of_memory, release_memory
from grpo_train.rollout import Completion
from grpo_train.train.budget import SMALLEST
from grpo_train.train.distributed import World

PAYS = 1.03
"""From this ratio of times on, compiled blocks are used; less is noise."""
FARTHER = 1.25
"""Compiled blocks may be at most this many times as far from float32 as plain ones."""
NOT_COMPILED = "train.compile: blocks are not compiled"
Result = TypeVar("Result")


@dataclass(frozen=True)
class CompileTrial:
    """Three micro-batches with plain and with compiled blocks.

    Distances are norms of differences of gradients, as shares of the norm of the second one; all 0 with dropout, which
    draws anew. In 16 bits both kinds of blocks are some percent from float32, and from each other.
    """

    plain: float
    """From plain blocks to float32 ones."""
    compiled: float
    """From compiled blocks to float32 ones."""
    apart: float
    """From compiled to plain blocks."""
    least: float
    """A distance that rounding explains in any case."""
    speedup: float

    @property
    def is_equal(self) -> bool:
        """Whether compiled blocks are about as close to float32 as plain ones."""
        return self.compiled <= max(FARTHER * self.plain, self.least)

    @property
    def distances(self) -> str:
        return (
            f"gradients of compiled blocks differ by {self.compiled:.2%} of their norm from those in float32, "
            f"of plain blocks by {self.plain:.2%}; from each other by {self.apart:.2%}"
        )


class Compiling:
    """Compiled blocks of a run's forward pass, where they are wanted, work and pay."""

    note: str = ""
    """What was decided, for the log."""
    fallback: str = ""
    """Why blocks are not compiled although they should be; "" where they are, or where it does not pay."""

    def __init__(self, forward: LogprobForward, config: Config, world: World) -> None:
        self._forward, self._config, self._world = forward, config, world
        setting = config.train.compile
        self.is_considered = setting == "on" or (setting == "auto" and forward.policy.device.type == "cuda")
        """Whether blocks may be compiled; on a CPU, compiling costs minutes."""

    @property
    def is_on(self) -> bool:
        return self._forward.blocks is not None

    def decide(self, saved: bool | None, failed: str = "") -> None:
        """Compile where it is wanted and pays; every rank calls it before the first step.

        The trial's micro-batches are the same in every process, so that a resumed run compiles for the same shapes. It
        leaves no trace in random generators and gradients.

        Args:
            saved: what a checkpoint says of this rank; None = nothing.
            failed: the ``fallback`` that it says.
        """
        if not self.is_considered:
            return
        if saved is False:
            self.fallback, self.note = failed, failed or f"{NOT_COMPILED}, as decided before this resume"
            return
        trial, reason = None, ""
        try:
            trial = self._try()
        except Exception as error:
            reason = _reason(error)
        if trial is not None and not trial.is_equal:
            reason, trial = f"{trial.distances} (bound: {FARTHER} times as far as plain ones)", None
        release_memory()
        pays = trial is not None and (saved is True or trial.speedup >= PAYS or self._config.train.compile == "on")
        if not (pays if saved else all(self._world.gather(pays))):
            self._forward.blocks = None
        if trial is None:
            self.fallback = self.note = f"{NOT_COMPILED}: {reason}"
        elif self._forward.policy.device.type == "cuda":
            found = f"{trial.speedup:.2f} times as fast in a trial of three micro-batches; {trial.distances}"
            self.note = f"train.compile: blocks are {'' if self.is_on else 'not '}compiled: {found}"

    def run(self, work: Callable[[], Result]) -> Result:
        """``work()``, done again from the start with plain blocks, for the rest of the run, if the compiler fails."""
        try:
            return work()
        except Exception as error:
            if not (self.is_on and is_compile_error(error)):
                raise
            reason = _reason(error)
        self._forward.blocks = None
        self.fallback = f"train.compile: training continues without compiled blocks: {reason}"
        print(self.fallback, flush=True)
        release_memory()
        return work()

    def _try(self) -> CompileTrial:
        """Leaves the blocks compiled."""
        forward, device = self._forward, self._forward.policy.device
        batches = list(_micro_batches(self._config, forward.vocabulary))
        narrow = forward.policy.autocast_dtype
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            plain = self._gradient(batches[0])
            seconds = self._seconds(batches)
            exact = plain
            if narrow is not None and not self._has_dropout():
                forward.blocks = Float32Blocks(forward.decoder)
                exact = self._gradient(batches[0])
            forward.blocks = CompiledBlocks(forward.decoder)
            compiled = self._gradient(batches[0])
            speedup = seconds / self._seconds(batches)
        least = tolerance(torch.float32 if narrow is not None else plain[0].dtype)
        if self._has_dropout():
            return CompileTrial(0.0, 0.0, 0.0, least, speedup)
        distance = _relative_difference
        return CompileTrial(
            distance(plain, exact), distance(compiled, exact), distance(compiled, plain), least, speedup
        )

    def _gradient(self, batch: Sequence[Completion]) -> list[Tensor]:
        """Gradient of a weighted sum. It is not accumulated: the hooks of parameters do not see it."""
        logps = self._forward(batch).logps
        weights = torch.linspace(0.5, 1.5, logps.numel(), device=logps.device, dtype=logps.dtype).view_as(logps)
        parameters = self._forward.policy.trainable()
        gradients = torch.autograd.grad((logps * weights).sum(), parameters, allow_unused=True)
        return [each for each in gradients if each is not None]

    def _seconds(self, batches: Sequence[Sequence[Completion]]) -> float:
        """Seconds of some micro-batches, the second time that they are computed."""
        started = 0.0
        for _ in range(2):
            started = time.perf_counter()
            for batch in batches:
                self._gradient(batch)
            if self._forward.policy.device.type == "cuda":
                torch.cuda.synchronize()
        return time.perf_counter() - started

    def _has_dropout(self) -> bool:
        return any(isinstance(module, torch.nn.Dropout) and module.p for module in self._forward.policy.model.modules())


def _micro_batches(config: Config, vocabulary: int) -> Iterator[list[Completion]]:
    """Three of different lengths, at most :data:`SMALLEST` tokens each; completions of a group share their prompt."""
    rollout = config.rollout
    longest = rollout.max_prompt_length + rollout.max_completion_length
    rows = max(1, min(config.microbatch_size * rollout.num_generations, SMALLEST // longest))
    for number, share in enumerate((1.0, 0.8, 0.6)):
        lengths = (max(2, int(share * rollout.max_prompt_length)), max(2, int(share * rollout.max_completion_length)))
        prompt, completion = (min(length, int(SMALLEST * share)) for length in lengths)
        yield [
            Completion(
                tuple((7 * i + number + row // rollout.num_generations) % vocabulary for i in range(prompt)),
                tuple((11 * i + 3 * row + number) % vocabulary for i in range(completion)),
                (),
                finished=True,
            )
            for row in range(rows)
        ]


def _relative_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Norm of the difference of two gradients, as a share of the second one's norm; NaN where a gradient has one."""
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(found, expected, strict=True))
    norm = sum(float(b.double().square().sum()) for b in expected)
    return (difference / norm) ** 0.5 if norm else (0.0 if not difference else float("inf"))


def _reason(error: Exception) -> str:
    if is_out_of_memory(error):
        return "the trial ran out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
