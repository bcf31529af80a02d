"""The frozen model a run started from: reference policy of the KL penalty (beta > 0), or the opponent ``start``.

Its cost depends on what is trained. A fresh LoRA adapter is switched off. For a continued adapter or full weights, a
frozen copy of the starting tensors replaces the trained ones during a scoring pass.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from grpo_train.config.schema import Model
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError, adapter_of, check_weights
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rollout import Completion
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import discarding, fsync_path
from grpo_train.train.distributed import World

FOLDER = "reference"
"""In the run's directory: the adapter that the run continued, as it was at the start."""


class Reference:
    """Scores completions under the model the run started from."""

    def __init__(self, policy: Policy, forward: LogprobForward, start: list[torch.Tensor] | None) -> None:
        """``start``: the trained tensors at the run's start; None = the base model, with the adapter switched off."""
        self._policy, self._forward, self._start = policy, forward, start

    def score(self, completions: Sequence[Completion], batch_size: int) -> list[torch.Tensor]:
        """Log-probability of each token, (T_i,) float32 per completion, on the CPU."""
        with self.in_place():
            return self._forward.score(completions, batch_size)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Make the policy's model the one that the run started from, while the context is open."""
        if self._start is None:
            with self._policy.model.disable_adapter():
                yield
        else:
            with _swapped(self._policy.trainable(), self._start):
                yield


def load_reference(
    run: RunDir,
    settings: Model,
    policy: Policy,
    forward: LogprobForward,
    world: World,
    ckpt: str | None,
    *,
    is_fresh: bool,
) -> Reference:
    """Load the reference of a fresh or a resumed run.

    Args:
        settings: the ``model`` section.
        ckpt: the weights that the run started from (``launch.json``); None = the backbone.
        is_fresh: whether ``policy`` is still the starting model.

    Raises PolicyError if the starting weights no longer exist.
    """
    if settings.adapter == "lora":
        folder = run.path / FOLDER
        if is_fresh and ckpt and adapter_of(check_weights(run.root / ckpt)) == "lora":
            if world.is_main and not folder.is_dir():  # it exists if an earlier attempt ended before its first save
                _keep(policy, folder)
            world.broadcast(None)
        if not folder.is_dir():
            return Reference(policy, forward, None)
        if is_fresh:
            return Reference(policy, forward, _copy(policy))
        start = load_policy(settings, run.root, policy.device, weights=folder)
    elif is_fresh:
        return Reference(policy, forward, _copy(policy))
    else:
        try:
            weights = check_weights(run.root / ckpt) if ckpt else None
            start = load_policy(settings, run.root, policy.device, weights=weights)
        except PolicyError as error:
            raise PolicyError(
                f"algorithm.beta and task.opponent need the model that the run started from: {error}"
            ) from error
    return Reference(policy, forward, [parameter.detach() for parameter in start.trainable()])


def _copy(policy: Policy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.trainable()]


def _keep(policy: Policy, folder: Path) -> None:
    """Save the starting adapter with the run, so that a resume does not depend on its original location."""
    staging = folder.with_name(f".{FOLDER}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with discarding(staging):
        policy.save(staging)
        staging.rename(folder)
    fsync_path(folder.parent)


@contextmanager
def _swapped(parameters: Sequence[torch.nn.Parameter], values: Sequence[torch.Tensor]) -> Iterator[None]:
    trained = [parameter.data for parameter in parameters]
    try:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value
        yield
    finally:
        for parameter, value in zip(parameters, trained, strict=True):
            parameter.data = value
