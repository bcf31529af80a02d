"""Generation backends by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.rollout import RolloutBackend


def make_backend(config: Config, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> RolloutBackend:
    """Make the backend that ``rollout.backend`` names; ``transformers``, with a message, for a model that native cannot
    run.

    ``stop``: strings that end a completion; the completion includes the string.
    """
    # These modules import torch.
    if config.rollout.backend == "native":
        from grpo_train.policy.loading import compute_type
        from grpo_train.rollout.native.backend import NativeBackend
        from grpo_train.rollout.native.weights import UnsupportedModelError

        settings = config.rollout
        try:
            return NativeBackend(
                model, tokenizer, stop, dtype=compute_type(config.model, model.device),
                memory_share=settings.memory_share, cuda_graphs=settings.cuda_graphs,
            )  # fmt: skip
        except UnsupportedModelError as error:
            print(f"rollouts by transformers, as native cannot run this model: {error}", flush=True)
    from grpo_train.rollout.transformers_backend import TransformersBackend

    return TransformersBackend(model, tokenizer, stop)
