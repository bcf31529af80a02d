"""A sampled completion, as rollouts produce it and the policy scores it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Completion:
    """One completion of one prompt."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Tokens, with the end-of-sequence token where it was drawn."""
    logps: tuple[float, ...]
    """Log-probability of each token as sampled (temperature, top-p and top-k applied); empty for greedy decoding."""
    finished: bool
    """False when cut off at the generation budget."""
