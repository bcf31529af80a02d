"""The reference policy of the KL penalty: the model the run started from, frozen. Only made when beta > 0.

What it costs depends on what is trained. A fresh LoRA adapter is switched off. An adapter that was continued, or full
weights, have a frozen copy of what they started from, which takes the place of the trained tensors for a scoring pass.
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
from grpo_train.run_dir import RunDir, remove_tree
from grpo_train.run_dir.files import fsync_directory
from grpo_train.train.distributed import Group

FOLDER = "reference"
"""In the run's directory: the adapter that the run continued, as it was at the start."""


class Reference:
    """Scores completions under the policy the run started from."""

    def __init__(self, policy: Policy, forward: LogprobForward, start: list[torch.Tensor] | None) -> None:
        """``start``: the trained tensors at the run's start; None = the base model under a switched-off adapter."""
        self._policy, self._forward, self._start = policy, forward, start

    def score(self, completions: Sequence[Completion], batch_size: int) -> list[torch.Tensor]:
        """Log-probability of each token, (T_i,) float32 a completion, on the CPU."""
        with self.in_place():
            return self._forward.score(completions, batch_size)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While it is open, the policy's model is the one that the run started from."""
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
    group: Group,
    ckpt: str | None,
    *,
    fresh: bool,
) -> Reference:
    """The reference of a run that starts (``fresh``: the policy is still the starting one) or goes on.

    Args:
        settings: the ``model`` section.
        ckpt: the weights that the run started from (``launch.json``); None = the backbone.

    Raises PolicyError when what it started from is not there any more.
    """
    if settings.adapter == "lora":
        folder = run.path / FOLDER
        if fresh and ckpt and adapter_of(check_weights(run.root / ckpt)) == "lora":
            if group.is_main and not folder.is_dir():  # there already: an attempt before this one ended unsaved
                _keep(policy, folder)
            group.decide(None)
        if not folder.is_dir():
            return Reference(policy, forward, None)
        if fresh:
            return Reference(policy, forward, _copy(policy))
        start = load_policy(settings, run.root, policy.device, weights=folder)
    elif fresh:
        return Reference(policy, forward, _copy(policy))
    else:
        try:
            weights = check_weights(run.root / ckpt) if ckpt else None
            start = load_policy(settings, run.root, policy.device, weights=weights)
        except PolicyError as error:
            raise PolicyError(
                f"algorithm.beta needs the model that the run started from as its reference: {error}"
            ) from error
    return Reference(policy, forward, [parameter.detach() for parameter in start.trainable()])


def _copy(policy: Policy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.trainable()]


def _keep(policy: Policy, folder: Path) -> None:
    """Save the starting adapter with the run, so that nobody can take it away from under a resume."""
    staging = folder.with_name(f".{FOLDER}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        policy.save(staging)
        staging.rename(folder)
    except OSError:
        remove_tree(staging)
        raise
    fsync_directory(folder.parent)


@contextmanager
def _swapped(parameters: Sequence[torch.nn.Parameter], values: Sequence[torch.Tensor]) -> Iterator[None]:
    own = [parameter.data for parameter in parameters]
    try:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value
        yield
    finally:
        for parameter, value in zip(parameters, own, strict=True):
            parameter.data = value
