"""Speed and memory of each step, beside what the device does at best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpo_train.policy.flops import model_size, product_rate
from grpo_train.policy.loading import Policy
from grpo_train.policy.memory import PeakMemory, is_out_of_memory
from grpo_train.train.token_metrics import TokenSums


class StepSpeed:
    """Metrics ``perf/*`` and ``memory/*`` of rank 0's device."""

    def __init__(self, policy: Policy) -> None:
        """Measures the rate of matrix products in the policy's compute type: tens of milliseconds."""
        dtype = policy.autocast_dtype or next(policy.model.parameters()).dtype
        self._size = model_size(policy.model)
        self._rate: float | None = None
        try:
            self._rate = product_rate(policy.device, dtype)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
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
