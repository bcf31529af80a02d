"""Rollouts: prompts in, completions with their log-probabilities as sampled out. One interface, one file a back end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from grpo_train.policy.completion import Completion

__all__ = ["Completion", "RolloutBackend", "seed_of"]


class RolloutBackend(Protocol):
    """Who generates."""

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
    ) -> list[Completion]:
        """A completion of each prompt, in the order of the prompts.

        Args:
            prompts: token ids, at least one each; a prompt that is to be answered several times stands there so often.
            seeds: each completion's own, 0 ≤ seed < 2^63: with prompt and weights they determine it, whatever is
                generated beside it. Without effect at temperature 0.
            max_completion_length: tokens.
            temperature: 0 = greedy, the first of equals.
            top_p, top_k: cut the distribution sampled from (1 and 0: not at all); the recorded log-probabilities are
                those of the cut one.
            batch_size: completions generated at once; 0 = all.
            on_done: called with the place and the completion as soon as one is there, in any order.
        """
        ...


def seed_of(*names: object) -> int:
    """The seed of what is named so: the same in every process, on every machine."""
    text = "\n".join(map(str, names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
