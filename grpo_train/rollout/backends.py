"""Generation backends by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from grpo_train.config.schema import Config
from grpo_train.rollout import RolloutBackend

if TYPE_CHECKING:
    from grpo_train.policy.loading import Policy

NATIVE = "native"
"""Name of the trial whether native runs a model."""


class Effort(NamedTuple):
    """What is done once for a backend, to make its decoding steps faster."""

    seconds: float
    """That it takes."""
    gain: float
    """Seconds that a decoding step becomes faster by, for each layer."""


GRAPHS = Effort(seconds=3.0, gain=35 * 7e-6)
"""A trial of 128 steps and some captures. The host launches about 35 kernels per layer and step, 7 µs each."""
LAYERS = Effort(seconds=30.0, gain=(35 - 17.3) * 2e-6)
"""Compiling and a trial. Compiled layers have 17.3 kernels (measured on an H100); a small one takes 2 µs in a graph."""


def decoding_steps(completions: int, length: int, at_once: int = 0) -> int:
    """Steps that decode ``completions`` of ``length`` tokens, ``at_once`` side by side (0 = all): at most, as most end
    earlier."""
    return -(-completions // (at_once or max(1, completions))) * length


def pays(effort: Effort, steps: int | None, layers: int) -> bool:
    """Whether an effort takes less than it saves: steps · layers · gain ≥ seconds. None = many steps.

    The time of a step hardly depends on its rows, which is why steps count and not tokens = steps · rows. The constants
    are estimates (see docs/performance.md), not measured.
    """
    return steps is None or steps * layers * effort.gain >= effort.seconds


def make_backend(
    config: Config,
    policy: Policy,
    stop: Sequence[str] = (),
    failed: Mapping[str, str] = MappingProxyType({}),
    steps: int | None = None,
) -> RolloutBackend:
    """Make the backend that ``rollout.backend`` names; ``transformers``, with a message, for a model that native cannot
    run.

    Args:
        stop: strings that end a completion; the completion includes the string.
        failed: trials that are not tried again, as an earlier backend's ``fallbacks``.
        steps: decoding steps at most (:func:`decoding_steps`); native then records graphs and, with ``rollout.compile:
            auto``, compiles layers only where that :func:`pays`. None = it does.

    Raises PolicyError (vllm), TaskError (a backend of the user's file).
    """
    # These modules import torch.
    model, tokenizer = policy.model, policy.tokenizer
    if config.rollout.backend == "vllm":
        from grpo_train.rollout.vllm.backend import VllmBackend

        return VllmBackend(policy, stop, config)
    if ":" in config.rollout.backend:
        from grpo_train.rollout.own import OwnBackend

        return OwnBackend(config.rollout.backend, policy, stop, config)
    fallbacks: dict[str, str] = {}
    if config.rollout.backend == "native":
        from grpo_train.policy.loading import compute_type
        from grpo_train.rollout.native.backend import NativeBackend
        from grpo_train.rollout.native.weights import UnsupportedModelError

        settings = config.rollout
        layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", 1))
        compiles = model.device.type == "cuda" and pays(LAYERS, steps, layers)
        try:
            if NATIVE in failed:
                raise UnsupportedModelError(failed[NATIVE])
            return NativeBackend(
                model, tokenizer, stop, dtype=compute_type(config.model, model.device),
                memory_share=settings.memory_share,
                cuda_graphs=settings.cuda_graphs and pays(GRAPHS, steps, layers),
                compile_layers=settings.compile == "on" or (settings.compile == "auto" and compiles),
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
