"""Generation backends by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.rollout import RolloutBackend


def make_backend(config: Config, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> RolloutBackend:
    """Make the backend that ``rollout.backend`` names.

    ``stop``: strings that end a completion; the completion includes the string.
    """
    match config.rollout.backend:
        case "transformers":
            from grpo_train.rollout.transformers_backend import TransformersBackend  # imports torch

            return TransformersBackend(model, tokenizer, stop)
