"""One sampled completion: what rollouts make and what the policy scores."""

from __future__ import annotations

from dataclasses import dataclass


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
