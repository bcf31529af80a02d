"""Generation backends by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from grpo_train.config.schema import Config
from grpo_train.rollout import RolloutBackend

if TYPE_CHECKING:
    from grpo_train.policy.loading import Policy

NATIVE = "native"
"""Name of the trial whether native runs a model."""


def make_backend(
    config: Config, policy: Policy, stop: Sequence[str] = (), failed: Mapping[str, str] = MappingProxyType({})
) -> RolloutBackend:
    """Make the backend that ``rollout.backend`` names; ``transformers``, with a message, for a model that native cannot
    run.

    Args:
        stop: strings that end a completion; the completion includes the string.
        failed: trials that are not tried again, as an earlier backend's ``fallbacks``.

    Raises PolicyError (vllm).
    """
    # These modules import torch.
    model, tokenizer = policy.model, policy.tokenizer
    if config.rollout.backend == "vllm":
        from grpo_train.rollout.vllm.backend import VllmBackend

        return VllmBackend(policy, stop, config)
    fallbacks: dict[str, str] = {}
    if config.rollout.backend == "native":
        from grpo_train.policy.loading import compute_type
        from grpo_train.rollout.native.backend import NativeBackend
        from grpo_train.rollout.native.weights import UnsupportedModelError

        settings = config.rollout
        try:
            if NATIVE in failed:
                raise UnsupportedModelError(failed[NATIVE])
            return NativeBackend(
                model, tokenizer, stop, dtype=compute_type(config.model, model.device),
                memory_share=settings.memory_share, cuda_graphs=settings.cuda_graphs,
                compile_layers=settings.compile == "on" or (settings.compile == "auto" and model.device.type == "cuda"),
                failed=failed,
            )  # fmt: skip
        except UnsupportedModelError as error:
            message = f"rollouts by transformers, as native cannot run this model: {error}"
            fallbacks[NATIVE] = failed.get(NATIVE, message)
            print(fallbacks[NATIVE], flush=True)
    from grpo_train.rollout.transformers_backend import TransformersBackend

    backend = TransformersBackend(model, tokenizer, stop)
    backend.fallbacks |= fallbacks
    return backend
