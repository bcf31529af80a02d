"""Rollouts: prompts in, completions with their log-probabilities as sampled out. One interface, one file a back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Completion:
    """One completion of one prompt."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Tokens, the end-of-sequence token included when it was drawn."""
    logps: tuple[float, ...]
    """Log-probability of each token as it was sampled: temperature, top-p and top-k applied; empty when decoding was
    greedy."""
    finished: bool
    """False when the generation budget cut it off."""


class RolloutBackend(Protocol):
    """Who generates."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        num_generations: int,
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        batch_size: int = 0,
        on_batch: Callable[[Sequence[Completion]], None] | None = None,
    ) -> list[Completion]:
        """``num_generations`` completions of each prompt, a prompt's side by side, in the order of the prompts.

        Args:
            prompts: token ids of each prompt.
            temperature: 0 = greedy.
            top_p, top_k: cut the distribution sampled from (1 and 0: not at all); the recorded log-probabilities are
                those of the cut one.
            batch_size: completions generated at once; 0 = all.
            on_batch: called with each batch's completions as soon as they are there, in order.
        """
        ...
