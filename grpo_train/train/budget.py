"""Tokens per forward and backward pass where ``train.token_budget`` is ``auto``.

The first step with a gradient takes passes of :data:`SMALLEST` tokens and measures what a token costs. From then on
passes fill the memory that is free. The budget only splits micro-batches, and a checkpoint keeps it, so that a resumed
run takes the same passes. Not measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo_train.config.schema import Config
from grpo_train.platforms.memory import Shape, activation_bytes_per_token
from grpo_train.policy.loading import Policy, recompute_activations
from grpo_train.policy.memory import PeakMemory, free_bytes, kept_bytes, release_kept
from grpo_train.train.distributed import World

SMALLEST = 8192
"""Tokens of a pass at least: more hardly raise the speed of matrix products."""
SHARE = {"cuda": 0.8, "cpu": 0.4}
"""Share of the free memory that a pass may fill; on a CPU other programs need some."""
BESIDE = 0.9
"""Share of the memory that is left beside what rollouts keep, which the largest pass may need."""


@dataclass(frozen=True)
class TokenCost:
    """What one process found."""

    bytes_per_token: float
    free: float
    """Bytes, with weights, optimizer and gradient in place and no activations."""


class TokenBudget:
    """Maximum tokens of a pass: fixed, unlimited, or measured once. The same on every rank."""

    tokens: int
    """0 = no limit."""
    is_settled: bool
    """Whether ``tokens`` is final."""
    recomputes: bool
    """Whether activations are recomputed because one completion did not fit otherwise."""

    def __init__(self, config: Config, policy: Policy, world: World) -> None:
        setting = config.train.token_budget
        self._config, self._policy, self._world = config, policy, world
        self.is_automatic = setting == "auto"
        rollout = config.rollout
        completion = rollout.max_prompt_length + rollout.max_completion_length
        self._longest = config.microbatch_size * rollout.num_generations * completion
        self.tokens = min(SMALLEST, self._longest) if setting == "auto" else setting
        # What is free differs between two starts of the same config.
        self.is_settled = not self.is_automatic or self._longest <= SMALLEST or config.run.deterministic
        self.recomputes = False
        self._peak = PeakMemory(policy.device)
        self._bytes_per_token: float | None = None
        self._has_made_room = False

    def make_room(self, *, has_moments: bool) -> str:
        """Give back what rollouts keep where the largest pass does not fit beside it, and in any case before the budget
        is settled and the optimizer has its moments. Returns a sentence for the log, once; "" otherwise."""
        device = self._policy.device
        if not (self.is_settled and has_moments):
            release_kept()
            return ""
        if not (kept := kept_bytes(device)):
            return ""
        tokens = min(self.tokens or self._longest, self._longest)
        needed = tokens * (self._bytes_per_token or _estimate(self._config, self._policy) or 0)
        if needed <= BESIDE * (free_bytes(device) - kept):
            return ""
        release_kept()
        if self._has_made_room:
            return ""
        self._has_made_room = True
        return (
            f"a pass of {tokens:,} tokens does not fit beside the slots of rollouts ({kept / 2**30:.1f} GiB): each "
            "rollout makes slots and CUDA graphs anew, which is slower"
        )

    def start(self) -> None:
        """Begin to measure the gradient of a step."""
        if not self.is_settled and self._policy.device.type == "cuda":
            self._peak.reset()

    def stop(self, largest: int) -> None:
        """End it; ``largest`` is the number of tokens of the largest pass, 0 = none."""
        if self.is_settled or not largest:
            return
        above = self._peak.above()
        self._bytes_per_token = _estimate(self._config, self._policy) if above is None else above / largest

    def own(self) -> TokenCost | None:
        """What this rank found, for :meth:`settle`. Call it after the optimizer's step, which allocates its moments."""
        if self.is_settled or not self._bytes_per_token:
            return None
        device = self._policy.device
        processes = self._world.size if device.type == "cpu" else 1
        return TokenCost(self._bytes_per_token, free_bytes(device) / processes)

    def settle(self, costs: Sequence[TokenCost | None]) -> str:
        """Choose the budget of all ranks from what each found.

        Returns a sentence for the log; "" where nothing is chosen, or where no micro-batch is longer.
        """
        found = [cost for cost in costs if cost is not None]
        if self.is_settled or not found:
            return ""
        fitting = min(budget_of(cost, self._policy.device) for cost in found)
        self.tokens, self.is_settled = min(fitting, self._longest), True
        if fitting >= self._longest:
            return ""
        return (
            f"train.token_budget: passes take up to {self.tokens:,} tokens "
            f"({max(cost.bytes_per_token for cost in found) / 2**20:.2f} MiB each, "
            f"{min(cost.free for cost in found) / 2**30:.1f} GiB free)"
        )

    @property
    def is_measured(self) -> bool:
        """Whether a checkpoint must keep the budget."""
        return self.is_automatic and self.is_settled and self._longest > SMALLEST

    def restore(self, tokens: int) -> None:
        """Take the budget of a checkpoint."""
        if self.is_automatic:
            self.tokens, self.is_settled = tokens, True

    def recompute(self) -> bool:
        """Recompute activations from now on; False where they are already, or where the config decides."""
        if not self.is_automatic or self.recomputes or self._config.train.gradient_checkpointing:
            return False
        recompute_activations(self._policy.model)
        self.recomputes = True
        return True


def budget_of(cost: TokenCost, device: torch.device) -> int:
    """Tokens that fill the free memory, :data:`SMALLEST` at least."""
    return max(SMALLEST, int(SHARE.get(device.type, SHARE["cpu"]) * cost.free / cost.bytes_per_token))


def _estimate(config: Config, policy: Policy) -> float | None:
    """Bytes per token from the model's shape; None for a shape that is not known."""
    dtype = policy.autocast_dtype or next(policy.model.parameters()).dtype
    try:
        shape = Shape.of_model(policy.model)
        return activation_bytes_per_token(shape, config, str(dtype).removeprefix("torch."))
    except (ValueError, TypeError):
        return None
