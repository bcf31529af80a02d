"""Rollouts: from prompts to completions with the log-probabilities they were sampled with. One file per backend."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from grpo_train.policy.completion import Completion

__all__ = ["Completion", "RolloutBackend", "seed_of"]


class RolloutBackend(Protocol):
    """Generation backend of one model."""

    fallbacks: dict[str, str]
    """What it does without, as its trial failed: sentences by the name of the trial."""

    def sync(self) -> None:
        """Draw what follows from the weights that the model has now.

        To be called after every change of the weights, before :meth:`generate`; a new backend has the weights of its
        construction.
        """
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        batch_size: int = 0,
        on_done: Callable[[int, Completion], None] | None = None,
        on_token: Callable[[int, int, int], None] | None = None,
    ) -> list[Completion]:
        """One completion per prompt, in the order of the prompts.

        Args:
            prompts: token ids, at least one each; repeat a prompt to get several completions of it.
            seeds: one per completion, 0 ≤ seed < 2^63. Seed, prompt and weights determine a completion, whatever else
                is in the batch. Ignored at temperature 0.
            max_completion_length: tokens.
            temperature: 0 = greedy, the first of equals.
            top_p, top_k: truncate the sampling distribution (1 and 0 = off); recorded log-probabilities are under the
                truncated distribution.
            batch_size: completions generated at once; 0 = all.
            on_done: called with the index and the completion as soon as one is done, in any order.
            on_token: called with the index, the position in the completion and the token as each is drawn. Position 0
                comes again where memory ran out and a completion is drawn again.
        """
        ...


def seed_of(*names: object) -> int:
    """Seed derived from names: the same in every process and on every machine."""
    text = "\n".join(map(str, names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
